/** Examples: links to states of the page that show what it is for. */

import { el } from "./dom.js";

const plain = (name) => name.split(",")[0].trim().toLowerCase();

/** Examples of models without classes, and of videos and sound: [title, about, which model, its state]. */
const OTHER_KINDS = [
  [
    "A prompt",
    "which patches are similar to one text rather than another",
    (model) => model.targets === "prompt",
    [["sample", "colours-1"], ["prompt", "a kite"], ["prompt", "a star"], ["contrast", "1"]],
  ],
  ["Boxes", "why a detector sees each object", (model) => model.targets === "box", [["sample", "colours-1"]]],
  ["A region", "why pixels have their label", (model) => model.targets === "region", [["sample", "colours-1"]]],
  [
    "A question",
    "which object, and which words, an answer comes from",
    (model) => model.targets === "token",
    [["sample", "colours-1"], ["question", "What is in the image?"]],
  ],
  ["A video", "which object, and when", (model) => model.media === "video", [["sample", "motion-1"]]],
  ["A sound", "which time and frequency", (model) => model.media === "sound", [["sample", "tones-1"]]],
];

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
  const isClassifier = model.targets === "class" && model.media === "image";
  const classifier = models.find((one) => one.kind === "image" && one.targets === "class" && one.media === "image");
  if (!isClassifier && classifier)
    examples.push({
      title: "One object",
      about: "which patches speak for the predicted class",
      search: `model=${encodeURIComponent(classifier.id)}`,
    });
  const add = (title, about, parameters) =>
    examples.push({ title, about, search: new URLSearchParams({ model: model.id, ...parameters }).toString() });
  if (samples[0] && isClassifier) add("One object", "which patches speak for the predicted class", { sample: samples[0].id });
  const pair = samples.find((one) => (one.classes ?? []).length > 1 || one.id === "cat-and-coffee");
  const names = pair?.classes?.slice(0, 2) ?? ["Egyptian cat", "espresso"];
  const classes = pair && isClassifier && indices(model, names);
  if (classes) add("Two classes", "one map for each", { sample: pair.id, classes: classes.join(",") });
  const control = model.methods.find((method) => method.name === "random" && method.works);
  if (control && samples[0]) {
    add("A map that fails", "a random map, and what the check says", { sample: samples[0].id, method: "random" });
    examples.at(-1).search += `&method=${encodeURIComponent(model.default)}`;
  }
  for (const [title, about, fits, state] of OTHER_KINDS) {
    const other = models.find((one) => one.kind === "image" && fits(one));
    if (!other) continue;
    const known = other.id.startsWith("scenes-") || other.id === "tones";
    const search = new URLSearchParams([["model", other.id], ...(known ? state : [])]).toString();
    examples.push({ title, about, search });
  }
  const writer = models.find((one) => one.kind === "text" && one.targets === "token");
  if (writer)
    examples.push({
      title: "Generated text",
      about: "which words of the prompt each written word comes from",
      search: `model=${encodeURIComponent(writer.id)}`,
    });
  const text = models.find((one) => one.kind === "text" && one.targets === "class");
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
