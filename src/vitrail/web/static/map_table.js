/** A table of maps, methods in rows, that can be saved as a figure. */

import { drawImage, drawMap } from "./colour.js";
import { resizeCanvas } from "./captions.js";
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
    root.append(
      el("div", { class: "table-scroll", tabIndex: 0, role: "group", "aria-label": "Table of maps" }, this.table),
      el("div", { class: "row" }, this.save, this.status),
    );
  }

  /**
   * @param content {caption, corner, columns: [{key, title, note}], rows: [{key, title, note}], style,
   *   cell(row, column) → {image, size: [h, w], map, state, note}}
   */
  show(content) {
    this.content = content;
    const { columns, rows } = content;
    const structure = JSON.stringify([content.caption, columns, rows]);
    if (structure !== this.structure) this.#build(structure);
    let ready = 0;
    for (const row of rows)
      for (const column of columns) {
        const cell = this.cells.get(`${row.key} ${column.key}`);
        ready += this.#drawCell(cell, content.cell(row, column), content.style);
      }
    this.save.disabled = !ready;
    const total = rows.length * columns.length;
    setText(this.status, ready < total ? `${ready} of ${total} maps ready` : "");
    this.root.dataset.state = ready < total ? "running" : "done";
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
          this.cells.set(`${row.key} ${column.key}`, { canvas, note });
          return el("td", {}, canvas, note);
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
  #drawCell({ canvas, note }, { image, size, map, state, note: text }, style) {
    setText(note, text ?? (map ? "" : (state ?? "")));
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
    saveTable({ caption, columns, rows, canvas, fileName: this.fileName });
    setText(this.status, `Saved ${this.fileName}.`);
  }
}
