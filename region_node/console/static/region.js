// The region: brokers and their load, the load balancer's moves, bookies and their disks, members of the two metadata groups.
import { HERE, call } from "./api.js";
import { bytes, count, h, refusal, seconds, show, table, when } from "./dom.js";

export function begin(main) {
  const parts = [
    ["Brokers", () => call("balance").then(brokers)],
    ["Bookies", () => call("bookies").then(bookies)],
    ["Members of the region's metadata", () => call("metadataMembers").then((found) => members("Metadata", found))],
    ["Members of the global configuration", () => Promise.all([call("configMembers"), call("configStatus")]).then(configuration)],
  ].map(([name, ask]) => ({ name, ask, box: h("div", {}) }));
  main.append(h("h2", {}, `Region ${HERE}`), ...parts.flatMap(({ name, box }) => [h("h3", {}, name), box]));
  return {
    async update() {
      await call("version");
      await Promise.all(parts.map(async ({ ask, box }) => {
        try {
          show(box, await ask());
        } catch (error) {
          if (error.status === 401 || error.status === undefined) throw error;
          show(box, refusal(error));
        }
      }));
    },
  };
}

const share = (value) => `${Math.round((value ?? 0) * 100)} %`;

function brokers(found) {
  const rows = found.brokers.map((row) => [
    row.broker, row.broker === found.leader ? "balances" : "", h("span", { class: row.load > 0.85 ? "warn" : null }, share(row.load)),
    Object.entries(row.used).map(([name, value]) => `${name.replaceAll("_", " ")} ${share(value)}`).join(", "), count(row.bundles), `${seconds(row.age_s)} ago`,
    row.heaviest.slice(0, 3).map((one) => `${one.namespace} #${one.bundle} ${share(one.load)}`).join(", ")]);
  const moves = (found.moves ?? []).slice().reverse().map((row) => [when(row.at_ms), `${row.namespace} #${row.bundle}`, row.from, row.to, share(row.load), h("span", { class: row.moved ? "good" : "bad" }, row.moved ? "moved" : "failed")]);
  return [
    found.paused_s > 0 && h("p", { class: "warn" }, `Balancing is paused by ${found.paused_by} for another ${seconds(found.paused_s)}.`),
    table("Brokers and their load", [["Broker"], ["Part"], ["Load", 1], ["Of its parts"], ["Bundles", 1], ["Reported"], ["Heaviest bundles"]], rows),
    table("Moves of the load balancer, the newest first", [["When"], ["Bundle"], ["From"], ["To"], ["Load", 1], ["Outcome"]], moves, "none since its leader started")];
}

function bookies(found) {
  const state = (row) => (!row.registered ? ["bad", "gone"] : row.draining ? ["warn", "being emptied"] : row.writable ? ["good", "writable"] : ["warn", "read only"]);
  return table("Bookies and their disks", [["Bookie"], ["State"], ["Free", 1], ["Rack"], ["Group"]], found.map((row) => {
    const [grade, text] = state(row);
    return [row.id, h("span", { class: grade }, text), row.free_bytes === null ? "unknown" : bytes(row.free_bytes), row.rack ?? "", row.group];
  }));
}

function members(name, found) {
  return [
    !found.leader && h("p", { class: "bad" }, `${name}: nobody leads, as far as this region knows. Changes wait.`),
    table(`${name}: leader ${found.leader ?? "unknown"}`, [["Member"], ["Role"], ["Address"], ["Entries behind", 1]],
      found.members.map((row) => [row.member, row.role, row.address ?? "", row.behind === null ? "" : count(row.behind)]))];
}

function configuration([found, status]) {
  return [h("p", { class: status.stale_s > 5 ? "warn" : "quiet" }, `What this region knows of the configuration is ${seconds(status.stale_s)} old.`), members("Configuration", found)];
}
