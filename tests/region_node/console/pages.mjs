// Pages of the console outside a browser: `node pages.mjs FOLDER`, pages on its standard input, what they show on its standard output.
// Is: as much of a document as the page builds itself with, a broker's answers by path, and what was asked. Isn't: a browser, styles, or an event's way.
import { readFileSync } from "node:fs";

class Element {
  children = [];
  attributes = {};
  listeners = {};
  dataset = {};
  disabled = false;
  constructor(tag) { this.tag = tag; }
  get value() { return this.given ?? this.all("option")[0]?.attributes.value ?? ""; }
  set value(given) { this.given = given; }
  focus() {}
  showModal() {}
  close() {}
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
let asked = [];
let dialog = new Element("dialog");
globalThis.document = {
  getElementById: () => dialog,
  activeElement: null,
  documentElement: { dataset: { region: "us", issuer: "" }, clientWidth: 1000 },
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
};
globalThis.sessionStorage = { getItem: () => null };
/** An answer: a value, a list under "each" of which every call takes the next, or {status, reason}. */
globalThis.fetch = async (url, { method, body }) => {
  asked.push([method, url, body ? JSON.parse(body) : null]);
  let found = answers[`${method} ${url.split("?")[0]}`];
  if (found?.each) found = found.each.length > 1 ? found.each.shift() : found.each[0];
  const status = found === undefined ? 404 : found?.reason ? found.status : 200;
  return { ok: status === 200, status, text: async () => JSON.stringify(found ?? { reason: `nothing at ${url}` }) };
};
const settled = async () => { for (let turn = 0; turn < 200; turn++) await new Promise((done) => setImmediate(done)); };

/** What somebody does: {press: key} a button, {type: [key, value]} into a field or a choice, {submit: the form's name}. A disabled button does nothing. */
async function act(main, { press, type, submit }) {
  const within = (tag, key) => [main, dialog].flatMap((root) => root.all(tag)).filter((one) => one.attributes["data-key"] === key);
  for (const button of press ? within("button", press) : []) if (!button.disabled) await button.listeners.click();
  for (const one of type ? [...within("input", type[0]), ...within("select", type[0])] : []) {
    one.value = type[1];
    one.listeners.input?.();
  }
  for (const form of submit ? main.all("form").filter((one) => one.attributes["aria-label"] === submit) : []) await form.listeners.submit({ preventDefault() {} });
  await settled();
}

const shown = [];
for (const { page, rest, press = null, acts = [], ...given } of told) {
  answers = given.answers;
  asked = [];
  dialog = new Element("dialog");
  const main = new Element("main");
  await (await import(`${process.argv[2]}/${page}.js`)).begin(main, rest, { aborted: false }).update();
  if (press) await act(main, { press });
  if (acts.length) await settled();
  for (const one of acts) await act(main, one);
  const tables = main.all("table").map((one) => [
    one.all("caption")[0].text,
    one.all("tbody")[0].all("tr").map((row) => Object.fromEntries(row.all("td").map((cell) => [cell.attributes["data-name"], cell.text]))),
  ]);
  shown.push({ tables: Object.fromEntries(tables), text: main.text, dialog: dialog.text, asked });
}
console.log(JSON.stringify(shown));
