// Topics: of a tenant's namespaces; and one: who publishes and consumes, what waits, what each region holds, where a message lies everywhere.
import { HERE, call } from "./api.js";
import { bytes, confirmed, count, field, h, refusal, seconds, show, silence, table, when } from "./dom.js";
import { topicLink } from "./map.js";

export function begin(main, rest) {
  return rest.length >= 3 ? one(main, rest) : list(main, rest);
}

const SHOWN_MAX = 500;

function list(main, [tenant = sessionStorage.getItem("heliograph.tenant") ?? "", namespace = ""]) {
  const trouble = h("div", {});
  const tenants = h("datalist", { id: "tenants" });
  const found = h("div", {});
  const form = h("form", { "aria-label": "Which topics" }, field("Tenant", "tenant", { value: tenant, required: true, list: "tenants" }),
    field("Namespace (empty: all)", "namespace", { value: namespace }), h("button", {}, "Show"), tenants);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [wanted, within] = [form.elements.tenant.value.trim(), form.elements.namespace.value.trim()];
    sessionStorage.setItem("heliograph.tenant", wanted);
    location.hash = `#/topics/${[wanted, within].filter(Boolean).map(encodeURIComponent).join("/")}`;
  });
  main.append(h("h2", {}, "Topics"), form, trouble, found);
  call("tenants").then((names) => {
    tenants.replaceChildren(...names.map((name) => h("option", { value: name })));
    if (!tenant && names.length === 1) location.hash = `#/topics/${encodeURIComponent(names[0])}`;
  }, () => {}); // a tenant may not list tenants: it types its own name
  return {
    async update() {
      if (!tenant) {
        await call("version");
        return show(found, h("p", { class: "quiet" }, "Name a tenant. Who operates the region is offered all of them; others see their own."));
      }
      try {
        const names = namespace ? [`${tenant}/${namespace}`] : await call("namespaces", { tenant });
        const parts = await Promise.all(names.map(topicsOf));
        show(trouble);
        const usage = await call("usage", { tenant }, { query: { all: true } }).catch(() => null);
        show(found, usage && table("Use of this tenant, in the whole region", [["What"], ["So far", 1]], Object.entries(usage).filter(([, value]) => typeof value === "number").map(([name, value]) => [name.replaceAll("_", " "), name.includes("bytes") ? bytes(value) : count(value)])),
          parts.map(({ name, topics, error }) => [h("h3", {}, name), error ? refusal(error) : [
            table(`Topics of ${name}`, [["Topic"]], topics.slice(0, SHOWN_MAX).map((topic) => [topicLink(topic)])),
            topics.length > SHOWN_MAX && h("p", { class: "quiet" }, `${count(topics.length - SHOWN_MAX)} more are not shown.`)]]));
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        show(found);
        show(trouble, refusal(error));
      }
    },
  };
}

async function topicsOf(name) {
  const [tenant, namespace] = name.split("/");
  try {
    const named = { domain: "persistent", tenant, namespace };
    const [topics, whole] = await Promise.all([call("topics", named), call("partitioned", named).catch(() => [])]);
    const known = new Set(whole); // their partitions are on their own page
    return { name, topics: [...whole, ...topics.filter((topic) => !known.has(topic.replace(/-partition-\d+$/, "")))] };
  } catch (error) {
    if (error.status === 401 || error.status === undefined) throw error;
    return { name, error };
  }
}

// -- one topic --------------------------------------------------------------------------------------------------------------

