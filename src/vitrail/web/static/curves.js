/** Deletion and insertion curves of the selected methods and the random control. */

import * as api from "./api.js";
import { methodTitle } from "./captions.js";
import { LINES } from "./colour.js";
import { el, errorMessage, saveBlob, setText, showAlert, svg } from "./dom.js";
import { formatSeconds } from "./maps.js";
import { fieldsOf } from "./targets.js";

const SIZE = { width: 420, height: 250, left: 38, right: 10, top: 12, bottom: 34 };
const RANDOM = "random";
/** Number of levels of the first, coarse pass. */
const COARSE_LEVELS = 5;

export class Curves {
  /**
   * @param methodInfo returns the registry entry of a method
   * @param onShown called when curves are shown or hidden
   */
  constructor(methodInfo, onShown = () => {}) {
    this.methodInfo = methodInfo;
    this.onShown = onShown;
    this.root = document.getElementById("curves");
    this.start = document.getElementById("measure");
    this.stop = document.getElementById("measure-stop");
    this.status = document.getElementById("measure-status");
    this.stop.addEventListener("click", () => this.clear("Stopped."));
    this.items = [];
    this.session = 0;
    this.unit = "pixels";
  }

  /** Say what is removed: pixels of the image of a classifier, otherwise patches. */
  setModel(model) {
    this.unit = model.media === "image" && model.targets === "class" ? "pixels" : "patches";
    const patches = this.unit === "patches";
    document.getElementById("curves-pixels").hidden = patches;
    document.getElementById("curves-patches").hidden = !patches;
  }

  /** Whether curves are shown. */
  get shown() {
    return !this.root.hidden;
  }

  /** Whether curves are being measured. */
  get running() {
    return Boolean(this.close);
  }

  /** Stop measuring and hide the curves; with a message, curves measured so far stay. */
  clear(message = "") {
    this.session += 1;
    if (this.close) {
      this.close();
      api.cancel(this.id).catch(() => {}); // it may be finished
    }
    this.close = null;
    this.stop.hidden = true;
    this.start.disabled = false;
    setText(this.status, message);
    if (!message || !this.items.length) {
      this.items = [];
      this.root.hidden = true;
    }
  }

  /** Measure the curves of some methods for a target; a prompt has its share among others. */
  async measure(input, methods, target, among = []) {
    this.clear();
    const session = this.session;
    this.start.disabled = true;
    setText(this.status, "Starting …");
    let job;
    try {
      job = await api.curves({ ...input, methods, target: fieldsOf(target), among: among.map(fieldsOf), steps: 20 });
    } catch (error) {
      if (session !== this.session) return;
      this.clear();
      showAlert(error);
      return;
    }
    if (session === this.session) this.follow(job);
    else api.cancel(job.id).catch(() => {});
  }

