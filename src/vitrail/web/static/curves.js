/** How good is it? Deletion and insertion curves of the chosen methods beside the random order. */

import * as api from "./api.js";
import { title } from "./captions.js";
import { LINES } from "./colour.js";
import { alarm, el, svg, trouble, write } from "./dom.js";

const SIZE = { width: 420, height: 250, left: 38, right: 10, top: 12, bottom: 34 };
const RANDOM = "random";

export class Curves {
  /** @param about from a method's spec to its line of the registry */
  constructor(about) {
    this.about = about;
    this.place = document.getElementById("curves");
    this.start = document.getElementById("measure");
    this.halt = document.getElementById("measure-stop");
    this.status = document.getElementById("good-status");
    this.halt.addEventListener("click", () => this.clear("Stopped."));
    this.items = [];
    this.turn = 0;
  }

  /** Forget what was measured, and stop measuring. */
  clear(word = "") {
    this.turn += 1;
    if (this.close) {
      this.close();
      api.cancel(this.id).catch(() => {}); // it may be over already
    }
    this.close = null;
    this.halt.hidden = true;
    this.start.disabled = false;
    write(this.status, word);
    if (!word || !this.items.length) {
      this.items = [];
      this.place.hidden = true;
    }
  }

  async measure(subject, methods, target) {
    this.clear();
    const turn = this.turn;
    this.start.disabled = true;
    write(this.status, "Asking …");
    let job;
    try {
      job = await api.curves({ ...subject, methods, target, steps: 20 });
    } catch (error) {
      if (turn !== this.turn) return;
      this.clear();
      alarm(error);
      return;
    }
    if (turn === this.turn) this.follow(job);
    else api.cancel(job.id).catch(() => {});
  }

  /** Show a job, and follow it if it is not over. */
  follow(job) {
    this.id = job.id;
    this.items = job.items;
    this.place.hidden = false;
    this.place.dataset.state = "running";
    this.#draw();
    if (!["queued", "running"].includes(job.state)) {
      this.#over();
      return;
    }
    this.halt.hidden = false;
    this.start.disabled = true;
    this.close = api.follow(job.id, {
      job: (whole) => {
        this.items = whole.items;
        this.#draw();
      },
      item: (item) => {
        const at = this.items.findIndex((one) => one.key === item.key);
        if (at >= 0) this.items[at] = item;
        else this.items.push(item);
        this.#draw();
      },
      end: () => this.#over(),
      lost: (error) => {
        this.clear("Stopped.");
        alarm(error);
      },
    });
  }

