/** The light table: one map large on the plate, all of them as slides beside it, one cursor over all. */

import { fit, lines, place, remarks, scale, states, title } from "./captions.js";
import { DIVERGING, PAIR, SEQUENTIAL, paint, paintPair, paintPicture } from "./colour.js";
import { el, iconButton, oncePerFrame, trouble, write } from "./dom.js";
import { byPatch, figures, mapOf, ordinal } from "./maps.js";

const PLATE = 512;
const SLIDE = 256;
const PICTURE = "picture";

export class Table {
  /**
   * @param on {focus(spec), remove(spec), stop(spec), again(spec), attend(patch)}
   */
  constructor(on) {
    this.on = on;
    this.plate = document.getElementById("plate");
    this.glass = document.getElementById("glass");
    this.reading = document.getElementById("reading");
    this.live = document.getElementById("glass-live");
    this.slides = document.getElementById("slides");
    this.legends = document.getElementById("legends");
    this.made = new Map();
    this.patch = null;
    this.update = oncePerFrame(() => this.#draw());
    this.#wire(this.glass);
    this.#keys();
    this.attend = el("button", { type: "button", class: "quiet" }, "What does it attend to?");
    this.attend.addEventListener("click", () => this.on.attend(this.patch));
    this.words = el("span", {});
    this.reading.append(this.words, this.attend);
    this.#read();
  }

  /**
   * @param scene {picture, grid, size: [h, w], methods: [about, …], item(spec, target), targets, name(index), look,
   *   side, focus}
   */
  show(scene) {
    if (this.scene && scene.picture !== this.scene.picture) this.patch = null;
    this.scene = scene;
    this.update();
  }

  #draw() {
    const { scene } = this;
    if (!scene?.picture) return;
    const canvas = this.glass.querySelector("canvas");
    fit(canvas, scene.size, PLATE);
    const focus = scene.methods.find((m) => m.spec === scene.focus) ?? scene.methods[0];
    this.#face(canvas, focus.spec, true);
    this.#caption(focus);
    const keys = [PICTURE, ...scene.methods.map((m) => m.spec)];
    for (const [key, slide] of this.made) {
      if (keys.includes(key)) continue;
      slide.root.remove();
      this.made.delete(key);
    }
    keys.forEach((key, place) => {
      const slide = this.made.get(key) ?? this.#make(key);
      if (this.slides.children[place] !== slide.root)
        this.slides.insertBefore(slide.root, this.slides.children[place] ?? null);
      this.#slide(slide, key, scene.methods[place - 1], focus.spec);
    });
    this.slides.dataset.count = String(keys.length);
    this.slides.parentElement.classList.toggle("pair", scene.targets.length > 1);
    this.#legend();
    this.#read();
  }

