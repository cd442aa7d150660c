/** Boxes and regions on the large map: boxes to choose, and a region to click or brush. */

import { el, svg } from "./dom.js";
import { formatPercent } from "./maps.js";
import { fieldsOf, isNamed, keyOf } from "./targets.js";

export class TargetOverlay {
  /**
   * @param map the element of the large map
   * @param on {choose(key), patch()}: called with the chosen target; the patch below the cursor
   */
  constructor(map, on) {
    Object.assign(this, { map, on, brushed: null });
    this.boxes = el("div", { class: "box-buttons", hidden: true });
    this.region = svg("svg", { class: "region-outline", "aria-hidden": "true", preserveAspectRatio: "none" });
    map.append(this.region, this.boxes);
    this.#addBrush();
    this.#addKeys();
  }

  /**
   * @param view {kind, entries: [{index, name, probability, corners}], targets, grid, size: [h, w], area: [left, top,
   *   right, bottom] of the model's input in the map, name(key)}
   */
  show(view) {
    this.view = view;
    this.#drawBoxes();
    this.#drawRegion();
  }

  #drawBoxes() {
    const { kind, entries, targets, area, name } = this.view;
    const shown = kind === "box" ? entries.filter((entry) => entry.corners) : [];
    const drawnKey = JSON.stringify([shown.map((entry) => [entry.index, entry.corners]), targets, area]);
    if (this.boxes.drawnKey === drawnKey) return;
    const focused = document.activeElement?.dataset?.box;
    this.boxes.drawnKey = drawnKey;
    this.boxes.hidden = !shown.length;
    const size = ({ corners: [x0, y0, x1, y1] }) => (x1 - x0) * (y1 - y0);
    // Small boxes come last, so that they lie on top of large ones.
    this.boxes.replaceChildren(
      ...[...shown].sort((a, b) => size(b) - size(a)).map((entry) => this.#boxButton(entry, targets, area, name)),
    );
    if (focused) this.boxes.querySelector(`[data-box='${CSS.escape(focused)}']`)?.focus();
  }

