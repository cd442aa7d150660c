/** The viewer of explanations in notebooks: maps of several methods side by side, or the words of a text. */

import { drawColourBar, drawMap } from "./colour.js";
import { el } from "./dom.js";
import { decodeMap, formatNumber, patchValues } from "./maps.js";

/** Colours of words for and against the target, as in vitrail.viz.text. */
const WORD_COLOURS = ["232 93 36", "40 110 190"];
/** Width of a canvas in pixels; it is displayed smaller. */
const CANVAS_WIDTH = 448;

const data = JSON.parse(document.getElementById("viewer-data").textContent);
const state = { input: 0, target: 0, opacity: 0.75, smooth: true, mapOnly: false, patch: null };
const controls = document.getElementById("controls");
const panels = document.getElementById("panels");
const readout = document.getElementById("readout");

function choice(label, names, onChange) {
  const select = el("select", {}, ...names.map((name, i) => el("option", { value: String(i) }, name)));
  select.addEventListener("change", () => onChange(Number(select.value)));
  return el("label", {}, `${label} `, select);
}

function checkbox(label, key) {
  const box = el("input", { type: "checkbox", checked: state[key] });
  box.addEventListener("change", () => {
    state[key] = box.checked;
    draw();
  });
  return el("label", {}, box, ` ${label}`);
}

function buildControls() {
  const input = data.inputs[state.input];
  const parts = [];
  if (data.inputs.length > 1) {
    const names = data.inputs.map((one) => one.name);
    const picker = choice(data.kind === "text" ? "Text" : "Image", names, (i) => {
      Object.assign(state, { input: i, target: 0, patch: null });
      build();
    });
    picker.querySelector("select").value = String(state.input);
    parts.push(picker);
  }
  const targets = choice("Class", input.targets, (k) => {
    state.target = k;
    draw();
  });
  targets.querySelector("select").value = String(state.target);
  parts.push(targets);
  const slider = el("input", { type: "range", min: "0", max: "1", step: "0.05", value: String(state.opacity) });
  slider.addEventListener("input", () => {
    state.opacity = Number(slider.value);
    draw();
  });
  parts.push(el("label", {}, "Opacity ", slider));
  if (data.kind === "image") parts.push(checkbox("smooth", "smooth"), checkbox("map only", "mapOnly"));
  controls.replaceChildren(...parts);
}

/** The map of a method for the chosen input and target; decoded once. */
function currentMap(method) {
  const item = data.inputs[state.input].maps[method][state.target];
  item.decoded ??= decodeMap(item.map);
  return item;
}

function legend(signed) {
  const bar = el("canvas", { class: "bar" });
  drawColourBar(bar, signed ? "coldwarm" : "glow");
  return el("span", { class: "legend" }, signed ? "against " : "low ", bar, signed ? " for" : " high");
}

function imagePanel(method, i) {
  const image = data.inputs[state.input].image;
  const canvas = el("canvas", {
    width: CANVAS_WIDTH,
    height: Math.round((CANVAS_WIDTH * image.height) / image.width),
    tabIndex: 0,
    role: "img",
    "aria-label": `${method.title} map; arrow keys move between patches`,
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const { rows, columns } = currentMap(i).decoded;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    show({ y: (row + 0.5) / rows, x: (column + 0.5) / columns });
  });
  canvas.addEventListener("pointerleave", () => show(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { rows, columns } = currentMap(i).decoded;
    const at = state.patch ?? { x: 0, y: 0 };
    const clamp = (v) => Math.min(1 - 1e-6, Math.max(0, v));
    show({ x: clamp(at.x + step[0] / columns), y: clamp(at.y + step[1] / rows) });
  });
  const value = el("span", { class: "value" });
  const note = el("span", { class: "note" });
  const caption = el("figcaption", {}, el("b", {}, method.title), ` ${method.spec}`, note, legend(method.signed), value);
  return { figure: el("figure", {}, canvas, caption), canvas, value, note };
}

let shown = [];

function build() {
  buildControls();
  const input = data.inputs[state.input];
  if (data.kind === "text") {
    shown = data.methods.map((method) => {
      const words = el("p", { class: "words" });
      return { figure: el("section", {}, el("h3", {}, method.title, ` ${method.spec}`), words), words };
    });
  } else {
    input.element ??= Object.assign(new Image(), { src: input.image.src });
    input.drawable ??= { element: input.element };
    shown = data.methods.map(imagePanel);
  }
  panels.replaceChildren(...shown.map((panel) => panel.figure));
  if (data.kind === "image" && !input.element.complete) input.element.addEventListener("load", draw, { once: true });
  else draw();
}

function draw() {
  if (data.kind === "text") {
    drawWords();
    return;
  }
  const patch = state.patch;
  state.patch = null;
  drawMaps();
  show(patch);
}

function drawMaps() {
  const style = { ...state, sequential: "glow", diverging: "coldwarm" };
  shown.forEach((panel, i) => {
    const item = currentMap(i);
    drawMap(panel.canvas, data.inputs[state.input].drawable, item.decoded, style);
    panel.note.textContent = item.note ? ` – ${item.note}` : "";
  });
}

function drawWords() {
  const input = data.inputs[state.input];
  shown.forEach((panel, i) => {
    const words = input.maps[i][state.target].words;
    panel.words.replaceChildren();
    let end = 0;
    for (const word of words) {
      if (word.start > end) panel.words.append(input.text.slice(end, word.start));
      const span = el("span", { class: word.seen ? "word" : "word unseen" }, input.text.slice(word.start, word.end));
      const colour = WORD_COLOURS[word.score > 0 ? 0 : 1];
      if (Math.abs(word.score) >= 0.02) span.style.background = `rgb(${colour} / ${state.opacity * Math.abs(word.score)})`;
      span.title = word.seen ? formatNumber(word.raw) : "not part of the model's input";
      span.addEventListener("pointerenter", () => {
        readout.textContent = `${span.textContent}: ${span.title}`;
      });
      panel.words.append(span);
      end = word.end;
    }
    panel.words.append(input.text.slice(end));
  });
}

/** Outline a patch in all maps and print its value and rank in each. */
function show(patch) {
  if (data.kind === "text") return;
  const same = JSON.stringify(patch) === JSON.stringify(state.patch);
  state.patch = patch;
  if (same) return;
  drawMaps();
  shown.forEach((panel, i) => {
    const map = currentMap(i).decoded;
    panel.value.textContent = "";
    if (patch === null) return;
    const [row, column] = [Math.floor(patch.y * map.rows), Math.floor(patch.x * map.columns)];
    if (row < 0 || row >= map.rows || column < 0 || column >= map.columns) return;
    const at = row * map.columns + column;
    const { means, ranks } = patchValues(map, [map.rows, map.columns]);
    panel.value.textContent = `row ${row + 1}, column ${column + 1}: ${formatNumber(means[at])}, rank ${ranks[at]} of ${means.length}`;
    const [width, height] = [panel.canvas.width / map.columns, panel.canvas.height / map.rows];
    const context = panel.canvas.getContext("2d");
    context.lineWidth = 2;
    context.strokeStyle = "#fff";
    context.strokeRect(column * width, row * height, width, height);
  });
}

build();