  /** Paint a method's map, or the picture where there is none yet; a canvas that shows it already is left alone. */
  #face(canvas, spec, plate = false) {
    const { scene } = this;
    const { look, side, targets, picture } = scene;
    const maps = targets.map((target) => mapOf(scene.item(spec, target)));
    const which = targets.length < 2 ? 0 : { both: 2, first: 0, second: 1 }[side];
    const chosen = which === 2 ? maps : [maps[which]];
    const ready = chosen.every(Boolean);
    const state = ready ? [which, JSON.stringify(look)] : [];
    const sign = [picture.id, spec, ...state].join(" ");
    const same = canvas.sign === sign && chosen.every((map, i) => map === canvas.maps?.[i]);
    if (same && canvas.size === canvas.width) return;
    Object.assign(canvas, { sign, maps: chosen, size: canvas.width });
    if (!ready) paintPicture(canvas, picture);
    else if (which === 2) paintPair(canvas, picture, maps, look);
    else paint(canvas, picture, chosen[0], look);
    if (plate) canvas.dataset.shows = ready ? spec : PICTURE;
    else canvas.dataset.ready = String(ready);
  }

  #caption(method) {
    const caption = this.plate.querySelector("figcaption");
    const item = this.scene.item(method.spec, this.scene.targets[0]);
    write(caption, [title(method), ...remarks(method, item)].join("  ·  "));
    const asked = this.scene.targets.map((t) => this.scene.name(t)).join(" and ");
    this.glass.setAttribute("aria-label", `${method.title} map for ${asked} over the picture`);
  }

  #make(key) {
    const canvas = el("canvas", { width: SLIDE, height: SLIDE });
    const cursor = el("span", { class: "cursor", hidden: true });
    const glass = el("div", { class: "glass" }, canvas, cursor);
    const head = el("div", { class: "slide-head" });
    const note = el("div", { class: "slide-note" });
    const reading = el("p", { class: "reading" });
    const root = el("div", { class: "slide", role: "listitem", data: { method: key } }, head, glass, note, reading);
    const slide = { root, canvas, glass, head, note, reading, state: "" };
    if (key === PICTURE) head.append(el("span", { class: "name" }, "Picture"));
    else {
      slide.title = el("button", { type: "button", class: "name", "aria-pressed": "false" });
      slide.title.addEventListener("click", () => this.on.focus(key));
      slide.close = iconButton("close", "", () => this.on.remove(key), "icon small");
      head.append(slide.title, slide.close);
    }
    this.#wire(glass);
    this.made.set(key, slide);
    return slide;
  }

  #slide(slide, key, method, focus) {
    fit(slide.canvas, this.scene.size, SLIDE);
    if (key === PICTURE) {
      if (slide.canvas.sign !== this.scene.picture.id) paintPicture(slide.canvas, this.scene.picture);
      slide.canvas.sign = this.scene.picture.id;
      return;
    }
    const items = this.scene.targets.map((target) => this.scene.item(key, target)).filter(Boolean);
    write(slide.title, title(method));
    slide.title.title = `${method.title}: show large`;
    slide.title.setAttribute("aria-pressed", String(key === focus));
    slide.close.setAttribute("aria-label", `Remove ${title(method)}`);
    slide.close.title = `Remove ${title(method)}`;
    slide.close.hidden = this.scene.methods.length < 2;
    slide.root.classList.toggle("focus", key === focus && this.scene.methods.length > 1);
    this.#face(slide.canvas, key);
    this.#note(slide, method, items);
  }

  /** Under a slide: how far it is, what went wrong, or what it took. */
  #note(slide, method, items) {
    const state = states(items);
    slide.root.dataset.state = state;
    const progress = items.length
      ? items.reduce((sum, item) => sum + (item.state === "done" ? 1 : (item.progress ?? 0)), 0) / items.length
      : 0;
    if (state === "running" || state === "queued") {
      if (slide.state !== "open") {
        const meter = el("progress", { max: 1, "aria-label": `${title(method)}: progress` });
        const stop = el(
          "button",
          { type: "button", class: "quiet", "aria-label": `Cancel ${title(method)}` },
          "Cancel",
        );
        stop.addEventListener("click", () => this.on.stop(slide.root.dataset.method));
        slide.note.replaceChildren(meter, stop);
      }
      const meter = slide.note.querySelector("progress");
      if (state === "running" && progress > 0) meter.value = progress;
      else meter.removeAttribute("value");
      slide.state = "open";
      return;
    }
    const sign = JSON.stringify([state, items.map((item) => [item.seconds, item.flat, item.error])]);
    if (slide.state === sign) return;
    slide.state = sign;
    const again = el("button", { type: "button", class: "quiet" }, "Try again");
    again.addEventListener("click", () => this.on.again(slide.root.dataset.method));
    if (state === "failed")
      slide.note.replaceChildren(trouble(items.find((item) => item.error)?.error ?? { what: "It failed." }), again);
    else if (state === "cancelled") slide.note.replaceChildren(el("span", {}, "Cancelled"), again);
    else {
      const flat = items.some((item) => item.flat);
      slide.note.replaceChildren(
        el("span", { class: "meta" }, remarks(method, items[0]).join(" · ")),
        flat ? el("span", { class: "warn" }, "Flat: all patches alike, this map says nothing") : "",
      );
    }
  }

  #legend() {
    const { scene } = this;
    const pair = scene.targets.length > 1 && scene.side === "both";
    const kinds = new Set(
      scene.methods.map((m) => mapOf(scene.item(m.spec, scene.targets[0]))?.signed).filter((s) => s !== undefined),
    );
    const sign = JSON.stringify([pair && scene.targets, [...kinds], scene.look.sequential, scene.look.diverging]);
    if (this.legends.sign === sign) return;
    this.legends.sign = sign;
    const keys = [];
    if (pair)
      scene.targets.forEach((target, i) => {
        const chip = el("span", { class: "dot", "aria-hidden": "true" });
        chip.style.background = `rgb(${PAIR[i]})`;
        keys.push(el("span", { class: "legend" }, chip, scene.name(target)));
      });
    else {
      if (kinds.has(false)) keys.push(scale(scene.look.sequential, ["least", "most relevant"], SEQUENTIAL));
      if (kinds.has(true)) keys.push(scale(scene.look.diverging, ["against", "0", "for"], DIVERGING));
    }
    this.legends.replaceChildren(...keys);
  }

  #wire(glass) {
    const at = (event) => {
      const box = glass.getBoundingClientRect();
      const [rows, columns] = this.scene.grid;
      const inside = (v, n) => Math.min(n - 1, Math.max(0, Math.floor(v * n)));
      return (
        inside((event.clientY - box.top) / box.height, rows) * columns +
        inside((event.clientX - box.left) / box.width, columns)
      );
    };
    glass.addEventListener("pointermove", (event) => {
      if (this.scene) this.point(at(event));
    });
    glass.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.point(null);
    });
    glass.addEventListener("click", (event) => {
      if (!this.scene) return;
      this.point(at(event));
      // A finger has no hover: the first touch reads, the button beside the reading opens.
      if (event.pointerType !== "touch") this.on.attend(this.patch);
    });
  }

  #keys() {
    this.glass.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!this.scene) return;
      const [rows, columns] = this.scene.grid;
      const now = this.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
      if (event.key in steps) {
        event.preventDefault();
        const [dr, dc] = steps[event.key];
        const row = Math.min(rows - 1, Math.max(0, Math.floor(now / columns) + dr));
        const column = Math.min(columns - 1, Math.max(0, (now % columns) + dc));
        this.point(row * columns + column);
        clearTimeout(this.speak);
        this.speak = setTimeout(() => write(this.live, this.words.textContent), 250);
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.point(now);
        this.on.attend(now);
      } else if (event.key === "Escape") this.point(null);
    });
  }

  /** Put the cursor on a patch in every glass, or take it away. */
  point(patch) {
    if (patch === this.patch) return;
    this.patch = patch;
    this.#read();
  }

  #read() {
    const { scene, patch } = this;
    for (const cursor of document.querySelectorAll("#plate .cursor, #slides .cursor"))
      place(cursor, patch, scene?.grid);
    this.attend.disabled = patch === null;
    if (!scene || patch === null) {
      write(this.words, scene ? "Point at a patch to read it, click to see what it attends to." : "");
      for (const slide of this.made.values()) lines(slide.reading, []);
      return;
    }
    const [, columns] = scene.grid;
    const where = `Row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
    const focus = scene.methods.find((m) => m.spec === scene.focus) ?? scene.methods[0];
    const told = this.#values(focus.spec, patch, true);
    write(this.words, told.length > 1 ? [where, ...told].join("\n") : `${where}: ${told[0]}`);
    for (const [key, slide] of this.made) lines(slide.reading, key === PICTURE ? [where] : this.#values(key, patch));
  }

  #values(spec, patch, long = false) {
    const { scene } = this;
    return scene.targets.map((target) => {
      const map = mapOf(scene.item(spec, target));
      if (!map) return "–";
      const { means, units, ranks } = byPatch(map, scene.grid);
      if (!long) return `${figures(means[patch])} · ${ordinal(ranks[patch])}`;
      const named = scene.targets.length > 1 ? `${scene.name(target)} ` : "";
      const share = `${Math.round(100 * units[patch])}\u00a0%`.replace("-", "−");
      const strength = named ? share : `${share} of the strongest`;
      return `${named}${figures(means[patch])}, ${strength}, ${ordinal(ranks[patch])} of ${ranks.length}`;
    });
  }
}
