/** A table of maps, methods in rows, that can be saved as a figure. */

import { verdictBadge } from "./about.js";
import { colourLegend, resizeCanvas } from "./captions.js";
import { DIVERGING, SEQUENTIAL, drawImage, drawMap } from "./colour.js";
import { el, setText } from "./dom.js";
import { saveTable } from "./figure.js";

const CELL_SIZE = 256;

export class MapTable {
  /**
   * @param root the element to fill
   * @param fileName the name of the saved figure
   */
  constructor(root, fileName) {
    this.root = root;
    this.fileName = fileName;
    this.cells = new Map();
    this.table = el("table", { class: "map-table" });
    this.status = el("p", { class: "status", role: "status", "aria-live": "polite" });
    this.save = el("button", { type: "button", class: "button" }, "Save as a figure (PNG)");
    this.save.addEventListener("click", () => this.#save());
    this.legends = el("div", { class: "legends" });
    root.append(
      el("div", { class: "table-scroll", tabIndex: 0, role: "group", "aria-label": "Table of maps" }, this.table),
      this.legends,
      el("div", { class: "row" }, this.save, this.status),
    );
  }

  /**
   * @param content {caption, corner, columns: [{key, title, note}], rows: [{key, title, note}], style,
   *   cell(row, column) → {image, size: [h, w], map, state, note, check}}
   */
  show(content) {
    this.content = content;
    const { columns, rows } = content;
    const structure = JSON.stringify([content.caption, columns, rows]);
    if (structure !== this.structure) this.#build(structure);
    let ready = 0;
    let checked = 0;
    const signs = new Set();
    for (const row of rows)
      for (const column of columns) {
        const cell = this.cells.get(`${row.key} ${column.key}`);
        const shown = content.cell(row, column);
        ready += this.#drawCell(cell, shown, content.style);
        checked += Boolean(shown.check?.check ?? shown.check?.error ?? (shown.map ? null : shown.note));
        if (shown.map) signs.add(shown.map.signed);
      }
    this.#drawLegends(signs, content.style);
    this.save.disabled = !ready;
    const total = rows.length * columns.length;
    const maps = ready < total ? `${ready} of ${total} maps ready` : "";
    setText(this.status, maps || (checked < total ? `${checked} of ${total} maps checked` : ""));
    this.root.dataset.state = ready < total ? "running" : "done";
    this.root.dataset.checked = String(checked === total);
  }

  /** The colour bars of the maps that are shown. */
  #drawLegends(signs, style) {
    const drawnKey = JSON.stringify([[...signs].sort(), style.sequential, style.diverging]);
    if (this.legends.drawnKey === drawnKey) return;
    this.legends.drawnKey = drawnKey;
    this.legends.replaceChildren(
      signs.has(false) ? colourLegend(style.sequential, ["least", "most relevant"], SEQUENTIAL) : "",
      signs.has(true) ? colourLegend(style.diverging, ["against", "0", "for"], DIVERGING) : "",
    );
  }

  #build(structure) {
    this.structure = structure;
    this.cells.clear();
    const { caption, corner, columns, rows } = this.content;
    const head = (scope, { title, note }) =>
      el("th", { scope }, el("span", { class: "name" }, title), note ? el("small", {}, note) : "");
    const body = rows.map((row) =>
      el(
        "tr",
        {},
        head("row", row),
        ...columns.map((column) => {
          const canvas = el("canvas", {
            width: CELL_SIZE,
            height: CELL_SIZE,
            role: "img",
            "aria-label": `${row.title}, ${column.title}`,
          });
          const note = el("small", { class: "cell-note" });
          const verdict = el("span", { class: "cell-verdict" });
          this.cells.set(`${row.key} ${column.key}`, { canvas, note, verdict });
          return el("td", {}, canvas, verdict, note);
        }),
      ),
    );
    this.table.replaceChildren(
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, el("td", {}, corner ?? ""), ...columns.map((column) => head("col", column)))),
      el("tbody", {}, ...body),
    );
  }

  /** Draw a cell if it has changed, and return whether its map is ready. */
  #drawCell({ canvas, note, verdict }, { image, size, map, state, note: text, check }, style) {
    setText(note, text ?? (map ? "" : (state ?? "")));
    if (verdict.drawn !== check) {
      verdict.drawn = check;
      const running = check?.state === "running" ? `checking, ${Math.round(100 * (check.progress ?? 0))}\u00a0%` : "";
      verdict.replaceChildren(verdictBadge(check) || (check?.error ? "not checked" : running));
    }
    if (!image) return false;
    resizeCanvas(canvas, size, CELL_SIZE);
    const drawnKey = JSON.stringify([image.id, canvas.width, style, Boolean(map)]);
    if (canvas.drawnKey !== drawnKey || canvas.map !== map) {
      Object.assign(canvas, { drawnKey, map });
      if (map) drawMap(canvas, image, map, style);
      else drawImage(canvas, image);
    }
    canvas.classList.toggle("pending", !map);
    return Boolean(map);
  }

  #save() {
    const { caption, columns, rows } = this.content;
    const canvas = (row, column) => this.cells.get(`${row.key} ${column.key}`).canvas;
    const check = (row, column) => this.content.cell(row, column).check?.check;
    const bars = [...this.legends.querySelectorAll(".legend")].map((legend) => ({
      canvas: legend.querySelector("canvas"),
      labels: [...legend.querySelectorAll("span:not(.scale)")].map((span) => span.textContent),
    }));
    saveTable({ caption, columns, rows, canvas, check, bars, fileName: this.fileName });
    setText(this.status, `Saved ${this.fileName}.`);
  }
}