function one(main, [tenant, namespace, topic, domain = "persistent"]) {
  const names = { tenant, namespace, topic, domain };
  const text = `${domain}://${tenant}/${namespace}/${topic}`;
  const state = h("div", {});
  const regions = h("div", {});
  const parked = h("div", {});
  main.append(
    h("p", {}, h("a", { href: `#/topics/${encodeURIComponent(tenant)}/${encodeURIComponent(namespace)}` }, `All topics of ${tenant}/${namespace}`)),
    h("h2", {}, text),
    h("p", {}, h("button", { type: "button", onclick: () => unload(names, text) }, "Unload this topic…")),
    parked, state, regions, lookUp(names));
  let first = true;
  let partitions = null; // how many there are; null: not asked yet
  return {
    async update() {
      const parts = { stats: show.bind(null, state), vectors: show.bind(null, regions) };
      try {
        partitions ??= (await call("partitions", names)).partitions;
        if (partitions) return parts.stats(summed(names, await call("partitionedStats", names)));
        const [stats, internal] = await Promise.all([call("stats", names), call("internal", names).catch(() => null)]);
        parts.stats(described(names, text, stats, internal));
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        parts.stats(refusal(error));
      }
      if (domain !== "persistent") return;
      try {
        const [vectors, risk] = await Promise.all([call("vectors", names), call("risk", names)]);
        parts.vectors(held(vectors), missing(risk));
        first = false;
        show(parked, undecided(names, text, (await call("links", names)).links));
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        if (first) parts.vectors(refusal(error));
      }
    },
  };
}

/** A partitioned topic: all of its partitions together, and each of them. */
function summed(names, stats) {
  const rows = Object.entries(stats.partitions ?? {}).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([name, part]) => [
    topicLink(name), part.ownerBroker ?? "", `${count(part.msgRateIn)}/s`, `${count(part.msgRateOut)}/s`, bytes(part.storageSize),
    count(Object.values(part.subscriptions ?? {}).reduce((sum, found) => sum + found.msgBacklog, 0))]);
  const waiting = Object.entries(stats.subscriptions ?? {}).map(([name, found]) => [
    name, count(found.msgBacklog), count(found.unackedMessages), `${count(found.msgRateOut)}/s`, count(found.consumers?.length)]);
  return [
    table("All partitions together", [["What"], ["Value"]], [
      ["Partitions", count(stats.metadata?.partitions ?? rows.length)],
      ["In", `${count(stats.msgRateIn)}/s, ${bytes(stats.msgThroughputIn)}/s`], ["Out", `${count(stats.msgRateOut)}/s, ${bytes(stats.msgThroughputOut)}/s`],
      ["Stored", bytes(stats.storageSize)]]),
    table("Subscriptions, over all partitions", [["Subscription"], ["Backlog", 1], ["Not acknowledged", 1], ["Rate out", 1], ["Consumers", 1]], waiting),
    table("Partitions", [["Partition"], ["Owned by broker"], ["In", 1], ["Out", 1], ["Stored", 1], ["Backlog of all subscriptions", 1]], rows, "none was used yet"),
  ];
}

/** Links that wait for a decision: what is here and there, and what may be decided. */
function undecided(names, text, links) {
  return links.filter((link) => link.parked).map((link) => h("section", { "aria-label": `Parked link to ${link.target}` },
    h("h3", { class: "bad" }, `The link to ${link.target} waits for a decision`),
    h("p", {}, `${link.cause_text}. Since ${when(link.parked.since_ms)}.`),
    link.parked.schemas.map((row) => h("pre", {}, row.diff)),
    h("div", { class: "buttons" }, Object.entries(CHOICES).map(([choice, [verb]]) => h("button", {
      type: "button", "data-key": `${choice} ${link.target}`, onclick: () => decide(names, text, link.target, choice) }, `${verb}…`)))));
}

const CHOICES = {
  theirs: ["Take what is there", "This region takes what the other one has, in the place of its own."],
  ours: ["Keep what is here", "The other region takes what this one has, in the place of its own."],
  retry: ["Try again", "Nothing is changed: the link is opened again, and stops again unless somebody has put it right meanwhile."],
};

async function decide(names, text, region, choice) {
  const [verb, effect] = CHOICES[choice];
  let would = "";
  try {
    const dry = await call("resolve", { ...names, region }, { body: { choice, dry_run: true } });
    would = dry.changes.numbers.length ? `Schema versions ${dry.changes.numbers.join(", ")} change in ${dry.changes.region}.` : "No schema version changes.";
  } catch (error) {
    would = `What would change cannot be said: ${error.message}`;
  }
  confirmed(`${verb}: link of ${text} to ${region}?`, [effect, would, "Messages are not touched: those that wait go out once the link is open."],
    verb, () => call("resolve", { ...names, region }, { body: { choice, dry_run: false } }).then(() => "It is decided, and the link is opened again. It is in the audit log."));
}

