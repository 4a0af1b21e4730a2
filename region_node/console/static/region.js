// The region: brokers and their load, the load balancer's moves, bookies and their disks, members of the two metadata groups.
import { HERE, call } from "./api.js";
import { bytes, count, h, refusal, seconds, show, table, when } from "./dom.js";

export function begin(main) {
  const parts = [
    ["Brokers", () => call("balance").then(brokers)],
    ["Bookies", disks()],
    ["Members of the region's metadata", () => call("members", { group: "metadata" }).then((found) => members("Metadata", found))],
    ["Members of the global configuration", () => Promise.all([call("members", { group: "config" }), call("configStatus")]).then(configuration)],
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

/** What is dear to ask, at most every `pause` ms for each id; what was asked last stays until then, a refusal too. */
function seldom(pause, ask) {
  const kept = new Map();
  return async (id) => {
    const last = kept.get(id);
    if (last && performance.now() - last.at < pause) return last.found;
    const found = await ask(id).catch((error) => {
      if (error.status === 401 || error.status === undefined) throw error;
      return { refused: error };
    });
    kept.set(id, { at: performance.now(), found });
    return found;
  };
}

function disks() {
  const stateOf = seldom(10000, (id) => call("bookie", { id }));
  const emptyingOf = seldom(15000, (id) => call("emptying", { id })); // it looks at every ledger of the region
  return async () => {
    const found = await call("bookies");
    const states = await Promise.all(found.map((row) => stateOf(row.id)));
    const emptied = await Promise.all(found.filter((row) => row.draining).map((row) => emptyingOf(row.id)));
    return [bookies(found), emptied.map(progress), directories(found, states)];
  };
}

function bookies(found) {
  const state = (row) => (!row.registered ? ["bad", "gone"] : row.draining ? ["warn", "being emptied"] : row.writable ? ["good", "writable"] : ["warn", "read only"]);
  return table("Bookies", [["Bookie"], ["State"], ["Free", 1], ["Rack"], ["Group"]], found.map((row) => {
    const [grade, text] = state(row);
    return [row.id, h("span", { class: grade }, text), row.free_bytes === null ? "unknown" : bytes(row.free_bytes), row.rack ?? "", row.group];
  }));
}

function progress(found) {
  if (found.refused) return refusal(found.refused);
  if (found.done) return h("p", { class: "good" }, `${found.bookie} is empty: it may be stopped.`);
  const waits = found.open_ledgers_left ? `; ${count(found.open_ledgers_left)} of them wait until their writer goes on elsewhere` : "";
  return h("p", { class: "warn" }, `${found.bookie} is being emptied: ${count(found.ledgers_left)} ledgers, ${bytes(found.bytes_left)}, still have a copy there${waits}.`);
}

function directories(found, states) {
  const silent = found.map((row, at) => [row.id, states[at]]).filter(([, one]) => one.refused || !one.state);
  const rows = found.flatMap((row, at) => (states[at].state ? [...ledgerRows(row.id, states[at].state), ...journalRows(row.id, states[at].state)] : []));
  return [
    silent.map(([id, one]) => h("p", { class: "warn" }, `${id}: ${one.refused ? one.refused.message : one.reason}`)),
    table("Their directories", [["Bookie"], ["Directory"], ["For"], ["State"], ["Free", 1], ["Ledgers", 1], ["Entry logs", 1]], rows)];
}

const health = (one) => h("span", { class: one.failure ? "bad" : one.full ? "warn" : "good" }, one.failure || one.full || "good");
const ledgerRows = (id, state) => state.ledgerDirectories.map((one) => [
  id, one.directory || "data folder", "ledgers", health(one), one.freeBytes === null || one.freeBytes === undefined ? "unknown" : bytes(one.freeBytes), count(one.ledgers), bytes(one.entryLogBytes)]);
const journalRows = (id, state) => state.journals.map((one) => [id, one.directory || "data folder", "journal", health(one), "", "", ""]);

function members(name, found) {
  return [
    !found.leader && h("p", { class: "bad" }, `${name}: nobody leads, as far as this region knows. Changes wait.`),
    table(`${name}: leader ${found.leader ?? "unknown"}`, [["Member"], ["Role"], ["Address"], ["Entries behind", 1]],
      found.members.map((row) => [row.member, row.witness ? "witness" : row.role, row.address ?? "", row.behind === null ? "" : count(row.behind)]))];
}

function configuration([found, status]) {
  return [h("p", { class: status.stale_s > 5 ? "warn" : "quiet" }, `What this region knows of the configuration is ${seconds(status.stale_s)} old.`), members("Configuration", found)];
}
