// The map: every region of the instance, each asked through this one, and the links between them, put together from their topics.
import { HERE, call } from "./api.js";
import { bytes, count, h, refusal, seconds, show, svg, table } from "./dom.js";

export function begin(main) {
  const regions = h("div", {});
  const problems = h("div", {});
  main.append(h("h2", {}, "Regions and links"), problems, regions);
  const known = new Map(); // region -> {status} or {error}: a slow one does not hold up the others
  const asked = new Set();

  async function ask(name) {
    if (asked.has(name)) return;
    asked.add(name);
    try {
      known.set(name, { status: await call("status", {}, { query: { all: true }, region: name }) });
    } catch (error) {
      known.set(name, { error });
    } finally {
      asked.delete(name);
    }
  }

  return {
    async update() {
      const names = await call("clusters");
      if (!names.includes(HERE)) names.push(HERE);
      for (const name of known.keys()) if (!names.includes(name)) known.delete(name);
      const others = names.filter((name) => name !== HERE).map(ask);
      await ask(HERE);
      await Promise.race([Promise.all(others), new Promise((done) => setTimeout(done, 1000))]);
      const own = known.get(HERE);
      if (own?.error?.status === 401) throw own.error;
      show(problems, own?.error ? [refusal(own.error), h("p", {}, "The map is for those who operate the region. A tenant's topics are under Topics.")] : []);
      if (own?.error?.status === 403) return show(regions);
      const links = joined([...known.values()].flatMap((one) => one.status?.links ?? []));
      show(regions, drawn(names.sort(), known, links), listed(names, known, links));
    },
  };
}

/** Of links of topics: one for each pair of regions. */
export function joined(rows) {
  const pairs = new Map();
  for (const row of rows) {
    const key = `${row.source} ${row.target}`;
    if (!pairs.has(key)) pairs.set(key, { source: row.source, target: row.target, topics: 0, down: 0, messages: 0, bytes: 0, age: 0, silent: 0, rate: 0, rtt: 0, slowed: 0, causes: new Map(), rows: [] });
    const pair = pairs.get(key);
    pair.topics++;
    pair.down += !row.connected;
    pair.messages += row.backlog_messages;
    pair.bytes += row.backlog_bytes;
    pair.age = Math.max(pair.age, row.age_s);
    pair.silent = Math.max(pair.silent, row.silent_s ?? 0);
    pair.rate += row.rate_out;
    pair.rtt = Math.max(pair.rtt, row.rtt_ms);
    pair.slowed += row.slowed;
    pair.rows.push(row);
    if (!row.connected || row.cause === "transaction-open") {
      const seen = pair.causes.get(row.cause) ?? { count: 0, text: row.cause_text, remedy: row.remedy };
      pair.causes.set(row.cause, { ...seen, count: seen.count + 1 });
    }
  }
  return [...pairs.values()].sort((a, b) => a.source.localeCompare(b.source) || a.target.localeCompare(b.target));
}

/** What would be lost with a region now: by topic, the age of the oldest message that is in no other region; the worst topic counts. */
export function atRisk(region, links) {
  const topics = new Map();
  for (const row of links.filter((link) => link.source === region).flatMap((link) => link.rows)) {
    topics.set(row.topic, Math.min(topics.get(row.topic) ?? Infinity, row.age_s));
  }
  return Math.max(0, ...topics.values());
}

const SILENT_S = 2; // a region that lives is heard each second
const grade = (link) => (link.down ? "bad" : link.age > 5 || link.slowed ? "warn" : "good");
const state = (link) => (link.down ? `${count(link.down)} of ${count(link.topics)} down` : grade(link) === "warn" ? "behind" : "up");

function drawn(names, known, links) {
  const narrow = document.documentElement.clientWidth < 640;
  const [width, height, radius] = [narrow ? 380 : 640, names.length < 3 ? 150 : 400, 38];
  const spot = new Map(names.map((name, index) => {
    const angle = (2 * Math.PI * index) / names.length - (names.length === 2 ? Math.PI : Math.PI / 2);
    return [name, [width / 2 + (names.length > 1 ? width / 2 - 60 : 0) * Math.cos(angle), height / 2 + (names.length > 2 ? 145 : 0) * Math.sin(angle)]];
  }));
  const said = links.map((link) => `${link.source} to ${link.target}: ${state(link)}, ${count(link.messages)} messages behind`).join("; ");
  return svg("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Map of ${names.length} regions. ${said || "No links."}` },
    links.filter((link) => spot.has(link.source) && spot.has(link.target)).map((link) => arrow(link, spot.get(link.source), spot.get(link.target), radius)),
    names.map((name) => {
      const [x, y] = spot.get(name);
      const one = known.get(name);
      const under = one?.status ? `${one.status.brokers.length} broker${one.status.brokers.length === 1 ? "" : "s"}` : one?.error ? "no answer" : "asked";
      return svg("g", { class: `${name === HERE ? "here" : ""} ${one?.error ? "silent" : ""}` },
        svg("circle", { cx: x, cy: y, r: radius }),
        svg("text", { x, y: y + 1, "text-anchor": "middle" }, name),
        svg("text", { x, y: y + 16, "text-anchor": "middle", class: "quiet" }, under));
    }));
}

