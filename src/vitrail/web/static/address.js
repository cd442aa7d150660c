/** The address is the state of the page: model, input, classes, methods, view and display as parameters of the URL. */

import { DIVERGING, SEQUENTIAL } from "./colour.js";
import { fieldsOf, formatTarget, isNamed, parseTargets } from "./targets.js";

/** The style that maps are drawn in at first. */
export const DEFAULT_STYLE = {
  opacity: 0.75,
  smooth: true,
  mapOnly: false,
  original: true,
  sequential: "glow",
  diverging: "coldwarm",
};

/** What models explain, in words. */
const KINDS = { class: "classes", prompt: "prompts", box: "boxes", region: "regions", token: "words that it writes" };
const VIEWS = ["maps", "matrix", "models"];
const SHOWN = ["both", "first", "second"];

const isInteger = (part) => /^\d{1,7}$/.test(part);
const integers = (text) => (text ?? "").split(",").filter(isInteger).map(Number);

/**
 * What of a link does not apply, as sentences.
 *
 * @param model the model that is shown
 * @param methods methods of the link that do not exist or do not apply
 */
export function problemsOf(search, model, methods) {
  const parameters = new URLSearchParams(search);
  const parts = (parameters.get("classes") ?? "").split(",").filter(Boolean);
  const named = parseTargets(parameters);
  const hasClasses = model.targets === "class";
  const classes = hasClasses ? parts.filter((part) => !isInteger(part) || Number(part) >= model.class_count) : [];
  const problems = [];
  if (parts.length && !hasClasses)
    problems.push(`The classes of this link are not explained: ${model.title} explains ${KINDS[model.targets]}.`);
  if (named.some((key) => fieldsOf(key).kind !== model.targets))
    problems.push(
      `The ${fieldsOf(named[0]).kind} of this link is not explained: ${model.title} explains ${KINDS[model.targets]}.`,
    );
  if (methods.length)
    problems.push(`${methods.length > 1 ? "Methods" : "Method"} ${methods.join(", ")} not available for ${model.title}.`);
  if (classes.length)
    problems.push(
      `${classes.length > 1 ? "Classes" : "Class"} ${classes.join(", ")} not found: ${model.title} has classes 0 to ${model.class_count - 1}.`,
    );
  if (parameters.get("text") && model.kind !== "text")
    problems.push("The text of this link is not explained: no text model is served here.");
  if (parameters.get("view") && !VIEWS.includes(parameters.get("view")))
    problems.push(`View ${parameters.get("view")} does not exist.`);
  return problems;
}

/**
 * Read the state from the parameters of a URL; what is missing or not valid is left out.
 *
 * @returns {{model, sample, image, text, classes, contrast, methods, focus, view, other, shown, curves, style}}
 */
export function parseAddress(search) {
  const parameters = new URLSearchParams(search);
  const one = (name) => parameters.get(name) || null;
  const known = (name, values) => (values.includes(parameters.get(name)) ? parameters.get(name) : values[0]);
  const named = parseTargets(parameters);
  const classes = named.length ? named.slice(0, 2) : [...new Set(integers(parameters.get("classes")))];
  return {
    model: one("model"),
    sample: one("sample"),
    image: one("image"),
    text: one("text"),
    classes: classes.length ? classes : null,
    contrast: classes.length === 2 && parameters.get("contrast") === "1",
    methods: parameters.getAll("method").filter(Boolean),
    focus: one("focus"),
    view: known("view", VIEWS),
    other: one("other"),
    shown: known("shown", SHOWN),
    time: integers(parameters.get("time"))[0] ?? null,
    curves: parameters.get("curves") === "1",
    style: parseStyle(parameters),
  };
}

/** The style of the maps: what the parameters say, and the default otherwise. */
function parseStyle(parameters) {
  const one = (name) => parameters.get(name);
  const [opacity] = integers(one("opacity"));
  const named = (name, names, otherwise) => (Object.hasOwn(names, one(name)) ? one(name) : otherwise);
  return {
    opacity: opacity <= 100 ? opacity / 100 : DEFAULT_STYLE.opacity,
    smooth: one("rendering") !== "patch",
    mapOnly: one("overlay") === "map",
    original: one("frame") !== "input",
    sequential: named("colour", SEQUENTIAL, DEFAULT_STYLE.sequential),
    diverging: named("signed", DIVERGING, DEFAULT_STYLE.diverging),
  };
}

/** Write the state as the parameters of a URL; default values are left out. */
export function formatAddress(state) {
  const parameters = new URLSearchParams();
  const add = (name, value) => {
    if (value !== null && value !== undefined && value !== "" && value !== false) parameters.append(name, value);
  };
  for (const name of ["model", "sample", "image", "text"]) add(name, state[name]);
  const [first] = state.classes ?? [];
  if (isNamed(first)) {
    if (fieldsOf(first).kind === "token") add("question", fieldsOf(first).text);
    for (const key of state.classes) add(...formatTarget(key));
  } else add("classes", state.classes?.join(","));
  add("contrast", state.contrast && "1");
  for (const method of state.methods ?? []) add("method", method);
  if (state.focus !== state.methods?.[0]) add("focus", state.focus);
  if (state.view !== VIEWS[0]) add("view", state.view);
  add("other", state.view === "models" && state.other);
  if (state.shown !== SHOWN[0]) add("shown", state.shown);
  if (state.time) add("time", String(state.time));
  add("curves", state.curves && "1");
  const { style } = state;
  if (style) {
    if (style.opacity !== DEFAULT_STYLE.opacity) add("opacity", String(Math.round(100 * style.opacity)));
    add("rendering", !style.smooth && "patch");
    add("overlay", style.mapOnly && "map");
    add("frame", !style.original && "input");
    if (style.sequential !== DEFAULT_STYLE.sequential) add("colour", style.sequential);
    if (style.diverging !== DEFAULT_STYLE.diverging) add("signed", style.diverging);
  }
  const text = parameters.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return text ? `?${text}` : "";
}
