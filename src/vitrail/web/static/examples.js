/** Examples: links to states of the page that show what it is for. */

import { el } from "./dom.js";

const plain = (name) => name.split(",")[0].trim().toLowerCase();

/** Indices of classes by their names; null if one is missing. */
function indices(model, names) {
  const found = names.map((name) => (model.classes ?? []).findIndex((one) => plain(one) === plain(name)));
  return found.includes(-1) ? null : found;
}

/**
 * The examples that the served models can show: [{title, about, search}].
 *
 * @param model the image model that is shown
 * @param samples its samples
 * @param models all models
 */
export function examplesFor(model, samples, models) {
  const examples = [];
  const add = (title, about, parameters) =>
    examples.push({ title, about, search: new URLSearchParams({ model: model.id, ...parameters }).toString() });
  if (samples[0]) add("One object", "which patches speak for the predicted class", { sample: samples[0].id });
  const pair = samples.find((one) => (one.classes ?? []).length > 1 || one.id === "cat-and-coffee");
  const names = pair?.classes?.slice(0, 2) ?? ["Egyptian cat", "espresso"];
  const classes = pair && indices(model, names);
  if (classes) add("Two classes", "one map for each", { sample: pair.id, classes: classes.join(",") });
  const control = model.methods.find((method) => method.name === "random" && method.works);
  if (control && samples[0]) {
    add("A map that fails", "a random map, and what the check says", { sample: samples[0].id, method: "random" });
    examples.at(-1).search += `&method=${encodeURIComponent(model.default)}`;
  }
  const text = models.find((one) => one.kind === "text");
  if (text)
    examples.push({ title: "A text", about: "a score for each word", search: `model=${encodeURIComponent(text.id)}` });
  return examples;
}

/** Show the examples; a click opens one without loading the page again. */
export function showExamples(root, examples, open) {
  root.hidden = !examples.length;
  root.querySelector("ul").replaceChildren(
    ...examples.map(({ title, about, search }) => {
      const link = el("a", { href: `/?${search}`, title: about }, title);
      link.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        open(`/?${search}`);
      });
      return el("li", {}, link);
    }),
  );
}
