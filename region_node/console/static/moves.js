// Moving namespaces, one or all of a region: the plan with its numbers, what is typed before anything begins, the steps, the report. By the calls of `heliograph dr`.
import { HERE, call } from "./api.js";
import { bytes, confirmed, count, h, refusal, seconds, show, table, when } from "./dom.js";

const FULL = 0.8; // what of a machine is in use, above which it is named
const AT_ONCE = 5; // a browser has six connections to a broker
const THROUGH_S = 2; // a broker goes on for so long before it answers
const WAIT_MS = 60000; // without a step, or without an answer
const AGAIN_MS = 1000;
const SHOWN = 500; // rows of one table

export const KINDS = { switchover: "Switch over", failover: "Fail over", failback: "Fail back", drill: "Drill" };
/** What will be different. */
const EFFECTS = {
  switchover: (from, to) => [`${from} stops taking messages; what it has confirmed is delivered to ${to} first: nothing confirmed is lost. Then ${to} is the active region, under a new epoch.`, `Where something waits for ${WAIT_MS / 1000} s it is cancelled, and ${from} goes on; after the flip the way back is another move.`],
  failover: (from, to) => [`${from} confirms nothing more, once its brokers obey or their leases have ended; then ${to} is the active region, under a new epoch. What ${to} lacks by then is in ${from} alone until ${from} is back.`, `For a region that is lost. Where ${from} answers, a switchover loses nothing.`],
  failback: (from, to) => [`What only ${to} had is counted and brought to ${from} first (rejoin), while producers go on; then ${from} stops taking messages, everything is delivered, and ${to} is the active region again.`],
  drill: (from, to) => [`Nothing of it is written or closed. A shadow namespace in the same regions is failed over from ${from} to ${to} in earnest, and removed; every topic of the copy in ${to} is compared with the origin's, and what differs is repaired.`],
};

class NotDone extends Error {}

const named = (namespace) => {
  const [tenant, name] = namespace.split("/");
  return { tenant, namespace: name };
};
const pause = () => new Promise((done) => setTimeout(done, AGAIN_MS));

// -- the plan -------------------------------------------------------------------------------------------------------------------

/** Sentences: what is not in the target yet of these rows of a plan, and what the target has in use. */
export const numbersSaid = (to, plan, rows) => [...riskSaid(to, rows.map((row) => row.at_risk).filter(Boolean)), ...loadSaid(to, plan.load)];

function riskSaid(to, risks) {
  const known = risks.filter((one) => one.messages !== null);
  const last = risks.filter((one) => one.messages === null).map((one) => one.last);
  const sum = (rows, key) => rows.reduce((total, one) => total + one[key], 0);
  const heard = last.filter(Boolean);
  const oldest = Math.max(0, ...known.filter((one) => one.messages).map((one) => one.age_s));
  return [
    known.length > 0 && `At risk: ${count(sum(known, "messages"))} messages (${bytes(sum(known, "bytes"))}) are not in ${to} yet${oldest ? `, the oldest ${seconds(oldest)} old` : ""}.`,
    last.length > 0 && `Of ${count(last.length)} namespaces it is not known how much is missing in ${to}${heard.length ? `: ${count(sum(heard, "messages"))} messages when they were heard last, up to ${seconds(Math.max(...heard.map((one) => one.ago_s)))} ago, and there may be more` : ""}.`,
  ].filter(Boolean);
}

function loadSaid(to, load) {
  if (!load) return [`It is not known what ${to} has in use: it does not answer.`];
  const percent = (share) => `${Math.round(share * 100)} %`;
  const shares = [["CPU", load.brokers, "cpu", "broker"], ["memory", load.brokers, "memory", "broker"], ["disk", load.bookies, "disk", "bookie"]].flatMap(([name, rows, part, kind]) =>
    rows.filter((row) => row[part] !== null && row[part] !== undefined).map((row) => ({ name, of: row[kind], share: row[part] })));
  const highest = ["CPU", "memory", "disk"].map((name) => [name, Math.max(-1, ...shares.filter((one) => one.name === name).map((one) => one.share))]).filter(([, share]) => share >= 0);
  const free = load.bookies.map((row) => row.free_bytes).filter(Boolean);
  const full = [...shares.filter((one) => one.share > FULL).map((one) => `${one.name} of ${one.of} ${percent(one.share)}`), ...load.bookies.filter((row) => !row.writable).map((row) => `${row.bookie} takes nothing`)];
  return [
    `${to} now, the highest of what ${count(load.brokers.length)} brokers and ${count(load.bookies.length)} bookies say: ${[...highest.map(([name, share]) => `${name} ${percent(share)}`), free.length > 0 && `${bytes(Math.min(...free))} of disk free`].filter(Boolean).join(", ")}.`,
    full.length > 0 && `Above ${percent(FULL)} in ${to}: ${full.join(", ")}.`,
  ].filter(Boolean);
}

