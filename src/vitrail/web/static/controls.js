/** Display options: opacity, colours, rendering, and what is shown. */

import { DIVERGING, SEQUENTIAL, drawColourBar } from "./colour.js";
import { el, setText } from "./dom.js";

const find = (id) => document.getElementById(id);

/** The style that maps are drawn in at first. */
export const DEFAULT_STYLE = {
  opacity: 0.75,
  smooth: true,
  mapOnly: false,
  original: true,
  sequential: "glow",
  diverging: "coldwarm",
};

/**
 * Connect the display options.
 *
 * @param onStyle called with the changed fields of the style
 * @param onShown called with "both", "first" or "second": which of two classes is shown
 */
export function addControls(onStyle, onShown) {
  const opacity = find("opacity");
  opacity.addEventListener("input", () => {
    setText(opacity.nextElementSibling, `${opacity.value} %`);
    onStyle({ opacity: opacity.value / 100 });
  });
  addSwatches(find("sequential"), "sequential", SEQUENTIAL, (name) => onStyle({ sequential: name }));
  addSwatches(find("diverging"), "diverging", DIVERGING, (name) => onStyle({ diverging: name }));
  const onChoice = (id, run) => find(id).addEventListener("change", (event) => run(event.target.value));
  onChoice("rendering", (value) => onStyle({ smooth: value === "smooth" }));
  onChoice("overlay", (value) => onStyle({ mapOnly: value === "map" }));
  onChoice("frame", (value) => onStyle({ original: value === "original" }));
  onChoice("shown-classes", onShown);
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
