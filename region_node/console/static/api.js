// Asking the admin interface with the token of whoever sits here. The token lives in this tab's sessionStorage, and goes nowhere but into the header.
import { PATHS } from "./paths.js";

const KEY = "heliograph.token";
/** The region that serves this page. */
export const HERE = document.documentElement.dataset.region;

export class Refusal extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const token = () => sessionStorage.getItem(KEY) ?? "";
export const signIn = (given) => sessionStorage.setItem(KEY, given);
export const signOut = () => sessionStorage.removeItem(KEY);

/** Calls PATHS[name]. names: what stands for the names in braces; query, body; region: another region, which is asked through this one. */
export async function call(name, names = {}, { query = {}, body, region = "", signal } = {}) {
  const [method, template] = PATHS[name].split(" ");
  const path = template.replace(/\{(\w+)\}/g, (_, key) => encodeURIComponent(names[key]));
  const search = Object.keys(query).length ? `?${new URLSearchParams(query)}` : "";
  const ask = (url) => send(method, url + search, body, signal);
  if (region && region !== HERE) return read(await ask(`/console/at/${encodeURIComponent(region)}${path}`));
  const answer = await ask(path);
  if (answer.type !== "opaqueredirect") return read(answer);
  return read(await ask(`/console/at/${encodeURIComponent(HERE)}${path}`)); // another broker owns it: the browser may not go there
}

async function send(method, url, body, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), redirect: "manual", credentials: "omit", signal });
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