  /** Show a job, and follow it if it is not finished. */
  follow(job) {
    this.id = job.id;
    this.items = job.items;
    this.root.hidden = false;
    this.onShown();
    this.root.dataset.state = "running";
    this.#draw();
    if (!["queued", "running"].includes(job.state)) {
      this.#finish(job.state);
      return;
    }
    this.stop.hidden = false;
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
      end: (state) => this.#finish(state),
      lost: (error) => {
        this.clear("Stopped.");
        showAlert(error);
      },
    });
  }

  #finish(state) {
    this.close = null;
    this.stop.hidden = true;
    this.start.disabled = false;
    this.root.dataset.state = "done";
    setText(this.status, state === "cancelled" ? "Stopped." : "Done.");
    this.#draw();
  }

  #draw() {
    const done = this.items.filter((item) => item.state === "done").length;
    if (this.close) setText(this.status, this.#progressText(done));
    const shown = this.items.map((item, i) => ({
      ...item,
      colour: item.method === RANDOM ? null : LINES[i % LINES.length],
    }));
    const files =
      this.root.dataset.state === "done"
        ? el(
            "p",
            { class: "row" },
            this.#download("Curves (PNG)", "figure.png"),
            this.#download("Curves (PDF)", "figure.pdf"),
            this.#download("Values (CSV)", "curves.csv"),
          )
        : "";
    this.root.replaceChildren(
      el(
        "div",
        { class: "charts" },
        this.#chart("Deletion", "deletion", `${this.unit} removed`, shown),
        this.#chart("Insertion", "insertion", `${this.unit} inserted`, shown),
      ),
      this.#table(shown),
      files,
    );
  }

  #progressText(done) {
    const coarse = this.items.some((item) => item.state !== "done" && (item.fractions?.length ?? 0) <= COARSE_LEVELS);
    const left = this.items.reduce((sum, item) => sum + (item.state === "running" ? (item.seconds_left ?? 0) : 0), 0);
    const time = left >= 1 ? `, about ${formatSeconds(left)} left for the current method` : "";
    return coarse
      ? `Coarse curves first …${time}`
      : `${done} of ${this.items.length} measured with all levels …${time}`;
  }

  #chart(heading, field, xLabel, items) {
    const { width, height, left, right, top, bottom } = SIZE;
    // Both charts share a scale; the probability of the unchanged image sets it from the start.
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
    parts.push(label(x(0.5), height - 3, xLabel, "middle"));
    for (const item of items) {
      const points = (item[field] ?? [])
        .map((v, i) => [item.fractions?.[i], v])
        .filter(([f, v]) => f !== undefined && v !== null);
      if (!points.length) continue;
      const line = svg("path", {
        class: item.colour ? "curve" : "curve random",
        d: points.map(([f, v], i) => `${i ? "L" : "M"}${x(f).toFixed(1)} ${y(v).toFixed(1)}`).join(""),
        "data-method": item.method,
      });
      if (item.colour) line.style.stroke = item.colour;
      parts.push(line);
    }
    const description = `${heading} curves: probability of the class against the fraction of ${xLabel}`;
    return el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, heading, el("small", {}, "probability of the class")),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description }, ...parts),
    );
  }

  #download(label, name) {
    const button = el("button", { type: "button", class: "button" }, label);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        const { blob, fileName } = await api.file(this.id, name);
        saveBlob(blob, fileName);
      } catch (error) {
        showAlert(error);
      }
      button.disabled = false;
    });
    return button;
  }

  #table(items) {
    const random = items.find((item) => item.method === RANDOM);
    const best = (field, sign) =>
      Math.max(...items.filter((i) => i.method !== RANDOM && i[field] != null).map((i) => sign * i[field]));
    const bestDeletion = best("deletion_auc", -1);
    const bestInsertion = best("insertion_auc", 1);
    const several = items.length > 2;
    const rows = items.map((item) => {
      const chip = el("span", { class: item.colour ? "stroke" : "stroke random", "aria-hidden": "true" });
      if (item.colour) chip.style.borderColor = item.colour;
      const method = this.methodInfo(item.method);
      const name = el("th", { scope: "row" }, chip, item.method === RANDOM ? "Random order" : methodTitle(method));
      if (item.error) return el("tr", {}, name, el("td", { colSpan: 3 }, errorMessage(item.error)));
      if (item.state !== "done") {
        const meter = el("progress", { max: 1, "aria-label": `${methodTitle(method)}: progress` });
        if (item.progress) meter.value = item.progress;
        return el("tr", {}, name, el("td", { colSpan: 3 }, item.state === "cancelled" ? "cancelled" : meter));
      }
      const gain =
        random?.deletion_auc != null && item !== random
          ? item.insertion_auc - item.deletion_auc - (random.insertion_auc - random.deletion_auc)
          : null;
      return el(
        "tr",
        {},
        name,
        el("td", { class: several && -item.deletion_auc === bestDeletion ? "best" : "" }, area(item.deletion_auc)),
        el("td", { class: several && item.insertion_auc === bestInsertion ? "best" : "" }, area(item.insertion_auc)),
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
          head("Deletion", "AUC, ↓ better"),
          head("Insertion", "AUC, ↑ better"),
          head("Gain over random", "insertion − deletion, ↑ better"),
        ),
      ),
      el("tbody", {}, ...rows),
    );
  }
}

const head = (name, note) => el("th", { scope: "col" }, name, el("small", {}, note));
const area = (value) => (value == null ? "–" : value.toFixed(3));
const label = (x, y, text, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