function described(names, text, stats, internal) {
  const rows = Object.entries(stats.subscriptions).map(([name, found]) => [
    name, found.type === "None" ? "" : found.type, count(found.msgBacklog), count(found.unackedMessages), `${count(found.msgRateOut)}/s`, count(found.consumers?.length),
    names.domain === "persistent" && h("span", {},
      h("button", { type: "button", "data-key": `skip ${name}`, "aria-label": `Skip messages of subscription ${name}`, onclick: () => skip(names, text, name, found.msgBacklog) }, "Skip…"), " ",
      h("button", { type: "button", "data-key": `clear ${name}`, "aria-label": `Clear the backlog of subscription ${name}`, onclick: () => clear(names, text, name, found.msgBacklog) }, "Clear…")),
  ]);
  const consumers = Object.entries(stats.subscriptions).flatMap(([name, found]) => (found.consumers ?? []).map((who) => [
    name, who.consumerName ?? "", who.address ?? "", `${count(who.msgRateOut)}/s`, count(who.unackedMessages), count(who.availablePermits), who.clientVersion ?? "", who.connectedSince ?? ""]));
  const publishers = (stats.publishers ?? []).map((who) => [who.producerName ?? "", who.address ?? "", `${count(who.msgRateIn)}/s`, `${bytes(who.msgThroughputIn)}/s`, who.clientVersion ?? "", who.connectedSince ?? ""]);
  return [
    table("State", [["What"], ["Value"]], [
      ["Owned by broker", stats.ownerBroker ?? ""],
      ["In", `${count(stats.msgRateIn)}/s, ${bytes(stats.msgThroughputIn)}/s`], ["Out", `${count(stats.msgRateOut)}/s, ${bytes(stats.msgThroughputOut)}/s`],
      ["Stored", bytes(stats.storageSize)],
      ...(internal ? [["Entries", count(internal.numberOfEntries)], ["First position", internal.firstPosition], ["Last confirmed position", internal.lastConfirmedEntry], ["Ledgers", count(internal.ledgers.length)]] : [])]),
    table("Subscriptions", [["Subscription"], ["Type"], ["Backlog", 1], ["Not acknowledged", 1], ["Rate out", 1], ["Consumers", 1], ["Acts"]], rows),
    table("Consumers", [["Subscription"], ["Consumer"], ["Address"], ["Rate", 1], ["Not acknowledged", 1], ["Permits", 1], ["Client"], ["Since"]], consumers),
    table("Producers", [["Producer"], ["Address"], ["Rate", 1], ["Bytes", 1], ["Client"], ["Since"]], publishers),
  ];
}

const position = (at) => (at ? `${at[0]}:${at[1]}` : "nothing");

function held(vectors) {
  const rows = Object.entries(vectors.regions).flatMap(([region, { age_s, origins }]) => origins.map((row) => [
    region, region === HERE ? "now" : `${seconds(age_s)} ago`, vectors.numbers[row.region] ?? `number ${row.region}`, row.origin, position(row.through),
    row.missing.map(([after, through]) => `${position(after)} to ${position(through)}`).join(", ") || "nothing"]));
  return table("What each region holds of what was published where", [["Region"], ["Heard"], ["Published in"], ["Origin"], ["Through"], ["Missing below that"]], rows);
}

/** A region that lives is heard each second. */
const HEARD_EACH_S = 2;

function missing(risk) {
  const away = Object.entries(risk.not_yet_elsewhere).map(([region, row]) => [
    region, h("span", { class: row.connected ? "good" : "bad" }, row.connected ? "up" : row.cause), count(row.messages), bytes(row.bytes), seconds(row.age_s), silence(row, HEARD_EACH_S), row.connected ? "" : row.remedy]);
  const here = Object.entries(risk.not_yet_here).map(([region, row]) => [
    region, h("span", { class: row.connected ? "good" : "bad" }, row.connected ? "up" : "not heard"), row.messages === null ? "not told" : count(row.messages), bytes(row.bytes ?? 0), seconds(row.age_s_max), silence(row, HEARD_EACH_S)]);
  return [
    table("Published here and not yet there", [["Region"], ["Link"], ["Messages", 1], ["Bytes", 1], ["Oldest", 1], ["Not heard for", 1], ["What to do"]], away, "it is in no other region"),
    table("Published there and not yet here", [["Region"], ["Link"], ["Messages", 1], ["Bytes", 1], ["Oldest, at most", 1], ["Not heard for", 1]], here, "no other region has told of it since it was loaded here")];
}

