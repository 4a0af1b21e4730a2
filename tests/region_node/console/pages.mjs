// Pages of the console outside a browser: `node pages.mjs FOLDER`, pages on its standard input, what they show on its standard output.
// Is: as much of a document as the page builds itself with, and broker's answers by path. Isn't: a browser, styles, or an event's way.
import { readFileSync } from "node:fs";

class Element {
  children = [];
  attributes = {};
  listeners = {};
  dataset = {};
  constructor(tag) { this.tag = tag; }
  append(...more) { this.children.push(...more.map((one) => (one instanceof Element ? one : String(one)))); }
  replaceChildren(...more) { this.children = []; this.append(...more); }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  contains() { return false; }
  querySelector() { return null; }
  querySelectorAll() { return []; }
  all(tag) { return this.children.filter((one) => one instanceof Element).flatMap((one) => [...(one.tag === tag ? [one] : []), ...one.all(tag)]); }
  get text() { return this.children.map((one) => (one instanceof Element ? one.text : one)).join(""); }
}

const told = JSON.parse(readFileSync(0, "utf8"));
let answers = {};
globalThis.document = {
  activeElement: null,
  documentElement: { dataset: { region: "us", issuer: "" }, clientWidth: 1000 },
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
};
globalThis.sessionStorage = { getItem: () => null };
globalThis.fetch = async (url, { method }) => {
  const found = answers[`${method} ${url.split("?")[0]}`];
  return { ok: found !== undefined, status: found === undefined ? 404 : 200, text: async () => JSON.stringify(found ?? { reason: `nothing at ${url}` }) };
};

const shown = [];
for (const { page, rest, press = null, ...given } of told) {
  answers = given.answers;
  const main = new Element("main");
  await (await import(`${process.argv[2]}/${page}.js`)).begin(main, rest, { aborted: false }).update();
  for (const button of main.all("button").filter((one) => one.attributes["data-key"] === press)) await button.listeners.click();
  const tables = main.all("table").map((one) => [
    one.all("caption")[0].text,
    one.all("tbody")[0].all("tr").map((row) => Object.fromEntries(row.all("td").map((cell) => [cell.attributes["data-name"], cell.text]))),
  ]);
  shown.push({ tables: Object.fromEntries(tables), text: main.text });
}
console.log(JSON.stringify(shown));
