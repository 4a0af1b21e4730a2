// Asking the admin interface with the token of whoever sits here. A token that was typed in lives in this tab's sessionStorage, and goes nowhere but into the
// header. Who signed in at an issuer has a session in a cookie, which no script sees: it goes to /console alone, and counts there with the header SESSION.
import { PATHS } from "./paths.js";

const KEY = "heliograph.token";
const SESSION = "X-Heliograph-Console";
/** The region that serves this page. */
export const HERE = document.documentElement.dataset.region;

export class Refusal extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** The issuer at which people sign in here, "" where there is none. */
export const ISSUER = document.documentElement.dataset.issuer;

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const signIn = (given) => sessionStorage.setItem(KEY, given);
/** A token that was typed in would go before the session. */
export function signInAtIssuer() {
  sessionStorage.removeItem(KEY);
  location.assign("/console/sign-in");
}
/** Whether a session may be asked by: nobody typed a token in. */
const bySession = () => ISSUER !== "" && !token();

export async function signOut() {
  sessionStorage.removeItem(KEY);
  if (ISSUER) await send("GET", "/console/sign-out");
}

/** What stands for a name in a path. A browser resolves "." and "..", however they are written, so that another call would be made. */
function named(key, value) {
  const wrong = key === "domain" ? !["persistent", "non-persistent"].includes(value) : value === "." || value === "..";
  if (wrong) throw new Refusal(412, `${value} is no ${key}.`);
  return encodeURIComponent(value);
}

/** Calls PATHS[name], which the broker makes from the rows of its calls. names: what stands for the names in braces; query, body; region: another region, which is asked through this one. */
export async function call(name, names = {}, { query = {}, body, region = "", signal } = {}) {
  const [method, template] = PATHS[name].split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, key) => named(key, names[key]));
  const search = Object.keys(query).length ? `?${new URLSearchParams(query)}` : "";
  const ask = (url) => send(method, url + search, body, signal);
  if (bySession()) return read(await ask(`/console/at/${encodeURIComponent(region || HERE)}${path}`));
  if (region && region !== HERE) return read(await ask(`/console/at/${encodeURIComponent(region)}${path}`));
  const answer = await ask(path);
  if (answer.type !== "opaqueredirect") return read(answer);
  return read(await ask(`/console/at/${encodeURIComponent(HERE)}${path}`)); // another broker owns it: the browser may not go there
}

async function send(method, url, body, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : { [SESSION]: "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), redirect: "manual", credentials: url.startsWith("/console/") && ISSUER ? "same-origin" : "omit", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "This broker does not answer. The page asks again by itself.");
  }
}

async function read(answer) {
  const text = await answer.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    found = { reason: text.slice(0, 300) };
  }
  if (answer.ok) return found;
  throw new Refusal(answer.status, found?.reason ?? `the broker answered ${answer.status}`);
}
