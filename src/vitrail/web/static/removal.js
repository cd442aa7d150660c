/** See the test happen: patches are removed by a slider or by hand, and the probabilities follow. */

import * as api from "./api.js";
import { el, oncePerFrame, setText } from "./dom.js";
import { formatPercent, formatShare, patchRanks, wholeMapOf } from "./maps.js";
import { fieldsOf, isContrast } from "./targets.js";

const find = (id) => document.getElementById(id);
/** Milliseconds without a change after which the model is evaluated. */
const DELAY = 150;
/** Share of the patches that is removed at first, as in the check. */
const SHARE = 10;
const CLASSES = 5;
const SIZE = 224;

export class PatchRemoval {
  constructor() {
    this.slider = find("removal-share");
    this.output = find("removal-share-text");
    this.canvases = [...document.querySelectorAll("#removal canvas")];
    this.result = find("removal-result");
    this.bars = find("removal-classes");
    this.note = find("removal-note");
    this.reset = find("removal-reset");
    this.chosen = null;
    this.draw = oncePerFrame(() => this.#draw());
    this.slider.addEventListener("input", () => {
      this.chosen = null;
      this.#update();
    });
    this.reset.addEventListener("click", () => {
      this.chosen = null;
      this.slider.value = String(SHARE);
      this.#update();
      this.slider.focus();
    });
    this.#addBrush(this.canvases[1]);
  }

  /**
   * @param scene as of `MapComparison`
   * @param input {model, picture}
   * @param method the method whose map orders the patches
   * @param classes {top, name(index), probability(index)}
   */
  show(scene, input, method, classes) {
    const item = scene.item(method.spec, scene.targets[0]);
    const map = wholeMapOf(item);
    const root = find("removal");
    root.hidden = isContrast(scene.targets[0]) || ["failed", "cancelled"].includes(item?.state);
    if (!map) setText(this.result, "Waiting for the map …");
    if (root.hidden || !map) return;
    setText(find("removal-whole"), scene.inputName);
    const key = JSON.stringify([input, method.spec, scene.targets]);
    const moved = this.scene?.time !== scene.time;
    Object.assign(this, { scene, input, classes, map });
    if (this.key === key && this.shownMap === map) {
      if (moved) this.draw(); // another frame of the same video
      return;
    }
    if (this.key !== key) this.chosen = null;
    Object.assign(this, { key, shownMap: map, found: null });
    setText(find("removal-method"), method.title);
    this.bars.replaceChildren();
    this.#update();
    this.#noteBorder();
  }

  /** The patches that are removed: those chosen by hand, or the most relevant ones. */
  get removed() {
    if (this.chosen) return [...this.chosen].sort((a, b) => a - b);
    const ranks = patchRanks(this.map, this.scene.grid, this.scene.times);
    const count = Math.min(ranks.length - 1, Math.round((Number(this.slider.value) / 100) * ranks.length));
    return Array.from(ranks.keys())
      .sort((a, b) => ranks[a] - ranks[b])
      .slice(0, count);
  }

  /** Number of patches of a frame, and of the whole input. */
  get #size() {
    return this.scene.grid[0] * this.scene.grid[1];
  }

