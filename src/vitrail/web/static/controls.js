/** Display options: opacity, colours, rendering, and what is shown. */

import { DEFAULT_STYLE } from "./address.js";
import { DIVERGING, SEQUENTIAL, drawColourBar } from "./colour.js";
import { el, setText } from "./dom.js";

const find = (id) => document.getElementById(id);

/**
 * Connect the display options.
 *
 * @param onStyle called with the changed fields of the style; with false as well while the user still moves a slider
 * @param onShown called with "both", "first" or "second": which of two classes is shown
 */
export function addControls(onStyle, onShown) {
  const opacity = find("opacity");
  opacity.addEventListener("input", () => {
    setText(opacity.nextElementSibling, `${opacity.value} %`);
    onStyle({ opacity: opacity.value / 100 }, false);
  });
  opacity.addEventListener("change", () => onStyle({ opacity: opacity.value / 100 }));
  addSwatches(find("sequential"), "sequential", SEQUENTIAL, (name) => onStyle({ sequential: name }));
  addSwatches(find("diverging"), "diverging", DIVERGING, (name) => onStyle({ diverging: name }));
  const onChoice = (id, run) => find(id).addEventListener("change", (event) => run(event.target.value));
  onChoice("rendering", (value) => onStyle({ smooth: value === "smooth" }));
  onChoice("overlay", (value) => onStyle({ mapOnly: value === "map" }));
  onChoice("frame", (value) => onStyle({ original: value === "original" }));
  onChoice("shown-classes", onShown);
}

/** Set the display options to a style. */
export function showStyle(style) {
  const opacity = find("opacity");
  opacity.value = String(Math.round(100 * style.opacity));
  setText(opacity.nextElementSibling, `${opacity.value} %`);
  const choices = {
    sequential: style.sequential,
    diverging: style.diverging,
    rendering: style.smooth ? "smooth" : "patch",
    overlay: style.mapOnly ? "map" : "overlay",
    frame: style.original ? "original" : "input",
  };
  for (const [id, value] of Object.entries(choices))
    for (const radio of find(id).querySelectorAll("input")) radio.checked = radio.value === value;
}

/** Show which of two classes is chosen, and their names; hide the choice for one class. */
export function showClassChoice(names, shown) {
  const root = find("shown-classes");
  root.hidden = names.length < 2;
  if (root.hidden) return;
  const spans = root.querySelectorAll("span");
  names.forEach((name, i) => {
    setText(spans[i + 1], name);
    spans[i + 1].title = name;
  });
  for (const radio of root.querySelectorAll("input")) radio.checked = radio.value === shown;
}

function addSwatches(root, group, names, onChange) {
  for (const [name, label] of Object.entries(names)) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    drawColourBar(canvas, name);
    const radio = el("input", {
      type: "radio",
      name: group,
      value: name,
      checked: name === DEFAULT_STYLE[group],
      "aria-label": label,
    });
    root.append(el("label", { title: label }, radio, el("span", {}, canvas)));
  }
  root.addEventListener("change", (event) => onChange(event.target.value));
}