// -- one operation --------------------------------------------------------------------------------------------------------------

/** Asks again where no broker answers, or cannot do it now, for WAIT_MS. */
async function patiently(ask, stopped) {
  const until = Date.now() + WAIT_MS;
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (!(error.status === 0 || error.status >= 500) || Date.now() > until || stopped.aborted) throw error;
    }
    await pause();
  }
}

/** Goes on with what is under way until it ends. heard(operation): called with each answer. Throws NotDone where no step is done for WAIT_MS, or another one was begun. null: the page was left. */
export async function goneOn(names, found, heard, stopped) {
  let [steps, since] = ["", Date.now()];
  for (;;) {
    heard(found);
    if (found.state !== "running") return found;
    const counted = `${found.steps.length} ${found.step === "count" ? found.waiting : ""}`;
    if (counted !== steps) [steps, since] = [counted, Date.now()];
    if (Date.now() - since > WAIT_MS) throw new NotDone(`it waits at ${found.step}: ${found.waiting}`);
    if (stopped.aborted) return null;
    const next = await patiently(() => call("advance", names, { query: { through_s: THROUGH_S } }), stopped);
    if (next.id !== found.id) throw new NotDone(`the ${found.kind} was given up: a ${next.kind} to ${next.target} was begun`);
    found = next;
  }
}

/** Begins it, or goes on with it, as it was planned; a failback is a rejoin where the region has a tail, and a switchover. */
async function carriedOut(kind, to, row, heard, stopped) {
  const names = named(row.namespace);
  const planned = { active: row.from, epoch: row.epoch, operation: row.operation };
  const begin = async (what) => goneOn(names, await patiently(() => call("begin", names, { body: { kind: what, to, dry_run: false, ...planned } }), stopped), heard, stopped);
  if (kind !== "failback") return begin(kind);
  const told = await patiently(() => call("disasterOf", names), stopped);
  const switching = told.operation?.state === "running" && told.operation.kind === "switchover" && told.operation.target === to;
  if (told.to_rejoin?.[to] && !switching && (await begin("rejoin"))?.state !== "done") return null;
  return begin("switchover");
}

export function progress(found) {
  return [
    h("p", { role: "status" }, `${found.kind} from ${found.source} to ${found.target}: ${found.state}${found.state === "running" ? `, at ${found.step}` : ""}${found.waiting ? `, waits for ${found.waiting}` : ""}.`),
    table("Steps done", [["Step"], ["When"], ["Found"]], found.steps.map((row) => [row.step, when(row.done_ms), row.found])),
    found.state !== "running" && reported(found)];
}

function reported(found) {
  const told = found.report;
  const verdict = told.signed && [told.signed.passed ? "passed" : `failed: ${told.signed.because.join("; ")}`, told.signed.passed];
  const rows = [
    ["Took", seconds((found.ended_ms - found.begun_ms) / 1000)],
    found.kind !== "drill" && told.rto_s !== undefined && ["Closed for", `${seconds(told.rto_s)}${told.rto_kept === undefined ? "" : told.rto_kept ? ", as promised" : ", longer than promised"}`],
    told.before && ["Known to be missing before it was closed", `${count(told.before.messages)} messages (${bytes(told.before.bytes)})`],
    told.after && ["Known to be missing when it was closed", `${count(told.after.messages)} messages (${bytes(told.after.bytes)})`],
    told.tail && [`In ${found.source} alone when another region took over`, `${count(told.tail.messages)} messages of ${count(told.tail.topics_count)} topics`],
    told.kept !== undefined && [`Of these now in ${found.target}, too`, `${count(told.kept)} messages; ${count(told.lost)} stay in ${found.source} alone`],
    verdict && ["Verdict", h("span", { class: verdict[1] ? "good" : "bad" }, verdict[0])],
    told.signed && ["Back within", `${seconds(told.signed.rto_s)}; were the region really lost, ${seconds(told.signed.rto_lost_s)}`],
  ];
  return table("Report", [["What"], ["How much"]], rows.filter(Boolean));
}

