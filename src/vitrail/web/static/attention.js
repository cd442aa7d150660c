/** The attention dialog: the attention from one patch or token, for each layer and head. */

import * as api from "./api.js";
import { placeCursor } from "./captions.js";
import { drawCells, drawMap } from "./colour.js";
import { el, setText, showAlert } from "./dom.js";
import { averageMaps, decodeMap, formatPercent } from "./maps.js";
import { firstToken, shade } from "./words.js";

const COLOURS = "glow";

export class AttentionDialog {
  constructor() {
    this.dialog = document.getElementById("attention");
    this.heading = document.getElementById("attention-title");
    this.map = document.getElementById("attention-map");
    this.tokens = document.getElementById("attention-tokens");
    this.readout = document.getElementById("attention-readout");
    this.heads = document.getElementById("heads");
    this.requests = 0;
    document.getElementById("attention-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.#addMapEvents();
  }

  /**
   * @param input {model, picture} or {model, text}
   * @param token the index of a patch, row by row, or of a token
   * @param scene {image, grid, size} of an image, null for a text
   * @param words the words of a text; then `token` is the index of a word, and its first token is shown
   */
  async open(input, token, scene = null, words = null) {
    Object.assign(this, { input, scene });
    this.map.hidden = !scene;
    this.tokens.hidden = Boolean(scene);
    this.selected = null;
    if (!this.dialog.open) this.dialog.showModal();
    await this.#load(token);
    const first = words && this.response?.tokens ? firstToken(this.response.tokens, words, token) : token;
    if (first !== this.token && this.dialog.open) await this.#load(first);
  }

  async #load(token) {
    const request = (this.requests += 1);
    this.token = token;
    this.dialog.setAttribute("aria-busy", "true");
    let response;
    try {
      response = await api.attention({ ...this.input, token });
    } catch (error) {
      if (request !== this.requests) return;
      this.dialog.close();
      showAlert(error);
      return;
    }
    if (request !== this.requests) return;
    this.response = response;
    this.layers = response.layers.map((layer) => layer.heads.map(decodeMap));
    this.means = this.layers.map(averageMaps);
    const sameSize = this.means.every((map) => map.values.length === this.means[0].values.length);
    this.mean = sameSize ? averageMaps(this.means) : this.means.at(-1);
    this.#drawTitle();
    this.#drawTable();
    this.#select(this.selected ?? "mean");
    this.dialog.setAttribute("aria-busy", "false");
  }

  #drawTitle() {
    if (this.scene) {
      const [, columns] = this.scene.grid;
      const [row, column] = [Math.floor(this.token / columns) + 1, (this.token % columns) + 1];
      setText(this.heading, `Attention from the patch in row ${row}, column ${column}`);
    } else setText(this.heading, `Attention from “${this.response.tokens?.[this.token] ?? this.token}”`);
  }

  #drawTable() {
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
    const overall = el("td", { class: "mean" }, this.#cell(this.mean, "mean", "Mean of all layers"));
    rows.push(el("tr", { class: "all" }, el("th", { scope: "row" }, "all"), overall));
    const table = el(
      "table",
      {},
      el("caption", {}, "Rows: layers. Columns: heads. Each map is scaled to its own maximum."),
      ...rows,
    );
    this.heads.style.setProperty("--cell", `clamp(2.1rem, calc(min(36rem, 100vw - 6rem) / ${columns + 1.5}), 5rem)`);
    this.heads.replaceChildren(table);
    this.heads.classList.toggle("strips", !this.scene);
  }

  #cell(map, key, label) {
    const canvas = el("canvas", { class: "cell" });
    drawCells(canvas, { ...map, unit: fractionsOfMaximum(map) }, COLOURS);
    const button = el(
      "button",
      { type: "button", class: "cell", "aria-label": label, "aria-pressed": "false", data: { key } },
      canvas,
    );
    const show = () => this.#select(key);
    button.addEventListener("click", show);
    button.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") show();
    });
    button.addEventListener("focus", show);
    return button;
  }

  #find(key) {
    if (key === "mean") return [this.mean, "Mean of all layers"];
    const [l, h] = key.split(" ");
    if (h === "mean") return [this.means[l], `Layer ${Number(l) + 1}, mean of its heads`];
    return [this.layers[l][h], `Layer ${Number(l) + 1}, head ${Number(h) + 1}`];
  }

  #select(key) {
    this.selected = key;
    for (const button of this.heads.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.dataset.key === key));
    const [map, label] = this.#find(key);
    const total = map.values.reduce((sum, v) => sum + v, 0);
    const maximum = Math.max(...map.values);
    if (this.scene) {
      const canvas = this.map.querySelector("canvas");
      const [height, width] = this.scene.size;
      canvas.height = Math.round((canvas.width * height) / width);
      const style = { opacity: 0.85, smooth: false, mapOnly: false, sequential: COLOURS, diverging: "coldwarm" };
      drawMap(canvas, this.scene.image, { ...map, signed: false, unit: fractionsOfMaximum(map) }, style);
      placeCursor(this.map.querySelector(".origin"), this.token, this.scene.grid);
      const rest = total < 0.995 ? `, ${formatPercent(1 - total)} on other tokens (class token)` : "";
      setText(
        this.readout,
        `${label}: at most ${formatPercent(maximum)} on one patch${rest}. Click the image to choose another patch.`,
      );
    } else {
      this.#drawTokens(map);
      setText(this.readout, `${label}: at most ${formatPercent(maximum)} on one token. Click a token to choose it.`);
    }
  }

  #drawTokens(map) {
    const tokens = this.response.tokens ?? [];
    const unit = fractionsOfMaximum(map);
    this.tokens.replaceChildren(
      ...tokens.flatMap((token, i) => {
        const button = el(
          "button",
          {
            type: "button",
            class: i === this.token ? "token current" : "token",
            title: formatPercent(map.values[i] ?? 0),
          },
          token,
        );
        shade(button, unit[i] ?? 0, true);
        button.addEventListener("click", () => this.#load(i));
        return [button, " "];
      }),
    );
  }

  /** Choose another patch by pointer or by keys. */
  #addMapEvents() {
    const cursor = this.map.querySelector(".cursor:not(.origin)");
    let hovered = null;
    const hover = (patch) => {
      hovered = patch;
      placeCursor(cursor, patch, this.scene?.grid);
    };
    this.map.addEventListener("pointermove", (event) => {
      const box = this.map.getBoundingClientRect();
      const [rows, columns] = this.scene.grid;
      const row = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * rows)));
      const column = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * columns)));
      hover(row * columns + column);
    });
    this.map.addEventListener("pointerleave", () => hover(null));
    this.map.addEventListener("click", () => {
      if (hovered !== null) this.#load(hovered);
    });
    this.map.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [rows, columns] = this.scene.grid;
      const current = hovered ?? this.token;
      if (event.key in steps) {
        event.preventDefault();
        const [dr, dc] = steps[event.key];
        const row = Math.min(rows - 1, Math.max(0, Math.floor(current / columns) + dr));
        hover(row * columns + Math.min(columns - 1, Math.max(0, (current % columns) + dc)));
      } else if (event.key === "Enter" && hovered !== null) {
        event.preventDefault();
        this.#load(hovered);
      }
    });
  }
}

/** The values of a map divided by its maximum. */
function fractionsOfMaximum(map) {
  const maximum = Math.max(...map.values, 1e-12);
  return map.values.map((v) => Math.max(0, v) / maximum);
}