  #boxButton(entry, targets, [left, top, right, bottom], name) {
    const at = targets.indexOf(entry.index);
    const label = `${name(entry.index)}, ${formatPercent(entry.probability)}`;
    const button = el(
      "button",
      {
        type: "button",
        class: `box-button ${["first", "second"][at] ?? ""}`,
        title: label,
        "aria-label": `Explain ${label}`,
        "aria-pressed": String(at === 0),
        data: { box: entry.index },
      },
      el("span", { "aria-hidden": "true" }, name(entry.index)),
    );
    const [x0, y0, x1, y1] = entry.corners;
    button.style.left = `${100 * (left + x0 * (right - left))}%`;
    button.style.top = `${100 * (top + y0 * (bottom - top))}%`;
    button.style.width = `${100 * (x1 - x0) * (right - left)}%`;
    button.style.height = `${100 * (y1 - y0) * (bottom - top)}%`;
    button.addEventListener("click", (event) => {
      event.stopPropagation();
      this.on.choose(entry.index);
    });
    return button;
  }

  /** The outline of the chosen regions, and of what is being brushed. */
  #drawRegion() {
    const { kind, targets, grid, size, area } = this.view;
    const shown = kind === "region" ? targets.filter(isNamed).map(fieldsOf) : [];
    const drawnKey = JSON.stringify([shown, area, grid, this.brushed && [...this.brushed]]);
    if (this.region.drawnKey === drawnKey) return;
    this.region.drawnKey = drawnKey;
    const [rows, columns] = grid;
    const [left, top, right, bottom] = area;
    this.region.style.cssText =
      `left:${100 * left}%;top:${100 * top}%;width:${100 * (right - left)}%;height:${100 * (bottom - top)}%`;
    this.region.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    const parts = this.brushed
      ? [outline([...this.brushed], columns, "brushed")]
      : shown.map(({ point, patches }, i) =>
          point
            ? svg("ellipse", {
                class: i ? "second" : "first",
                cx: ((point[0] + 0.5) / size[1]) * columns,
                cy: ((point[1] + 0.5) / size[0]) * rows,
                rx: 0.018 * columns,
                ry: 0.018 * rows,
              })
            : outline(patches, columns, i ? "second" : "first"),
        );
    this.region.replaceChildren(...parts);
  }

  /** Where an event is in the model's input: {patch, point: [x, y] in pixels}; null beside it. */
  #place(event) {
    const bounds = this.map.getBoundingClientRect();
    const [left, top, right, bottom] = this.view.area;
    const x = ((event.clientX - bounds.left) / bounds.width - left) / (right - left);
    const y = ((event.clientY - bounds.top) / bounds.height - top) / (bottom - top);
    if (!(x >= 0 && x < 1 && y >= 0 && y < 1)) return null;
    const { grid, size } = this.view;
    const patch = Math.floor(y * grid[0]) * grid[1] + Math.floor(x * grid[1]);
    return { patch, point: [Math.floor(x * size[1]), Math.floor(y * size[0])] };
  }

  get #active() {
    return this.view?.kind === "region";
  }

  #addBrush() {
    let start = null;
    this.map.addEventListener("pointerdown", (event) => {
      if (!this.#active || event.button !== 0) return;
      start = this.#place(event);
      if (!start) return;
      this.map.setPointerCapture(event.pointerId);
      this.brushed = new Set([start.patch]);
    });
    this.map.addEventListener("pointermove", (event) => {
      if (!this.brushed) return;
      const place = this.#place(event);
      if (place) this.brushed.add(place.patch);
      this.#drawRegion();
    });
    const finish = (event) => {
      if (!this.brushed) return;
      const patches = [...this.brushed].sort((a, b) => a - b);
      this.brushed = null;
      if (event.type === "pointerup")
        this.on.choose(
          keyOf(patches.length > 1 ? { kind: "region", patches } : { kind: "region", point: start.point }),
        );
      this.#drawRegion();
    };
    this.map.addEventListener("pointerup", finish);
    this.map.addEventListener("pointercancel", finish);
    // A click chooses a region, so that it does not keep a patch for its attention.
    this.map.addEventListener("click", (event) => this.#active && event.stopPropagation(), { capture: true });
  }

  /** Enter chooses the patch below the cursor; Space adds it to the region, or takes it away. */
  #addKeys() {
    this.map.parentElement.addEventListener(
      "keydown",
      (event) => {
        if (!this.#active || event.target !== this.map || (event.key !== "Enter" && event.key !== " ")) return;
        event.preventDefault();
        event.stopPropagation();
        const patch = this.on.patch();
        if (patch === null || patch === undefined) return;
        const [first] = this.view.targets.filter(isNamed).map(fieldsOf);
        const chosen = new Set(event.key === " " ? (first?.patches ?? []) : []);
        if (!chosen.delete(patch)) chosen.add(patch);
        if (chosen.size) this.on.choose(keyOf({ kind: "region", patches: [...chosen].sort((a, b) => a - b) }));
      },
      { capture: true },
    );
  }
}

/** The outline of some patches as a path, along the edges to other patches. */
function outline(patches, columns, name) {
  const inside = new Set(patches);
  const has = (row, column) => column >= 0 && column < columns && inside.has(row * columns + column);
  const lines = [];
  for (const patch of patches) {
    const [r, c] = [Math.floor(patch / columns), patch % columns];
    if (!has(r - 1, c)) lines.push(`M${c} ${r}h1`);
    if (!has(r + 1, c)) lines.push(`M${c} ${r + 1}h1`);
    if (!has(r, c - 1)) lines.push(`M${c} ${r}v1`);
    if (!has(r, c + 1)) lines.push(`M${c + 1} ${r}v1`);
  }
  return svg("path", { class: name, d: lines.join("") });
}
