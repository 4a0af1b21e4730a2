// Disaster recovery: where each namespace is active, what would be lost, a dry run, moves step by step, drills and their reports.
import { call } from "./api.js";
import { bytes, confirmed, count, field, h, refusal, seconds, show, silence, table, when } from "./dom.js";
import { KINDS, goneOn, moveOne, progress, wholeRegion } from "./moves.js";

export function begin(main, rest, stopped) {
  return rest.length === 2 ? one(main, rest, stopped) : all(main, stopped);
}

function all(main, stopped) {
  const found = h("div", {});
  const many = h("div", {});
  let asked = false;
  const form = h("form", { "aria-label": "Which namespace" }, field("Namespace (tenant/namespace)", "namespace", { required: true, pattern: "[^/]+/[^/]+" }), h("button", {}, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/disaster/${form.elements.namespace.value.trim().split("/").map(encodeURIComponent).join("/")}`;
  });
  main.append(h("h2", {}, "Disaster recovery"), form, found, many);
  return {
    async update() {
      try {
        show(found, overview(await call("disaster")));
        if (!asked) wholeRegion(many, stopped);
        asked = true;
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        show(found, refusal(error), h("p", {}, "A tenant's admin sees a namespace of the tenant by its name."));
      }
    },
  };
}

function canary(told) {
  if (!told.tries) return h("p", {}, "This broker has not tried to store a test message yet: its health is tried when somebody asks for it, or all the time where it has a health port.");
  if (told.healthy) return h("p", { class: "good" }, `This broker stores and reads back its own test messages, the last in ${count(Math.round(told.latency_ms))} ms.`);
  return h("p", { class: "bad" }, `This broker does not store its own test messages: ${told.reason}`);
}

function overview(told) {
  return [
    told.canary && canary(told.canary),
    told.lease.not_confirmed > 0 && h("p", { class: "warn" }, `${count(told.lease.not_confirmed)} messages were not confirmed, because the right to write was not certain.`),
    table("Active-passive namespaces", [["Namespace"], ["Active in"], ["State"], ["At risk", 1], ["Not heard for", 1], ["Promise"]], told.namespaces.map((row) => [
      h("a", { href: `#/disaster/${row.namespace.split("/").map(encodeURIComponent).join("/")}`, "data-key": row.namespace }, row.namespace),
      row.active ?? "", row.state ?? "", seconds(row.at_risk_s ?? 0), silence(row), h("span", { class: row.slo_broken ? "bad" : "good" }, row.slo_broken ? "broken" : "kept")]),
    "every namespace takes messages in all of its regions"),
    table("Events", [["When"], ["Namespace"], ["What"], ["How much"]], told.events.slice().reverse().map((row) => [when(row.time_ms), row.namespace, row.event === "slo.broken" ? "promise broken" : row.event === "slo.kept" ? "promise kept again" : row.event, row.because ?? `${seconds(row.value)} at risk, ${seconds(row.promised)} promised`])),
  ];
}

// -- one namespace --------------------------------------------------------------------------------------------------------------

function one(main, [tenant, namespace], stopped) {
  const names = { tenant, namespace };
  const state = h("div", {});
  const plan = h("div", { "aria-live": "polite" });
  const past = h("div", {});
  main.append(h("p", {}, h("a", { href: "#/disaster" }, "All namespaces")), h("h2", {}, `Disaster recovery of ${tenant}/${namespace}`), state, plan, past);
  return {
    async update() {
      try {
        show(state, told(names, await call("disasterOf", names), plan, stopped));
        const [operations, reports] = await Promise.all([call("operations", names), call("reports", names)]);
        show(past, history(operations), drills(reports));
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        show(state, refusal(error));
      }
    },
  };
}

function told(names, found, plan, stopped) {
  if (found.mode === "active-active") {
    return [
      h("p", {}, `Every region takes messages: ${found.regions.join(", ")}. There is nothing to switch over; `, h("code", {}, `heliograph dr set ${names.tenant}/${names.namespace} --active REGION`), " makes one region the active one."),
      table("What would be lost with this region now", [["Not yet in"], ["Messages", 1], ["Bytes", 1], ["Not heard for", 1]], Object.entries(found.at_risk).map(([region, row]) => [region, ...atRisk(row, row), silence(row)])),
      table("What would be missing here with another region now", [["Of"], ["Messages", 1], ["Bytes", 1], ["Not heard for", 1], ["Topics never heard of", 1]], Object.entries(found.lacks ?? {}).map(([region, row]) => [region, ...atRisk(row, row), silence(row), count(row.unheard.length)]))];
  }
  const running = found.operation?.state === "running" ? found.operation : null;
  return [
    h("p", {}, "Active in ", h("strong", {}, found.active), `, epoch ${found.epoch}, ${found.state}, since ${when(found.since_ms)}.`),
    found.automatic && h("p", {}, `Fails over by itself once ${found.active} was lost for ${seconds(found.automatic.after_s)}${found.automatic.held ? `; ${found.automatic.held}` : ""}${found.automatic.said ? `; not now: ${found.automatic.said}` : ""}.`),
    Object.keys(found.slo).length > 0 && h("p", {}, `Promised: ${Object.entries(found.slo).map(([key, value]) => `${key === "rpo_s" ? "at most" : "back within"} ${seconds(value)}${key === "rpo_s" ? " of messages lost" : ""}`).join(", ")}.`),
    running && h("div", { class: "refusal" }, progress(running), h("p", {},
      h("button", { type: "button", "data-key": "go on", onclick: () => goOn(names, plan, stopped) }, "Go on with it"), " ",
      h("button", { type: "button", "data-key": "cancel", onclick: () => cancel(names, running) }, "Cancel it…"))),
    table("Where it could go", [["Region"], ["Can take over"], ["Why not"], ["Messages on their way", 1], ["Bytes", 1], ["Not heard for", 1], ["Acts"]], Object.entries(found.targets).map(([region, row]) => [
      region, h("span", { class: row.can_switch ? "good" : "bad" }, row.can_switch ? "yes" : "no"), row.because, ...atRisk(row, numbers(row)), silence(numbers(row)),
      h("span", {},
        h("button", { type: "button", "data-key": `dry ${region}`, onclick: () => dry(names, region, plan) }, `Dry run to ${region}`), " ",
        h("button", { type: "button", "data-key": `switch ${region}`, onclick: () => switchover(names, found, region, plan, stopped) }, `Switch over to ${region}…`),
        ["failover", ...(found.to_rejoin?.[region] ? ["failback"] : []), "drill"].map((kind) => [" ",
          h("button", { type: "button", "data-key": `${kind} ${region}`, onclick: () => moveOne(names, found.active, kind, region, plan, stopped) }, `${KINDS[kind]} to ${region}…`)]))]))];
}

