/** The maps: one large, all of them as cards beside it, and one cursor over all. */

import { verdictBadge, worstCheck } from "./about.js";
import {
  colourLegend,
  combinedState,
  mapProperties,
  methodTitle,
  placeCursor,
  resizeCanvas,
  setLines,
  waitingText,
} from "./captions.js";
import { DIVERGING, PAIR, SEQUENTIAL, drawImage, drawMap, drawPair } from "./colour.js";
import { el, errorMessage, iconButton, oncePerFrame, setText } from "./dom.js";
import { formatNumber, formatShare, mapOf, ordinal, patchValues } from "./maps.js";
import { summarise } from "./summary.js";

const LARGE_SIZE = 768;
/** Longest side of an original image on the canvas. */
const ORIGINAL_SIZE = 960;
const CARD_SIZE = 256;
const PATCH_HINT = "Point at a patch to read its relevance; click to keep it selected.";
const REGION_HINT = "Point at a patch to read its relevance; click a point or brush over patches to explain them.";
/** The key of the card that shows the image. */
const IMAGE = "image";

export class MapComparison {
  /**
   * @param on {focus(spec), remove(spec), cancel(spec), retry(spec), attention(patch)}
   */
  constructor(on) {
    this.on = on;
    this.zoom = document.getElementById("zoom");
    this.figure = document.getElementById("main-figure");
    this.mainMap = document.getElementById("main-map");
    this.readout = document.getElementById("readout");
    this.live = document.getElementById("main-map-live");
    this.grid = document.getElementById("map-grid");
    this.legends = document.getElementById("legends");
    this.cards = new Map();
    this.patch = null;
    this.pinned = null;
    this.update = oncePerFrame(() => this.#draw());
    this.#addPointerEvents(this.mainMap, true);
    this.#addKeyEvents();
    this.attentionButton = el("button", { type: "button", class: "secondary" }, "Show attention");
    this.attentionButton.addEventListener("click", () => this.on.attention(this.pinned ?? this.patch));
    this.enlargeButton = el("button", { type: "button", class: "secondary" }, "Enlarge");
    this.enlargeButton.addEventListener("click", () => this.#openZoom());
    document.getElementById("zoom-close").addEventListener("click", () => this.zoom.close());
    this.zoom.addEventListener("click", (event) => {
      if (event.target === this.zoom) this.zoom.close();
    });
    this.readoutText = el("span", {});
    this.pinButton = el("button", { type: "button", class: "secondary", id: "pin" }, "Pin");
    this.pinButton.title = "Keep this result for comparison with others";
    this.readout.append(
      this.readoutText,
      el("span", { class: "readout-actions" }, this.attentionButton, this.enlargeButton, this.pinButton),
    );
    this.#drawReadouts();
  }

  /**
   * @param scene {image, original, grid, size: [h, w], methods: [info, …], item(spec, target), check(spec, target),
   *   targets, className(index), style, shownClasses, focus, ahead}
   */
  show(scene) {
    if (this.scene && scene.image.element !== this.scene.image.element && scene.image.model !== this.scene.image.model)
      this.patch = this.pinned = null;
    this.scene = scene;
    this.update();
  }

  #draw() {
    const { scene } = this;
    if (!scene?.image) return;
    const canvas = this.mainMap.querySelector("canvas");
    const focus = scene.methods.find((m) => m.spec === scene.focus) ?? scene.methods[0];
    this.#resizeMain(canvas);
    this.#drawCanvas(canvas, focus.spec, true);
    this.#drawCaption(focus);
    if (this.zoom.open) this.#drawZoom();
    const keys = [IMAGE, ...scene.methods.map((m) => m.spec)];
    for (const [key, card] of this.cards) {
      if (keys.includes(key)) continue;
      card.root.remove();
      this.cards.delete(key);
    }
    keys.forEach((key, position) => {
      const card = this.cards.get(key) ?? this.#createCard(key);
      if (this.grid.children[position] !== card.root)
        this.grid.insertBefore(card.root, this.grid.children[position] ?? null);
      this.#drawCard(card, key, scene.methods[position - 1], focus.spec);
    });
    this.grid.dataset.count = String(keys.length);
    this.grid.parentElement.classList.toggle("pair", scene.targets.length > 1);
    this.#drawLegends();
    this.#drawReadouts();
  }

  /** The part of the large map that is the model's input, as fractions. */
  get #box() {
    return this.scene?.original?.box ?? [0, 0, 1, 1];
  }

