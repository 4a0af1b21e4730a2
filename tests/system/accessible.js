// In a page: controls and regions without a name, ids that stand twice, tables that are not explained, and text whose contrast is below 4.5 to 1.
() => {
  const faults = [];
  const seen = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden";
  const named = (e) => (e.getAttribute("aria-label") || (e.labels && [...e.labels].map((l) => l.textContent).join("")) || e.textContent || "").trim();
  for (const e of document.querySelectorAll("a, button, input, select, textarea, [role=img], [role=region]")) if (seen(e) && !named(e)) faults.push("no name: " + e.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) faults.push("twice: #" + id);
  if (document.querySelectorAll("h1").length !== 1 || !document.querySelector("main") || !document.documentElement.lang) faults.push("no h1, main, or language");
  for (const t of document.querySelectorAll("table")) if (!t.caption || [...t.querySelectorAll("th")].some((c) => !c.scope)) faults.push("a table without caption or scopes");
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => { const v = c[i] / 255; return sum + part * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return rgb("Canvas"); };
  let compared = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !seen(e) || e.closest(".skip, noscript, script")) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgb(e.ownerSVGElement ? style.fill : style.color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    compared++;
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${walk.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return { faults, compared, wide: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}
