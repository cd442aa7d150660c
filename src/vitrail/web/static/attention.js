/** What a patch or a piece of a word attends to: every layer and head small, one of them large. */

import * as api from "./api.js";
import { place } from "./captions.js";
import { paint, paintCells } from "./colour.js";
import { alarm, el, write } from "./dom.js";
import { average, decode, percent } from "./maps.js";
import { pieceOf, shade } from "./words.js";

const COLOURS = "glow";

export class Attention {
  constructor() {
    this.dialog = document.getElementById("attention");
    this.heading = document.getElementById("attention-title");
    this.lens = document.getElementById("lens");
    this.pieces = document.getElementById("pieces");
    this.reading = document.getElementById("lens-reading");
    this.heads = document.getElementById("heads");
    this.ask = 0;
    document.getElementById("attention-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.#walk();
  }

  /**
   * @param subject {model, picture} or {model, text}
   * @param token which patch, counted row by row, or which piece of a word
   * @param scene {picture, grid, size} of a picture, nothing for a text
   * @param words of a text, all its words: then the token is the number of a word, and its first piece is shown
   */
  async open(subject, token, scene = null, words = null) {
    Object.assign(this, { subject, scene });
    this.lens.hidden = !scene;
    this.pieces.hidden = Boolean(scene);
    this.chosen = null;
    if (!this.dialog.open) this.dialog.showModal();
    await this.#load(token);
    const piece = words && this.found?.tokens ? pieceOf(this.found.tokens, words, token) : token;
    if (piece !== this.token && this.dialog.open) await this.#load(piece);
  }

  async #load(token) {
    const ask = (this.ask += 1);
    this.token = token;
    this.dialog.setAttribute("aria-busy", "true");
    let found;
    try {
      found = await api.attention({ ...this.subject, token });
    } catch (error) {
      if (ask !== this.ask) return;
      this.dialog.close();
      alarm(error);
      return;
    }
    if (ask !== this.ask) return;
    this.found = found;
    this.layers = found.layers.map((layer) => layer.heads.map(decode));
    this.means = this.layers.map(average);
    const alike = this.means.every((map) => map.values.length === this.means[0].values.length);
    this.mean = alike ? average(this.means) : this.means.at(-1);
    this.#title();
    this.#grid();
    this.#choose(this.chosen ?? "mean");
    this.dialog.setAttribute("aria-busy", "false");
  }

