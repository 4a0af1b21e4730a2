// Building the page: text is always text, never markup.

/** An element. props: attributes, on...: listeners; children: nodes, and anything else as text; null and false are left out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts new content in; the keyboard stays on the element with the same data-key, and what was scrolled or opened stays so. */
export function show(container, ...children) {
  const kept = container.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const scrolled = [...container.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  const opened = [...container.querySelectorAll("details")].map((one) => one.open);
  container.replaceChildren(...children.flat(Infinity).filter(Boolean));
  container.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
  container.querySelectorAll("details").forEach((one, index) => { one.open = opened[index] ?? false; });
  if (kept) container.querySelector(`[data-key="${CSS.escape(kept)}"]`)?.focus();
}

/** columns: [name, number?]; rows: lists of cells, each text or a node. A table without rows says so. */
export function table(caption, columns, rows, empty = "none") {
  const cell = (value, index) => h("td", { "data-name": columns[index][0], class: columns[index][1] ? "number" : null }, value ?? "");
  if (!rows.length) return h("p", { class: "quiet" }, `${caption}: ${empty}.`);
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0, "data-key": `scroll ${caption}` },
    h("table", { class: "stacked" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([name, number]) => h("th", { scope: "col", class: number ? "number" : null }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

export function refusal(error) {
  const why = error.status === 401 ? "Not signed in: " : error.status === 403 ? "Refused: " : error.status ? "" : "";
  return h("p", { class: "refusal", role: "alert" }, why + error.message);
}

export function field(label, name, props = {}) {
  return h("label", {}, label, h("input", { name, autocomplete: "off", spellcheck: "false", ...props }));
}

/** Asks before an act. effects: sentences that say what will be different; act(): carries it out. Nothing happens unless the button is pressed, which wants `typed` to be typed first, where it is given. */
export function confirmed(title, effects, verb, act, typed = "") {
  const dialog = document.getElementById("dialog");
  const outcome = h("div", {});
  const go = h("button", { type: "button", class: "act", "data-key": "act" }, verb);
  const words = h("input", { name: "typed", autocomplete: "off", spellcheck: "false", "data-key": "typed" });
  words.addEventListener("input", () => { go.disabled = words.value.trim() !== typed; });
  go.disabled = typed !== "";
  const leave = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Leave everything as it is");
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      const said = await act();
      leave.textContent = "Close";
      go.hidden = true;
      outcome.replaceChildren(h("p", { class: "good", role: "status" }, said ?? "Done. It is in the audit log."));
      leave.focus();
    } catch (error) {
      outcome.replaceChildren(refusal(error));
      go.disabled = false;
    }
  });
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, title), h("ul", {}, effects.map((text) => h("li", {}, text))), typed && h("label", {}, `Type "${typed}" first`, words), outcome, h("div", { class: "buttons" }, leave, go));
  dialog.showModal();
}

export const count = (value) => Math.round(value ?? 0).toLocaleString("en");

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  for (value ??= 0; value >= 1024 && step < 4; step++) value /= 1024;
  return `${step ? value.toFixed(1) : Math.round(value)} ${units[step]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

/** For how long the region of a row was not heard, where that is longer than beyond_s. */
export const silence = (row, beyond_s = 0) => (row.silent_s > beyond_s ? h("span", { class: "bad" }, seconds(row.silent_s)) : "");

export const when = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "");