/** Of the side that answers: the region's own numbers, else what the target knows that it lacks. */
const numbers = (row) => (row.source && !("unreachable" in row.source) ? row.source : row.target ?? {});

/** Messages and bytes; where they are not known, the last ones that were. */
const atRisk = (row, side) => [count(side.messages), bytes(side.bytes)].map((known) => (row.at_risk && row.at_risk.messages === null ? `not known (last: ${known})` : known));

async function dry(names, to, plan) {
  try {
    const found = await call("begin", names, { body: { kind: "switchover", to, dry_run: true } });
    show(plan, h("section", { "aria-labelledby": "dry-run" },
      h("h3", { id: "dry-run" }, `Dry run: switchover from ${found.source} to ${found.target}`), h("p", {}, "Nothing was changed."), table("Steps", [["Step"], ["What it does"]], Object.entries(found.cost.steps)),
      found.cost.at_risk && h("p", {}, `At risk: ${found.cost.at_risk.text}.`),
      ["source", "target"].map((side) => h("p", {}, sideSaid(found.cost[side], found.target, side)))));
  } catch (error) {
    show(plan, refusal(error));
  }
}

function sideSaid(found, target, side) {
  if ("unreachable" in found) return `${found.region} does not answer: ${found.unreachable}.`;
  if (side === "source") return `${found.region} says: ${count(found.messages)} messages (${bytes(found.bytes)}) are not in ${target} yet${unheard(found)}.`;
  return `${found.region} says: ${count(found.messages)} messages (${bytes(found.bytes)}) are known to be missing there${unheard(found)}.`;
}

/** What a side's numbers do not cover. */
function unheard(found) {
  return `${found.silent_s ? `, nothing heard for ${seconds(found.silent_s)}` : ""}${found.unheard?.length ? `; of ${count(found.unheard.length)} topics nothing was heard since they were loaded, ${seconds(found.unheard_s ?? 0)} ago` : ""}`;
}

function switchover(names, found, to, plan, stopped) {
  const cost = found.targets[to];
  const namespace = `${names.tenant}/${names.namespace}`;
  confirmed(`Switch ${namespace} over to ${to}?`, [
    `${found.active} stops taking messages of ${namespace}; producers there wait or are refused until it is done.`,
    `What ${found.active} has confirmed, ${count(cost.source?.messages)} messages at this moment, is delivered to ${to} first: nothing confirmed is lost.`,
    `Then ${to} is the active region, under a new epoch. Producers and consumers must reach ${to}; replicated subscriptions go on there.`,
    cost.can_switch ? "Both regions answer: it could go through now." : `It would wait now: ${cost.because}.`,
    "Until the flip it can be cancelled; after that the way back is another switchover."],
  `Switch over to ${to}`, async () => {
    await call("begin", names, { body: { kind: "switchover", to } });
    goOn(names, plan, stopped);
    return "It has begun; its steps are shown on the page. It is in the audit log.";
  });
}

async function goOn(names, plan, stopped) {
  try {
    await goneOn(names, await call("advance", names), (found) => show(plan, progress(found)), stopped);
  } catch (error) {
    plan.append(refusal(error));
  }
}

function cancel(names, running) {
  confirmed(`Cancel the ${running.kind} of ${names.tenant}/${names.namespace}?`, [`${running.source} goes on as the active region and takes messages again.`, "After the flip this is refused: then go on with it."],
    "Cancel it", () => call("cancel", names).then((found) => `It is ${found.state}.`));
}

function history(operations) {
  return table("Operations that ended", [["What"], ["From"], ["To"], ["By"], ["Began"], ["Took", 1], ["Ended"]], operations.slice().reverse().map((row) =>
    [row.kind, row.source, row.target, row.by, when(row.begun_ms), seconds((row.ended_ms - row.begun_ms) / 1000), row.state]));
}

function drills(reports) {
  return [
    table("Drills", [["When"], ["To"], ["Verdict"], ["Back within", 1], ["If the region were really lost", 1], ["Signed by"], ["Because"]], reports.slice().reverse().map((row) => [
      when(row.ended_ms), row.to, h("span", { class: row.passed ? "good" : "bad" }, row.passed ? "passed" : "failed"), seconds(row.rto_s), seconds(row.rto_lost_s), row.signed_by, row.because.join("; ")]), "none yet; a drill to one of the regions above makes one"),
    reports.length > 0 && h("details", {}, h("summary", { "data-key": "report" }, "The newest report, as it was signed"), h("pre", { class: "scroll", role: "region", "aria-label": "The newest report", tabindex: 0, "data-key": "report text" }, JSON.stringify(reports.at(-1), null, 2)))];
}