  #title() {
    if (this.scene) {
      const [, columns] = this.scene.grid;
      const [row, column] = [Math.floor(this.token / columns) + 1, (this.token % columns) + 1];
      write(this.heading, `What the patch in row ${row}, column ${column} attends to`);
    } else write(this.heading, `What “${this.found.tokens?.[this.token] ?? this.token}” attends to`);
  }

  #grid() {
    const columns = Math.max(...this.layers.map((heads) => heads.length));
    const rows = [
      el(
        "tr",
        {},
        el("td", {}),
        el("th", { scope: "col" }, "mean"),
        ...Array.from({ length: columns }, (_, h) => el("th", { scope: "col" }, String(h + 1))),
      ),
    ];
    this.layers.forEach((heads, l) => {
      const cells = heads.map((map, h) => el("td", {}, this.#cell(map, `${l} ${h}`, `Layer ${l + 1}, head ${h + 1}`)));
      const mean = el(
        "td",
        { class: "mean" },
        this.#cell(this.means[l], `${l} mean`, `Layer ${l + 1}, mean of its heads`),
      );
      rows.push(el("tr", {}, el("th", { scope: "row" }, String(l + 1)), mean, ...cells));
    });
    const whole = el("td", { class: "mean" }, this.#cell(this.mean, "mean", "Mean of all layers"));
    rows.push(el("tr", { class: "all" }, el("th", { scope: "row" }, "all"), whole));
    const table = el(
      "table",
      {},
      el("caption", {}, "Layers downwards, heads across; each map by its own maximum"),
      ...rows,
    );
    this.heads.style.setProperty("--cell", `clamp(2.1rem, calc(min(36rem, 100vw - 6rem) / ${columns + 1.5}), 5rem)`);
    this.heads.replaceChildren(table);
    this.heads.classList.toggle("strips", !this.scene);
  }

  #cell(map, key, label) {
    const canvas = el("canvas", { class: "cell" });
    paintCells(canvas, { ...map, unit: upTo(map) }, COLOURS);
    const button = el(
      "button",
      { type: "button", class: "cell", "aria-label": label, "aria-pressed": "false", data: { key } },
      canvas,
    );
    const show = () => this.#choose(key);
    button.addEventListener("click", show);
    button.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") show();
    });
    button.addEventListener("focus", show);
    return button;
  }

  #map(key) {
    if (key === "mean") return [this.mean, "Mean of all layers"];
    const [l, h] = key.split(" ");
    if (h === "mean") return [this.means[l], `Layer ${Number(l) + 1}, mean of its heads`];
    return [this.layers[l][h], `Layer ${Number(l) + 1}, head ${Number(h) + 1}`];
  }

  #choose(key) {
    this.chosen = key;
    for (const button of this.heads.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.key === key));
    const [map, label] = this.#map(key);
    const total = map.values.reduce((sum, v) => sum + v, 0);
    const strongest = Math.max(...map.values);
    if (this.scene) {
      const canvas = this.lens.querySelector("canvas");
      const [height, width] = this.scene.size;
      canvas.height = Math.round((canvas.width * height) / width);
      const look = { opacity: 0.85, smooth: false, alone: false, sequential: COLOURS, diverging: "coldwarm" };
      paint(canvas, this.scene.picture, { ...map, signed: false, unit: upTo(map) }, look);
      place(this.lens.querySelector(".origin"), this.token, this.scene.grid);
      const rest = total < 0.995 ? `, ${percent(1 - total)} goes elsewhere (class token)` : "";
      write(
        this.reading,
        `${label}: the strongest patch gets ${percent(strongest)}${rest}. Click the picture for another patch.`,
      );
    } else {
      this.#words(map);
      write(this.reading, `${label}: the strongest piece gets ${percent(strongest)}. Click another piece to go on.`);
    }
  }

  #words(map) {
    const tokens = this.found.tokens ?? [];
    const unit = upTo(map);
    this.pieces.replaceChildren(
      ...tokens.flatMap((token, i) => {
        const button = el(
          "button",
          {
            type: "button",
            class: i === this.token ? "piece here" : "piece",
            title: percent(map.values[i] ?? 0),
          },
          token,
        );
        shade(button, unit[i] ?? 0);
        button.addEventListener("click", () => this.#load(i));
        return [button, " "];
      }),
    );
  }

  /** Choosing another patch in the lens, by pointer and by keys. */
  #walk() {
    const cursor = this.lens.querySelector(".cursor:not(.origin)");
    let at = null;
    const put = (patch) => {
      at = patch;
      place(cursor, patch, this.scene?.grid);
    };
    this.lens.addEventListener("pointermove", (event) => {
      const box = this.lens.getBoundingClientRect();
      const [rows, columns] = this.scene.grid;
      const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      put(row * columns + column);
    });
    this.lens.addEventListener("pointerleave", () => put(null));
    this.lens.addEventListener("click", () => {
      if (at !== null) this.#load(at);
    });
    this.lens.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [rows, columns] = this.scene.grid;
      const now = at ?? this.token;
      if (event.key in steps) {
        event.preventDefault();
        const [dr, dc] = steps[event.key];
        const row = Math.min(rows - 1, Math.max(0, Math.floor(now / columns) + dr));
        put(row * columns + Math.min(columns - 1, Math.max(0, (now % columns) + dc)));
      } else if (event.key === "Enter" && at !== null) {
        event.preventDefault();
        this.#load(at);
      }
    });
  }
}

/** Shares from nothing to the strongest. */
function upTo(map) {
  const most = Math.max(...map.values, 1e-12);
  return map.values.map((v) => Math.max(0, v) / most);
}