  #resizeMain(canvas, longest = 0) {
    const { original, size } = this.scene;
    if (!original) {
      resizeCanvas(canvas, size, longest || LARGE_SIZE);
      return;
    }
    const { naturalWidth: w, naturalHeight: h } = original.element;
    const scale = (longest || ORIGINAL_SIZE) / Math.max(w, h);
    const [width, height] = [Math.round(w * scale), Math.round(h * scale)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height, drawnKey: "" });
  }

  /** Show the large map as large as the window allows. */
  #openZoom() {
    if (!this.scene) return;
    this.zoom.showModal();
    this.#drawZoom();
  }

  #drawZoom() {
    const canvas = this.zoom.querySelector("canvas");
    const focus = this.scene.methods.find((m) => m.spec === this.scene.focus) ?? this.scene.methods[0];
    this.#resizeMain(canvas, 1600);
    this.#drawCanvas(canvas, focus.spec, true);
    setText(document.getElementById("zoom-title"), this.#captionText(focus));
  }

  /** Draw a method's map, or the image until it is ready; a canvas that already shows it is not redrawn. */
  #drawCanvas(canvas, spec, isMain = false) {
    const { scene } = this;
    const { style, shownClasses, targets } = scene;
    const image = (isMain && scene.original) || scene.image;
    const maps = targets.map((target) => mapOf(scene.item(spec, target)));
    const which = targets.length < 2 ? 0 : { both: 2, first: 0, second: 1 }[shownClasses];
    const chosen = which === 2 ? maps : [maps[which]];
    const ready = chosen.every(Boolean);
    const state = ready ? [which, JSON.stringify(style)] : [];
    const drawnKey = [image.id, spec, ...state].join(" ");
    const same = canvas.drawnKey === drawnKey && chosen.every((map, i) => map === canvas.maps?.[i]);
    if (same && canvas.drawnWidth === canvas.width) return;
    Object.assign(canvas, { drawnKey, maps: chosen, drawnWidth: canvas.width });
    if (!ready) drawImage(canvas, image);
    else if (which === 2) drawPair(canvas, image, maps, style);
    else drawMap(canvas, image, chosen[0], style);
    if (isMain) canvas.dataset.shows = ready ? spec : IMAGE;
    else canvas.dataset.ready = String(ready);
  }

  #captionText(method) {
    const item = this.scene.item(method.spec, this.scene.targets[0]);
    return [methodTitle(method), ...mapProperties(method, item)].join("  ·  ");
  }

  #drawCaption(method) {
    const caption = this.figure.querySelector("figcaption");
    const worst = worstCheck(this.scene.targets.map((target) => this.scene.check(method.spec, target)));
    const drawnKey = JSON.stringify([this.#captionText(method), worst?.check?.verdict]);
    if (caption.drawnKey !== drawnKey) {
      caption.drawnKey = drawnKey;
      caption.replaceChildren(el("span", {}, this.#captionText(method)), verdictBadge(worst));
    }
    const map = mapOf(this.scene.item(method.spec, this.scene.targets[0]));
    setText(document.getElementById("main-map-summary"), map ? summarise(map, this.scene.grid) : "");
    this.figure.classList.toggle("chance", worst?.check?.verdict === "no better than chance");
    const classes = this.scene.targets.map((t) => this.scene.className(t)).join(" and ");
    this.mainMap.setAttribute("aria-label", `${method.title} map for ${classes} over the image`);
  }

  #createCard(key) {
    const canvas = el("canvas", { width: CARD_SIZE, height: CARD_SIZE });
    const cursor = el("span", { class: "cursor", hidden: true });
    const map = el("div", { class: "map" }, canvas, cursor);
    const head = el("div", { class: "card-head" });
    const note = el("div", { class: "card-note" });
    const readout = el("p", { class: "readout" });
    const root = el("div", { class: "map-card", role: "listitem", data: { method: key } }, head, map, note, readout);
    const card = { root, canvas, note, readout, noteKey: "" };
    if (key === IMAGE) head.append(el("span", { class: "name" }, "Image"));
    else {
      card.title = el("button", { type: "button", class: "name", "aria-pressed": "false" });
      card.title.addEventListener("click", () => this.on.focus(key));
      card.remove = iconButton("close", "", () => this.on.remove(key), "icon small");
      head.append(card.title, card.remove);
    }
    this.#addPointerEvents(map);
    if (key !== IMAGE)
      map.addEventListener("click", () => {
        this.on.focus(key);
        if (!isInView(this.figure)) this.figure.scrollIntoView({ block: "start" });
      });
    this.cards.set(key, card);
    return card;
  }

  #drawCard(card, key, method, focus) {
    resizeCanvas(card.canvas, this.scene.size, CARD_SIZE);
    if (key === IMAGE) {
      setText(card.root.querySelector(".name"), this.scene.inputName);
      if (card.canvas.drawnKey !== this.scene.image.id) drawImage(card.canvas, this.scene.image);
      card.canvas.drawnKey = this.scene.image.id;
      return;
    }
    const items = this.scene.targets.map((target) => this.scene.item(key, target)).filter(Boolean);
    setText(card.title, methodTitle(method));
    card.title.title = [`Enlarge ${methodTitle(method)}`, method.summary].filter(Boolean).join(". ");
    card.title.setAttribute("aria-pressed", String(key === focus));
    card.remove.setAttribute("aria-label", `Remove ${methodTitle(method)}`);
    card.remove.title = `Remove ${methodTitle(method)}`;
    card.remove.hidden = this.scene.methods.length < 2;
    card.root.classList.toggle("focus", key === focus && this.scene.methods.length > 1);
    this.#drawCanvas(card.canvas, key);
    const worst = worstCheck(this.scene.targets.map((target) => this.scene.check(key, target)));
    card.root.classList.toggle("chance", worst?.check?.verdict === "no better than chance");
    this.#drawNote(card, method, items, worst);
  }

  /** Draw the note of a card: progress, an error, or the properties of the map. */
  #drawNote(card, method, items, worst) {
    const state = combinedState(items);
    card.root.dataset.state = state;
    const progress = items.length
      ? items.reduce((sum, item) => sum + (item.state === "done" ? 1 : (item.progress ?? 0)), 0) / items.length
      : 0;
    if (state === "running" || state === "queued") {
      if (card.noteKey !== "open") {
        const waiting = el("span", { class: "waiting" });
        const meter = el("progress", { max: 1, "aria-label": `${methodTitle(method)}: progress` });
        const cancel = el(
          "button",
          { type: "button", class: "secondary", "aria-label": `Cancel ${methodTitle(method)}` },
          "Cancel",
        );
        cancel.addEventListener("click", () => this.on.cancel(card.root.dataset.method));
        card.note.replaceChildren(meter, waiting, cancel);
      }
      const meter = card.note.querySelector("progress");
      meter.hidden = state === "queued";
      if (state === "running" && progress > 0) meter.value = progress;
      else meter.removeAttribute("value");
      setText(card.note.querySelector(".waiting"), waitingText(state, items, this.scene.ahead));
      card.noteKey = "open";
      return;
    }
    const noteKey = JSON.stringify([state, worst?.check, items.map((item) => [item.seconds, item.flat, item.error])]);
    if (card.noteKey === noteKey) return;
    card.noteKey = noteKey;
    const retry = el("button", { type: "button", class: "secondary" }, "Try again");
    retry.addEventListener("click", () => this.on.retry(card.root.dataset.method));
    if (state === "failed") {
      const error = items.find((item) => item.error)?.error ?? { what: "The method failed." };
      card.note.replaceChildren(errorMessage(error), retry);
    } else if (state === "cancelled") card.note.replaceChildren(el("span", {}, "Cancelled"), retry);
    else {
      const constant = items.some((item) => item.flat);
      card.note.replaceChildren(
        verdictBadge(worst),
        el("span", { class: "meta" }, mapProperties(method, items[0]).join(" · ")),
        constant ? el("span", { class: "warning" }, "Constant map: all patches have the same relevance") : "",
      );
    }
  }

  #drawLegends() {
    const { scene } = this;
    const pair = scene.targets.length > 1 && scene.shownClasses === "both";
    const signs = new Set(
      scene.methods.map((m) => mapOf(scene.item(m.spec, scene.targets[0]))?.signed).filter((s) => s !== undefined),
    );
    const drawnKey = JSON.stringify([pair && scene.targets, [...signs], scene.style.sequential, scene.style.diverging]);
    if (this.legends.drawnKey === drawnKey) return;
    this.legends.drawnKey = drawnKey;
    const legends = [];
    if (pair)
      scene.targets.forEach((target, i) => {
        const dot = el("span", { class: "dot", "aria-hidden": "true" });
        dot.style.background = `rgb(${PAIR[i]})`;
        legends.push(el("span", { class: "legend" }, dot, scene.className(target)));
      });
    else {
      if (signs.has(false)) legends.push(colourLegend(scene.style.sequential, ["least", "most relevant"], SEQUENTIAL));
      if (signs.has(true)) legends.push(colourLegend(scene.style.diverging, ["against", "0", "for"], DIVERGING));
    }
    this.legends.replaceChildren(...legends);
  }

  #addPointerEvents(map, isMain = false) {
    /** The patch below the pointer; null where the original was cropped away. */
    const patchAt = (event) => {
      const bounds = map.getBoundingClientRect();
      const [left, top, right, bottom] = isMain ? this.#box : [0, 0, 1, 1];
      const [rows, columns] = this.scene.grid;
      const x = ((event.clientX - bounds.left) / bounds.width - left) / (right - left);
      const y = ((event.clientY - bounds.top) / bounds.height - top) / (bottom - top);
      if (isMain && (x < 0 || x > 1 || y < 0 || y > 1)) return null;
      const cell = (v, n) => Math.min(n - 1, Math.max(0, Math.floor(v * n)));
      return cell(y, rows) * columns + cell(x, columns);
    };
    map.addEventListener("pointermove", (event) => {
      if (this.scene) this.setPatch(patchAt(event));
    });
    map.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.setPatch(this.pinned);
    });
    map.addEventListener("click", (event) => {
      if (!this.scene || !isMain) return;
      // A click keeps the patch, so that the button for its attention can be reached; a second one releases it.
      const patch = patchAt(event);
      this.pinned = patch === this.pinned ? null : patch;
      this.patch = undefined;
      this.setPatch(patch);
    });
  }

  #addKeyEvents() {
    this.mainMap.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!this.scene || event.target !== this.mainMap) return; // a box on the map has its own keys
      const [rows, columns] = this.scene.grid;
      const current = this.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
      if (event.key in steps) {
        event.preventDefault();
        const [dr, dc] = steps[event.key];
        const row = Math.min(rows - 1, Math.max(0, Math.floor(current / columns) + dr));
        const column = Math.min(columns - 1, Math.max(0, (current % columns) + dc));
        this.pinned = row * columns + column;
        this.setPatch(this.pinned);
        clearTimeout(this.announcement);
        this.announcement = setTimeout(() => setText(this.live, this.readoutText.textContent), 250);
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.setPatch(current);
        if (this.scene.canAttend !== false) this.on.attention(current);
      } else if (event.key === "Escape") {
        this.pinned = null;
        this.setPatch(null);
      }
    });
  }

  /** Move the cursor of all maps to a patch, or hide it. */
  setPatch(patch) {
    if (patch === this.patch) return;
    this.patch = patch;
    this.#drawReadouts();
  }

  #drawReadouts() {
    const { scene, patch } = this;
    for (const cursor of document.querySelectorAll("#map-grid .cursor")) placeCursor(cursor, patch, scene?.grid);
    const cursor = this.mainMap.querySelector(".cursor");
    placeCursor(cursor, patch, scene?.grid, this.#box);
    cursor.classList.toggle("pinned", patch !== null && patch === this.pinned);
    this.attentionButton.hidden = scene?.canAttend === false;
    this.attentionButton.disabled = (this.pinned ?? patch) === null;
    if (!scene || patch === null) {
      const hint = scene?.kind === "region" ? REGION_HINT : PATCH_HINT;
      setText(this.readoutText, scene ? hint : "");
      for (const card of this.cards.values()) setLines(card.readout, []);
      return;
    }
    const [, columns] = scene.grid;
    const where = placeText(Math.floor(patch / columns), patch % columns, scene);
    const focus = scene.methods.find((m) => m.spec === scene.focus) ?? scene.methods[0];
    const values = this.#values(focus.spec, patch, true);
    setText(this.readoutText, values.length > 1 ? [where, ...values].join("\n") : `${where}: ${values[0]}`);
    for (const [key, card] of this.cards) setLines(card.readout, key === IMAGE ? [where] : this.#values(key, patch));
  }

  #values(spec, patch, long = false) {
    const { scene } = this;
    return scene.targets.map((target) => {
      const map = mapOf(scene.item(spec, target));
      if (!map) return "–";
      const { means, units, ranks } = patchValues(map, scene.grid);
      if (!long) return `${formatNumber(means[patch])} · ${ordinal(ranks[patch])}`;
      const name = scene.targets.length > 1 ? `${scene.className(target)} ` : "";
      const percent = formatShare(units[patch]);
      const strength = name ? percent : `${percent} of the maximum`;
      return `${name}${formatNumber(means[patch])}, ${strength}, ${ordinal(ranks[patch])} of ${ranks.length}`;
    });
  }
}

/** Where a patch is: its row and column, or seconds and hertz of a spectrogram. */
function placeText(row, column, { grid: [rows, columns], axes }) {
  if (!axes) return `Row ${row + 1}, column ${column + 1}`;
  const at = (i, n, end, digits) => ((i / n) * end).toFixed(digits);
  const time = `${at(column, columns, axes.seconds, 2)}–${at(column + 1, columns, axes.seconds, 2)} s`;
  return `${time}, ${at(rows - row - 1, rows, axes.hertz, 0)}–${at(rows - row, rows, axes.hertz, 0)} Hz`;
}

/** Whether the top of an element is visible. */
function isInView(element) {
  const { top } = element.getBoundingClientRect();
  return top >= 0 && top < window.innerHeight * 0.6;
}