/** One namespace: the plan's numbers in a box, and nothing before its words are typed. */
export async function moveOne(names, active, kind, to, into, stopped) {
  const namespace = `${names.tenant}/${names.namespace}`;
  show(into, h("p", { role: "status" }, "Every region is asked what it has…"));
  try {
    const plan = await call("plan", {}, { query: { kind, to, region: active, tenant: names.tenant } });
    const row = plan.namespaces.find((one) => one.namespace === namespace);
    if (row?.verdict !== "moves") {
      const why = row?.because ?? plan.passed.find((one) => one.some.includes(namespace))?.because ?? "it is none of this plan's namespaces by now";
      show(into, h("p", { class: "refusal", role: "alert" }, `A ${kind} of ${namespace} to ${to} is not begun: ${why}.`));
      return;
    }
    show(into);
    const effects = [...EFFECTS[kind](active, to), ...numbersSaid(to, plan, [row]), `It has ${row.topics === null || row.topics === undefined ? "an unknown number of" : count(row.topics)} topics.`, row.because && `Not everything is known: ${row.because}.`, row.goes_on && "It was begun before, and goes on where it stands.", plan.configuration];
    confirmed(`${KINDS[kind]} ${namespace} to ${to}?`, effects.filter(Boolean), `${KINDS[kind]} to ${to}`, async () => {
      carriedOut(kind, to, row, (found) => show(into, progress(found)), stopped).catch((error) => into.append(refusal(error)));
      return "It has begun; its steps are shown on the page. It is in the audit log.";
    }, `${kind} to ${to}`);
  } catch (error) {
    show(into, refusal(error));
  }
}

// -- many namespaces ------------------------------------------------------------------------------------------------------------

/** The form for a whole region, its plan, and what becomes of it. */
export async function wholeRegion(into, stopped) {
  let regions;
  try {
    regions = await call("clusters");
  } catch (error) {
    show(into, refusal(error));
    return;
  }
  const choice = (label, key, options) => {
    const select = h("select", { "data-key": key }, options.map(([value, text]) => h("option", { value }, text)));
    return [select, h("label", {}, label, select)];
  };
  const others = regions.filter((name) => name !== HERE).map((name) => [name, name]);
  const [kind, ofKind] = choice("What", "kind", Object.entries(KINDS));
  const [from, ofFrom] = choice("What is active in", "from", [...others, [HERE, HERE], ["", "any region"]]);
  const [to, ofTo] = choice("To", "to", [[HERE, HERE], ...others]);
  const tenant = h("input", { name: "tenant", autocomplete: "off", spellcheck: "false", "data-key": "tenant" });
  const planned = h("div", { "aria-live": "polite" });
  const form = h("form", { "aria-label": "Many namespaces" }, ofKind, ofFrom, ofTo, h("label", {}, "Of the tenant (empty: of all)", tenant), h("button", { "data-key": "plan" }, "Show the plan"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = { kind: kind.value, region: from.value, to: to.value, tenant: tenant.value.trim() };
    show(planned, h("p", { role: "status" }, "Every region is asked what it has…"));
    try {
      show(planned, planShown(wanted, await call("plan", {}, { query: wanted }), planned, stopped));
    } catch (error) {
      show(planned, refusal(error));
    }
  });
  show(into, h("h3", {}, "Many namespaces at once"), form, planned);
}

const wantedText = ({ kind, region, tenant, to }) => `${KINDS[kind]}: ${region ? `what is active in ${region}` : "all namespaces"}${tenant ? `, of tenant ${tenant}` : ""}, to ${to}`;