  get #total() {
    return this.#size * this.scene.times;
  }

  /** The first patch of the frame that is shown. */
  get #offset() {
    return this.#size * Math.min(this.scene.times - 1, Math.floor(this.scene.time * this.scene.times));
  }

  /** The classes that are listed: the explained ones, then the most probable. */
  get #listed() {
    const top = this.classes.top.slice(0, CLASSES).map((one) => one.index);
    return [...new Set([...this.scene.targets, ...top])];
  }

  #update() {
    const count = this.removed.length;
    const total = this.#total;
    setText(this.output, `${formatShare(count / total)} (${count} of ${total} patches)`);
    this.slider.setAttribute("aria-valuetext", `${formatShare(count / total)} (${count} of ${total} patches)`);
    this.reset.hidden = !this.chosen && Number(this.slider.value) === SHARE;
    if (String(this.found?.removed) !== String(this.removed)) this.found = null;
    this.result.dataset.state = "running";
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#evaluate(), DELAY);
  }

  async #evaluate() {
    this.abort?.abort();
    const { removed, input } = this;
    const classes = this.#listed;
    if (!removed.length || removed.length === this.#total) {
      this.found = null;
      this.draw();
      return;
    }
    const abort = (this.abort = new AbortController());
    this.result.dataset.state = "running";
    try {
      const found = await api.remove({ ...input, removed, classes: classes.map(fieldsOf) }, abort.signal);
      if (abort.signal.aborted) return;
      this.found = { ...found, classes, removed };
      this.result.dataset.state = "done";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.found = null;
      this.result.dataset.state = "failed";
      setText(this.result, `Not evaluated: ${error.what ?? error}`);
      return;
    }
    this.draw();
  }

  #draw() {
    const { removed, found } = this;
    const others = found?.example ?? [];
    const [first, end] = [this.#offset, this.#offset + this.#size];
    const shown = (patches) => patches.filter((one) => one >= first && one < end).map((one) => one - first);
    [[], removed, others].forEach((patches, i) => this.#drawImage(this.canvases[i], shown(patches)));
    const target = this.scene.targets[0];
    const whole = this.classes.probability(target);
    if (!found) {
      setText(this.result, removed.length ? "Evaluating …" : "Nothing is removed.");
      return;
    }
    const at = found.classes.indexOf(target);
    setText(
      this.result,
      `${this.classes.name(target)}: ${formatPercent(whole)} → ${formatPercent(found.without[at])}, ` +
        `elsewhere ${formatPercent(found.elsewhere[at])}`,
    );
    this.bars.replaceChildren(...found.classes.map((index, i) => this.#bar(index, found.without[i])));
  }

  #bar(index, after) {
    const before = this.classes.probability(index) ?? 0;
    const bar = el("span", { class: "change-bar", "aria-hidden": "true" });
    bar.style.setProperty("--before", String(before));
    bar.style.setProperty("--after", String(after ?? 0));
    return el(
      "li",
      { data: { class: String(index) } },
      el("span", { class: "name" }, this.classes.name(index)),
      bar,
      el("span", { class: "value" }, `${formatPercent(before)} → ${formatPercent(after)}`),
    );
  }

  /** Draw the model's input with some patches hatched. */
  #drawImage(canvas, patches) {
    const { element } = this.scene.image;
    const [height, width] = this.scene.size;
    canvas.width = SIZE;
    canvas.height = Math.round((SIZE * height) / width);
    const context = canvas.getContext("2d");
    context.drawImage(element, 0, 0, canvas.width, canvas.height);
    const [rows, columns] = this.scene.grid;
    const [w, h] = [canvas.width / columns, canvas.height / rows];
    for (const patch of patches) {
      const [x, y] = [(patch % columns) * w, Math.floor(patch / columns) * h];
      context.fillStyle = "#7d7d7d";
      context.fillRect(x, y, w, h);
      context.strokeStyle = "#b9b9b9";
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, y + h);
      context.lineTo(x + w, y);
      context.stroke();
    }
  }

  /** Clicking or brushing removes patches, or puts them back if the first one was removed. */
  #addBrush(canvas) {
    let removes = null;
    const patchAt = (event) => {
      const bounds = canvas.getBoundingClientRect();
      const [rows, columns] = this.scene.grid;
      const cell = (v, n) => Math.min(n - 1, Math.max(0, Math.floor(v * n)));
      const row = cell((event.clientY - bounds.top) / bounds.height, rows);
      return this.#offset + row * columns + cell((event.clientX - bounds.left) / bounds.width, columns);
    };
    const brush = (patch) => {
      this.chosen ??= new Set(this.removed);
      if (removes) this.chosen.add(patch);
      else this.chosen.delete(patch);
      this.#update();
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.scene) return;
      const patch = patchAt(event);
      removes = !new Set(this.removed).has(patch);
      canvas.setPointerCapture(event.pointerId);
      brush(patch);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (removes !== null) brush(patchAt(event));
    });
    for (const name of ["pointerup", "pointercancel"])
      canvas.addEventListener(name, () => {
        removes = null;
      });
    this.#addKeys(canvas, (patch) => {
      removes = !new Set(this.removed).has(patch);
      brush(patch);
      removes = null;
    });
  }

  /** Arrow keys move a cursor over the patches; Space or Enter removes or restores the patch. */
  #addKeys(canvas, toggle) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    canvas.addEventListener("keydown", (event) => {
      if (!this.scene || !(event.key in steps || event.key === " " || event.key === "Enter")) return;
      event.preventDefault();
      const [rows, columns] = this.scene.grid;
      this.cursor ??= Math.floor(rows / 2) * columns + Math.floor(columns / 2);
      if (event.key in steps) {
        const [down, right] = steps[event.key];
        const row = Math.min(rows - 1, Math.max(0, Math.floor(this.cursor / columns) + down));
        this.cursor = row * columns + Math.min(columns - 1, Math.max(0, (this.cursor % columns) + right));
      } else toggle(this.#offset + this.cursor);
      const removed = new Set(this.removed).has(this.#offset + this.cursor) ? "removed" : "kept";
      setText(
        find("removal-live"),
        `Row ${Math.floor(this.cursor / columns) + 1}, column ${(this.cursor % columns) + 1}: ${removed}`,
      );
    });
  }

  /** A note if the maximum lies at the border: what removing the marked border patches alone does. */
  async #noteBorder() {
    const { key, map, scene, input } = this;
    const [rows, columns] = scene.grid;
    this.note.hidden = true;
    if (scene.times > 1 || scene.axes) return; // frames and spectrograms have other borders
    const ranks = patchRanks(map, scene.grid);
    const isBorder = (patch) =>
      [0, rows - 1].includes(Math.floor(patch / columns)) || [0, columns - 1].includes(patch % columns);
    const isCorner = (patch) =>
      [0, rows - 1].includes(Math.floor(patch / columns)) && [0, columns - 1].includes(patch % columns);
    const best = ranks.indexOf(1);
    if (Math.min(rows, columns) < 4 || !isBorder(best)) return;
    const limit = Math.max(1, Math.round(0.1 * ranks.length));
    const marked = Array.from(ranks.keys()).filter((patch) => ranks[patch] <= limit && isBorder(patch));
    const target = scene.targets[0];
    const at = this.#listed.indexOf(target);
    let found;
    try {
      found = await api.remove({ ...input, removed: marked, classes: this.#listed.map(fieldsOf) });
    } catch {
      return;
    }
    if (key !== this.key) return;
    const where = isCorner(best) ? "in a corner" : "at the border";
    setText(
      this.note,
      `The maximum lies ${where}. Attention often collects there without a reason in the image (attention sinks). ` +
        `Removing the ${marked.length} marked border patches alone: ` +
        `${formatPercent(this.classes.probability(target))} → ${formatPercent(found.without[at])}.`,
    );
    this.note.hidden = false;
  }
}
