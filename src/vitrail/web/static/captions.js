/** Titles, states, legends, readouts and cursors of maps. */

import { drawColourBar } from "./colour.js";
import { el, setText } from "./dom.js";
import { formatSeconds } from "./maps.js";

/** Write one line of a readout for each class; two lines are marked with the colours of their classes. */
export function setLines(element, lines) {
  while (element.children.length > lines.length) element.lastChild.remove();
  while (element.children.length < lines.length) element.append(el("span", {}));
  lines.forEach((text, i) => setText(element.children[i], text));
  element.classList.toggle("two", lines.length > 1);
}

/** Move a cursor's frame to a patch, or hide it; `box` is the part of the element that the patches cover. */
export function placeCursor(cursor, patch, grid, [left, top, right, bottom] = [0, 0, 1, 1]) {
  cursor.hidden = patch === null || patch === undefined || !grid;
  if (cursor.hidden) return;
  const [rows, columns] = grid;
  const [width, height] = [(right - left) / columns, (bottom - top) / rows];
  cursor.style.left = `${100 * (left + (patch % columns) * width)}%`;
  cursor.style.top = `${100 * (top + Math.floor(patch / columns) * height)}%`;
  cursor.style.width = `${100 * width}%`;
  cursor.style.height = `${100 * height}%`;
}

/** Resize a canvas to the shape of the model's input, enlarged up to eight times. */
export function resizeCanvas(canvas, [height, width], longest) {
  const factor = Math.max(longest / Math.max(height, width), 1);
  const [w, h] = [Math.round(width * Math.min(factor, 8)), Math.round(height * Math.min(factor, 8))];
  if (canvas.width === w && canvas.height === h) return;
  canvas.width = w;
  canvas.height = h;
  canvas.drawnKey = "";
}

/** The name of a method with its options. */
export function methodTitle(method) {
  return method.options ? `${method.title} ${method.options}` : method.title;
}

/** The combined state of several items. */
export function combinedState(items) {
  for (const state of ["failed", "running", "queued", "cancelled"])
    if (items.some((item) => item.state === state)) return state;
  return items.length ? "done" : "queued";
}

/** The time of a map: its own, or that of the pass it shares; "" for maps that were computed earlier. */
export function timeText(method, item) {
  if (item?.state !== "done") return "";
  if (item.shared > 1) return `shared pass, ${formatSeconds(item.seconds)}`;
  if (item.seconds == null) return method.shared_pass ? "shared pass" : "";
  return formatSeconds(item.seconds);
}

/** What a card says while its map is not ready: its place in the queue, or the time left. */
export function waitingText(state, items, ahead = 0) {
  if (state === "queued") return ahead ? `queued, ${ahead} ahead` : "queued";
  const left = Math.max(...items.map((item) => item.seconds_left ?? 0));
  return left >= 1 ? `about ${formatSeconds(left)} left` : "running";
}

/** Properties of a map: its time, and whether it is signed or class-agnostic. */
export function mapProperties(method, item) {
  const properties = [timeText(method, item)];
  if (item?.map?.signed ?? method.signed) properties.push("signed");
  if (!method.class_specific) properties.push("class-agnostic");
  return properties.filter(Boolean);
}

/** A colour bar with labels at its ends and, for signed maps, in the middle. */
export function colourLegend(name, labels, names) {
  const canvas = el("canvas", {
    class: "colour-bar",
    role: "img",
    "aria-label": `Colours ${names[name]}: ${labels.join(", ")}`,
  });
  drawColourBar(canvas, name);
  const middle = labels.length > 2 ? el("span", { class: "zero", "aria-hidden": "true" }, labels[1]) : "";
  return el(
    "span",
    { class: "legend" },
    el("span", {}, labels[0]),
    el("span", { class: "scale" }, canvas, middle),
    el("span", {}, labels.at(-1)),
  );
}
