/** What stands beside a map: its name, its state, its colours, where the cursor is. */

import { bar } from "./colour.js";
import { el, write } from "./dom.js";
import { seconds } from "./maps.js";

/** A line of reading for each class; of two, each with its colour. */
export function lines(place, told) {
  while (place.children.length > told.length) place.lastChild.remove();
  while (place.children.length < told.length) place.append(el("span", {}));
  told.forEach((text, i) => write(place.children[i], text));
  place.classList.toggle("two", told.length > 1);
}

/** A cursor's frame on a patch. */
export function place(cursor, patch, grid) {
  cursor.hidden = patch === null || patch === undefined || !grid;
  if (cursor.hidden) return;
  const [rows, columns] = grid;
  cursor.style.left = `${(100 * (patch % columns)) / columns}%`;
  cursor.style.top = `${(100 * Math.floor(patch / columns)) / rows}%`;
  cursor.style.width = `${100 / columns}%`;
  cursor.style.height = `${100 / rows}%`;
}

/** Size a canvas like the model's input, enlarged up to eight times. */
export function fit(canvas, [height, width], longest) {
  const factor = Math.max(longest / Math.max(height, width), 1);
  const [w, h] = [Math.round(width * Math.min(factor, 8)), Math.round(height * Math.min(factor, 8))];
  if (canvas.width === w && canvas.height === h) return;
  canvas.width = w;
  canvas.height = h;
  canvas.sign = "";
}

/** A method's name with its options. */
export function title(method) {
  return method.options ? `${method.title} ${method.options}` : method.title;
}

/** The state of several items as one. */
export function states(items) {
  for (const state of ["failed", "running", "queued", "cancelled"])
    if (items.some((item) => item.state === state)) return state;
  return items.length ? "done" : "queued";
}

/** What is worth knowing of a map: how long it took, whether it is signed or blind to the class. */
export function remarks(method, item) {
  const known = [];
  if (item?.state === "done") known.push(seconds(item.seconds));
  if (item?.map?.signed ?? method.signed) known.push("signed");
  if (!method.class_specific) known.push("blind to the class");
  return known.filter(Boolean);
}

/** A bar of colours between words. */
export function scale(name, words, names) {
  const canvas = el("canvas", {
    class: "ramp",
    role: "img",
    "aria-label": `Colours ${names[name]}: ${words.join(", ")}`,
  });
  bar(canvas, name);
  const middle = words.length > 2 ? el("span", { class: "zero", "aria-hidden": "true" }, words[1]) : "";
  return el(
    "span",
    { class: "legend" },
    el("span", {}, words[0]),
    el("span", { class: "scale" }, canvas, middle),
    el("span", {}, words.at(-1)),
  );
}