function arrow(link, [ax, ay], [bx, by], radius) {
  const length = Math.hypot(bx - ax, by - ay) || 1;
  const [ux, uy] = [(bx - ax) / length, (by - ay) / length];
  const [ox, oy] = [-uy * 11, ux * 11]; // the two directions beside each other
  const [x1, y1, x2, y2] = [ax + ux * radius + ox, ay + uy * radius + oy, bx - ux * (radius + 8) + ox, by - uy * (radius + 8) + oy];
  const head = `M${x2 + ux * 9},${y2 + uy * 9} L${x2 - uy * 5},${y2 + ux * 5} L${x2 + uy * 5},${y2 - ux * 5} Z`;
  const text = link.down ? `${[...link.causes.keys()].join(", ") || "down"} ${seconds(link.age)}` : link.messages ? `${count(link.messages)} behind, ${seconds(link.age)}` : "in step";
  return svg("g", { class: grade(link), "data-link": `${link.source} ${link.target}` },
    svg("line", { x1, y1, x2, y2 }), svg("path", { d: head }),
    svg("text", { class: "label", "text-anchor": "middle", x: x1 + (x2 - x1) * 0.5 + ox * 1.4, y: y1 + (y2 - y1) * 0.5 + oy * 1.4 + 4 }, text));
}

function listed(names, known, links) {
  const regions = names.map((name) => {
    const one = known.get(name);
    if (!one?.status) return [name, h("span", { class: one?.error ? "bad" : "quiet" }, one?.error ? one.error.message : "asked"), "", "", "", ""];
    const risk = atRisk(name, links);
    return [name, h("span", { class: "good" }, "answers"), one.status.brokers.length, count(one.status.topics), h("span", { class: risk > 5 ? "warn" : null }, seconds(risk)), one.status.version];
  });
  const rows = links.map((link) => [
    `${link.source} → ${link.target}`, h("span", { class: grade(link) }, state(link)), count(link.topics), count(link.messages), bytes(link.bytes), seconds(link.age), link.silent > SILENT_S ? h("span", { class: "bad" }, seconds(link.silent)) : "",
    `${count(link.rate)}/s`, `${count(link.rtt)} ms`,
    [...link.causes].map(([cause, seen]) => h("div", {}, h("strong", {}, cause), ` (${count(seen.count)}): ${seen.text || "no more is known"}. ${seen.remedy}`)),
  ]);
  const worst = links.flatMap((link) => link.rows).filter((row) => row.backlog_messages || !row.connected)
    .sort((a, b) => b.age_s - a.age_s || b.backlog_messages - a.backlog_messages).slice(0, 20);
  return [
    table("Regions", [["Region"], ["State"], ["Brokers", 1], ["Topics at the broker asked", 1], ["At risk if lost now", 1], ["Version"]], regions),
    table("Links between regions", [["Link"], ["State"], ["Topics", 1], ["Behind", 1], ["Bytes", 1], ["Oldest", 1], ["Not heard for", 1], ["Rate", 1], ["Round trip", 1], ["Cause, and what to do"]], rows, "nothing is replicated"),
    table("Topics that are behind most", [["Topic"], ["Link"], ["Behind", 1], ["Oldest", 1], ["Cause"]],
      worst.map((row) => [topicLink(row.topic), `${row.source} → ${row.target}`, count(row.backlog_messages), seconds(row.age_s), row.connected ? "" : row.cause])),
  ];
}

export function topicLink(topic) {
  const [domain, rest] = topic.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  const place = [tenant, namespace, local.join("/"), domain].map(encodeURIComponent).join("/");
  return h("a", { href: `#/topics/${place}`, "data-key": `topic ${topic}` }, topic);
}