function planShown(wanted, plan, into, stopped) {
  const moving = plan.namespaces.filter((row) => row.verdict === "moves");
  const cannot = plan.namespaces.filter((row) => row.verdict === "cannot");
  const there = plan.namespaces.filter((row) => row.verdict === "there").length;
  const rows = [...cannot, ...moving];
  const said = [
    `${count(moving.length)} of ${count(plan.namespaces.length)} namespaces ${wanted.kind === "drill" ? "are rehearsed" : "move"}, with ${count(moving.reduce((sum, row) => sum + (row.topics ?? 0), 0))} topics${there ? `; ${count(there)} are there already` : ""}${cannot.length ? `; ${count(cannot.length)} cannot be moved` : ""}.`,
    moving.some((row) => row.goes_on) && `${count(moving.filter((row) => row.goes_on).length)} of them were begun before, and go on where they stand.`,
    plan.configuration, ...numbersSaid(wanted.to, plan, moving)].filter(Boolean);
  return [
    h("h3", {}, wantedText(wanted)), h("p", {}, "Nothing was changed."), h("ul", {}, said.map((text) => h("li", {}, text))),
    moving.length > 0 && h("p", {}, h("button", { type: "button", class: "act", "data-key": "begin many", onclick: () => ask(wanted, plan, moving, said, into, stopped) }, `${KINDS[wanted.kind]} ${count(moving.length)} namespaces to ${wanted.to}…`)),
    table(`Namespaces of the plan${rows.length > SHOWN ? `, ${SHOWN} of ${count(rows.length)}` : ""}`, [["Namespace"], ["From"], ["Topics", 1], ["Moves"], ["At risk", 1], ["Why"]], rows.slice(0, SHOWN).map((row) => [
      row.namespace, row.from, row.topics ?? "", h("span", { class: row.verdict === "moves" ? "good" : "bad" }, row.verdict === "moves" ? "yes" : "no"), row.at_risk ? (row.at_risk.messages === null ? "not known" : count(row.at_risk.messages)) : "", row.because])),
    plan.passed.length > 0 && table("Passed over", [["Why"], ["How many", 1], ["Some of them"]], plan.passed.map((row) => [row.because, count(row.count), row.some.join(", ")]))];
}

function ask(wanted, plan, moving, said, into, stopped) {
  confirmed(`${wantedText(wanted)}?`, [...EFFECTS[wanted.kind](wanted.region || "the active region", wanted.to), ...said, "Each namespace is an operation of its own, and one that does not go keeps no other from it. Leave this page open: closed, nothing more is begun, and what is under way stands where it is; the same plan, or the command, goes on with it."],
    `${KINDS[wanted.kind]} ${count(moving.length)} namespaces`, async () => {
      runAll(wanted, plan, moving, into, stopped).catch((error) => into.append(refusal(error)));
      return "It has begun; how far it is stands on the page. Each namespace is in the audit log.";
    }, `${wanted.kind} to ${wanted.to}`);
}

async function runAll(wanted, plan, moving, into, stopped) {
  const began = Date.now();
  const rows = new Map(moving.map((row) => [row.namespace, { ...row, result: "not begun", because: "" }]));
  const more = { no: false };
  const head = h("div", {});
  const lines = h("div", {});
  const halt = h("button", { type: "button", "data-key": "halt", onclick: () => { more.no = true; halt.disabled = true; } }, "Begin no more");
  show(into, h("h3", {}, wantedText(wanted)), head, h("p", {}, halt), lines);
  const tell = () => {
    const all = [...rows.values()];
    const ended = all.filter((row) => !["not begun", "under way"].includes(row.result)).length;
    show(head, h("p", { role: "status" }, `${count(ended)} of ${count(all.length)} have ended, ${seconds((Date.now() - began) / 1000)} since it began.`), h("progress", { max: all.length, value: ended, "aria-label": "Namespaces that have ended" }));
    show(lines, table("Under way, or left", [["Namespace"], ["Result"], ["Where it is"]], all.filter((row) => !["not begun", "done"].includes(row.result)).slice(0, SHOWN).map((row) => [row.namespace, row.result, row.because])));
  };
  const waiting = [...moving];
  const worker = async () => {
    for (let row; !more.no && !stopped.aborted && (row = waiting.shift()); tell()) rows.set(row.namespace, { ...row, ...(await oneOf(wanted, row, (at) => { rows.set(row.namespace, { ...row, result: "under way", because: at }); tell(); }, stopped)) });
  };
  tell();
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  if (stopped.aborted) return;
  show(into, reportOfMany(wanted, plan, [...rows.values()], (Date.now() - began) / 1000));
}

