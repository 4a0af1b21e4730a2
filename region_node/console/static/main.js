// The frame: which page is shown, who sits here, and asking again while anybody looks.
import { HERE, ISSUER, signIn, signInAtIssuer, signOut, token } from "./api.js";
import { field, h, refusal, show } from "./dom.js";
import * as audit from "./audit.js";
import * as disaster from "./disaster.js";
import * as map from "./map.js";
import * as region from "./region.js";
import * as topics from "./topics.js";

const AGAIN_MS = 2000;
const PAGES = { map, topics, region, disaster, audit };
const NAMES = { map: "Map", topics: "Topics", region: "Region", disaster: "Disaster recovery", audit: "Changes" };
const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
let shown = 0; // counts the pages that were begun: what an earlier one still waits for is dropped

function place() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return [Object.hasOwn(PAGES, name) ? name : "map", rest.filter(Boolean)];
}

function links(current) {
  document.getElementById("pages").replaceChildren(...Object.entries(NAMES).map(([name, text], index) =>
    h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null, "aria-keyshortcuts": index + 1 }, text)));
}

async function open() {
  const mine = ++shown;
  const [name, rest] = place();
  links(name);
  document.title = `${NAMES[name]}, ${HERE}: Heliograph console`;
  document.getElementById("sign-out").hidden = !token();
  const stop = new AbortController();
  main.replaceChildren();
  let trouble = null; // what the last question as a whole met
  const page = PAGES[name].begin(main, rest, stop.signal);
  while (mine === shown) {
    if (!document.hidden) {
      try {
        await page.update();
        document.getElementById("sign-out").hidden = !token() && !ISSUER;
        trouble?.remove();
        if (mine === shown) told(`Live, of ${new Date().toISOString().slice(11, 19)} UTC`);
      } catch (error) {
        if (mine !== shown) break;
        if (error.status === 401) return ask(error);
        if (error.status === undefined) console.error(error);
        told(error.message);
        trouble?.remove();
        trouble = refusal(error);
        main.prepend(trouble);
      }
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
  stop.abort();
}

function told(text) {
  if (freshness.textContent !== text) freshness.textContent = text;
}

function ask(error) {
  shown++;
  document.getElementById("sign-out").hidden = !token();
  const form = h("form", { class: "sign-in", "aria-label": "Sign in" },
    h("h2", {}, `Sign in to region ${HERE}`),
    ISSUER && h("p", {}, h("button", { type: "button", class: "act", autofocus: true, onclick: signInAtIssuer }, `Sign in at ${ISSUER}`)),
    token() ? refusal(error) : h("p", {}, "This region asks who is there. The token stays in this tab and is forgotten when it is closed."),
    field("Token", "token", { type: "password", required: true, autofocus: !ISSUER }),
    h("button", { class: "act" }, "Sign in"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    signIn(form.elements.token.value.trim());
    open();
  });
  told("Not signed in");
  show(main, form);
  (ISSUER ? form.querySelector("button") : form.elements.token).focus();
}

document.getElementById("sign-out").addEventListener("click", async () => {
  await signOut();
  open();
});
addEventListener("hashchange", () => {
  open();
  main.focus();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
  const name = Object.keys(PAGES)[Number(event.key) - 1];
  if (name) location.hash = `#/${name}`;
});
open();