// -- where a message lies ------------------------------------------------------------------------------------------------------

function lookUp(names) {
  const outcome = h("div", { "aria-live": "polite" });
  const form = h("form", { "aria-label": "Look a message up" },
    field("Coordinate (1.1.5f3a:7:12) or position here (7:12)", "message", { required: true, size: 34 }), h("button", {}, "Look up in every region"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      show(outcome, await everywhere(names, form.elements.message.value.trim()));
    } catch (error) {
      show(outcome, refusal(error));
    }
  });
  return h("section", { "aria-labelledby": "look-up" }, h("h3", { id: "look-up" }, "Look a message up"), form, outcome);
}

async function everywhere(names, wanted) {
  let told = null;
  if (!wanted.includes(".")) {
    told = await call("coordinate", { ...names, position: wanted });
    if (!told.coordinate) return h("p", {}, `Position ${wanted}: ${told.status}.`);
  }
  const coordinate = told?.coordinate ?? wanted;
  const regions = await call("clusters");
  const rows = await Promise.all(regions.map(async (region) => {
    try {
      const found = await call("position", { ...names, coordinate }, { region });
      return [region, found.status, position(found.position), found.following ? position(found.following) : ""];
    } catch (error) {
      return [region, h("span", { class: "bad" }, error.message), "", ""];
    }
  }));
  return [
    h("p", {}, `Coordinate ${coordinate}`, told && `, first published in ${told.region} at ${when(told.published_ms) || "an unknown time"}`, "."),
    table("Where it lies", [["Region"], ["Status"], ["Position there"], ["Next there, where it is gone"]], rows)];
}

// -- acts -----------------------------------------------------------------------------------------------------------------------

function unload(names, text) {
  confirmed(`Unload ${text}?`, [
    "Its broker closes it: producers and consumers are disconnected and come back by themselves, usually within a second.",
    "Nothing is lost: what was confirmed is stored, what was not is sent again.",
    "It is loaded again at the next use, by whichever broker owns its bundle then. Of a partitioned topic, every partition is unloaded."],
  "Unload", () => call("unload", names).then(() => `${text} was unloaded. It is in the audit log.`));
}

function clear(names, text, subscription, waiting) {
  confirmed(`Clear the backlog of ${subscription}?`, [
    `About ${count(waiting)} messages of ${text} that wait now count as acknowledged: no consumer of ${subscription} will ever be given them.`,
    "This cannot be undone here; while retention keeps them, a reset of the subscription to an earlier time brings them back.",
    "Other subscriptions are not touched. A replicated subscription is moved in other regions too."],
  "Clear the backlog", () => call("clear", { ...names, subscription }).then(() => `${subscription} has no backlog. It is in the audit log.`));
}

function skip(names, text, subscription, waiting) {
  const number = h("input", { type: "number", min: 1, value: 1, "aria-label": "How many messages to skip" });
  confirmed(`Skip messages of ${subscription}?`, [
    h("label", {}, "How many, of those that wait, the oldest first", number),
    `So many of about ${count(waiting)} messages of ${text} count as acknowledged: no consumer of ${subscription} will be given them.`,
    "Other subscriptions are not touched. Only a reset to an earlier time brings them back, while retention keeps them."],
  "Skip", async () => {
    const wanted = Number(number.value);
    if (!Number.isInteger(wanted) || wanted < 1) throw new Error("Write a whole number of 1 or more.");
    await call("skip", { ...names, subscription, count: wanted });
    return `${count(wanted)} messages were skipped. It is in the audit log.`;
  });
}