/** What became of one: its result, and why. */
async function oneOf(wanted, row, told, stopped) {
  const began = Date.now();
  const took = () => ({ seconds: (Date.now() - began) / 1000 });
  try {
    const found = await carriedOut(wanted.kind, wanted.to, row, (at) => told(`${at.step || at.state}${at.waiting ? ` waits: ${at.waiting}` : ""}`), stopped);
    if (!found) return { result: "stands", because: "the page was left, or its rejoin was cancelled", ...took() };
    if (found.state !== "done") return { result: "failed", because: `somebody has ${found.state} it meanwhile`, ...took() };
    const signed = found.report.signed;
    if (signed && !signed.passed) return { result: "failed", because: `the drill did not pass: ${signed.because.join("; ")}`, ...took() };
    return { result: "done", because: "", closed_s: wanted.kind === "drill" ? undefined : found.report.rto_s, ...took() };
  } catch (error) {
    return { ...(await givenUp(wanted, row, error)), ...took() };
  }
}

async function givenUp(wanted, row, error) {
  const names = named(row.namespace);
  const failed = (because) => ({ result: "failed", because });
  if (error.status === 401 || error.status === 403 || error.status === 0) return failed(error.message);
  let found;
  try {
    found = await call("disasterOf", names);
  } catch (refused) {
    return refused.status === 404 ? { result: "gone", because: "it was deleted meanwhile" } : failed(error.message);
  }
  const running = found.operation?.state === "running" ? found.operation : null;
  if (found.active === wanted.to && !running && wanted.kind !== "drill") return { result: "there", because: `it is active in ${wanted.to} by now` };
  if (running?.kind === "switchover" && running.target === wanted.to && wanted.kind !== "failover") {
    try {
      await call("cancel", names);
      return failed(`it waited at ${running.step}: ${running.waiting}; it is cancelled, ${running.source} goes on`);
    } catch (refused) {
      return failed(`it stands at ${running.step}: ${running.waiting}; it could not be cancelled: ${refused.message}`);
    }
  }
  return failed(running?.kind === wanted.kind && running.target === wanted.to ? `it stands at ${running.step}: ${running.waiting}; the same plan goes on with it` : error.message);
}

function reportOfMany(wanted, plan, rows, took_s) {
  const good = ["done", "there", "gone"];
  const cannot = plan.namespaces.filter((row) => row.verdict === "cannot").map((row) => ({ ...row, result: "cannot" }));
  const all = [...cannot, ...rows].sort((a, b) => good.includes(a.result) - good.includes(b.result));
  const number = (result) => all.filter((row) => row.result === result).length;
  const left = all.filter((row) => !good.includes(row.result)).length;
  const there = number("there") + plan.namespaces.filter((row) => row.verdict === "there").length;
  const report = { ...wanted, by: HERE, seconds: took_s, passed: plan.passed, namespaces: all };
  return [
    h("h3", {}, wantedText(wanted)),
    h("p", { role: "status", class: left ? "bad" : "good" }, `${count(number("done"))} done in ${seconds(took_s)}, ${count(there)} were there${left ? `; ${count(left)} are left: the same plan, made anew, goes on with them` : ""}.`),
    table(`Report${all.length > SHOWN ? `, ${SHOWN} of ${count(all.length)}` : ""}`, [["Namespace"], ["From"], ["Topics", 1], ["Result"], ["Took", 1], ["Closed for", 1], ["Because"]], all.slice(0, SHOWN).map((row) => [
      row.namespace, row.from, row.topics ?? "", h("span", { class: good.includes(row.result) ? "good" : "bad" }, row.result), row.seconds === undefined ? "" : seconds(row.seconds), row.closed_s === undefined ? "" : seconds(row.closed_s), row.because])),
    h("details", {}, h("summary", { "data-key": "whole report" }, "The whole report, as JSON"), h("pre", { class: "scroll", role: "region", "aria-label": "The whole report", tabindex: 0 }, JSON.stringify(report, null, 2)))];
}
