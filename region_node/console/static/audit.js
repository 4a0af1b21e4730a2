// Changes: who changed what through the admin interface of this region's brokers, also what was refused.
import { call } from "./api.js";
import { h, refusal, show, table } from "./dom.js";

export function begin(main) {
  const found = h("div", {});
  main.append(h("h2", {}, "Changes by admin"), found);
  return {
    async update() {
      try {
        const { changes } = await call("audit", {}, { query: { all: true, count: 200 } });
        show(found, table("The newest first, of all brokers", [["When"], ["Who"], ["From"], ["What"], ["Outcome", 1], ["Why"]], changes.slice(-200).reverse().map((row) =>
          [row.time, row.role, row.address, `${row.method} ${row.path}`, h("span", { class: row.status < 300 ? "good" : "bad" }, row.status), row.reason ?? ""])));
      } catch (error) {
        if (error.status === 401 || error.status === undefined) throw error;
        show(found, refusal(error));
      }
    },
  };
}