  #over() {
    this.close = null;
    this.halt.hidden = true;
    this.start.disabled = false;
    this.place.dataset.state = "done";
    write(this.status, "Measured.");
    this.#draw();
  }

  #draw() {
    const done = this.items.filter((item) => item.state === "done").length;
    if (this.close) write(this.status, `${done} of ${this.items.length} measured …`);
    const shown = this.items.map((item, i) => ({
      ...item,
      colour: item.method === RANDOM ? null : LINES[i % LINES.length],
    }));
    const files =
      this.place.dataset.state === "done"
        ? el(
            "p",
            { class: "row" },
            download("Curves, PNG", api.fileUrl(this.id, "figure.png")),
            download("Curves, PDF", api.fileUrl(this.id, "figure.pdf")),
            download("Numbers, CSV", api.fileUrl(this.id, "curves.csv")),
            el("a", { class: "button", href: `/r/${this.id}` }, "Link to these curves"),
          )
        : "";
    this.place.replaceChildren(
      el(
        "div",
        { class: "charts" },
        this.#chart("Deletion", "deletion", "pixels taken away", shown),
        this.#chart("Insertion", "insertion", "pixels put back", shown),
      ),
      this.#table(shown),
      files,
    );
  }

  #chart(heading, field, across, items) {
    const { width, height, left, right, top, bottom } = SIZE;
    // Both charts share a scale, which the whole picture's probability sets from the start.
    const values = items
      .flatMap((item) => [...(item.deletion ?? []), ...(item.insertion ?? [])])
      .filter((v) => v !== null);
    const high = Math.max(0.1, Math.ceil(10 * Math.max(...values, 0)) / 10);
    const x = (v) => left + v * (width - left - right);
    const y = (v) => top + (1 - v / high) * (height - top - bottom);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const at = part * high;
      parts.push(svg("line", { class: "grid", x1: x(0), x2: x(1), y1: y(at), y2: y(at) }));
      parts.push(label(x(0) - 6, y(at) + 4, `${Math.round(100 * at)} %`, "end"));
      parts.push(
        label(x(part), height - bottom + 16, `${100 * part} %`, part === 0 ? "start" : part === 1 ? "end" : "middle"),
      );
    }
    parts.push(label(x(0.5), height - 3, across, "middle"));
    for (const item of items) {
      const known = (item[field] ?? [])
        .map((v, i) => [item.fractions?.[i], v])
        .filter(([f, v]) => f !== undefined && v !== null);
      if (!known.length) continue;
      const line = svg("path", {
        class: item.colour ? "curve" : "curve random",
        d: known.map(([f, v], i) => `${i ? "L" : "M"}${x(f).toFixed(1)} ${y(v).toFixed(1)}`).join(""),
        "data-method": item.method,
      });
      if (item.colour) line.style.stroke = item.colour;
      parts.push(line);
    }
    const words = `${heading} curves: probability of the class against the share of ${across}`;
    return el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, heading, el("small", {}, "probability of the class")),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words }, ...parts),
    );
  }

  #table(items) {
    const random = items.find((item) => item.method === RANDOM);
    const best = (field, sign) =>
      Math.max(...items.filter((i) => i.method !== RANDOM && i[field] != null).map((i) => sign * i[field]));
    const least = best("deletion_auc", -1);
    const most = best("insertion_auc", 1);
    const many = items.length > 2;
    const rows = items.map((item) => {
      const chip = el("span", { class: item.colour ? "stroke" : "stroke random", "aria-hidden": "true" });
      if (item.colour) chip.style.borderColor = item.colour;
      const method = this.about(item.method);
      const name = el("th", { scope: "row" }, chip, item.method === RANDOM ? "Random order" : title(method));
      if (item.error) return el("tr", {}, name, el("td", { colSpan: 3 }, trouble(item.error)));
      if (item.state !== "done") {
        const meter = el("progress", { max: 1, "aria-label": `${title(method)}: progress` });
        if (item.progress) meter.value = item.progress;
        return el("tr", {}, name, el("td", { colSpan: 3 }, item.state === "cancelled" ? "stopped" : meter));
      }
      const gain =
        random?.deletion_auc != null && item !== random
          ? item.insertion_auc - item.deletion_auc - (random.insertion_auc - random.deletion_auc)
          : null;
      return el(
        "tr",
        {},
        name,
        el("td", { class: many && -item.deletion_auc === least ? "best" : "" }, area(item.deletion_auc)),
        el("td", { class: many && item.insertion_auc === most ? "best" : "" }, area(item.insertion_auc)),
        el("td", {}, gain === null ? "" : (gain >= 0 ? "+" : "−") + Math.abs(gain).toFixed(3)),
      );
    });
    return el(
      "table",
      { class: "areas" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Method"),
          head("Deletion", "area, less is better"),
          head("Insertion", "area, more is better"),
          head("Over random", "insertion − deletion"),
        ),
      ),
      el("tbody", {}, ...rows),
    );
  }
}

const head = (name, words) => el("th", { scope: "col" }, name, el("small", {}, words));
const area = (value) => (value == null ? "–" : value.toFixed(3));
const label = (x, y, text, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
const download = (name, href) => el("a", { class: "button", href, download: "" }, name);
