/** The headline: what the maps explain, and what the model says. */

import { el, setText } from "./dom.js";
import { formatPercent } from "./maps.js";

const name = (classes, index) => el("em", {}, classes.name(index));

/** What the best candidate is called. */
const BEST = { class: "the model’s prediction", prompt: "the best of these prompts", box: "detected", region: "found", token: "what the model writes" };

/** The probability of a class as text, or "" while it is unknown. */
const percent = (classes, index) => formatPercent(classes.probability(index));

/** "0.3 %, the model says bull mastiff, 57.3 %", or for the predicted class "57.3 %, the model's prediction". */
function prediction(classes, index) {
  const best = classes.predicted;
  if (!best) return "";
  const own = percent(classes, index);
  if (["box", "region"].includes(classes.kind)) return own;
  if (index === best.index) return own ? `${own}, ${BEST[classes.kind]}` : "";
  if (classes.kind === "prompt") return `${own}; ${classes.name(best.index)} ${formatPercent(best.probability)}`;
  const says = `the model says ${classes.name(best.index)}, ${formatPercent(best.probability)}`;
  return own ? `${own}, ${says}` : says;
}

/**
 * The headline as nodes, and as text for the title of the window.
 *
 * @param classes {name(index), probability(index), predicted}
 * @param targets one or two class indices
 * @param contrast whether the difference of the two is explained
 */
export function headline(classes, targets, contrast) {
  const [first, second] = targets;
  let question;
  let note;
  if (second === undefined) {
    question =
      classes.kind === "token"
        ? ["Why does the model write ", name(classes, first), "?"]
        : ["What speaks for ", name(classes, first), "?"];
    if (classes.kind === "token" && first !== classes.predicted?.index)
      question = ["What speaks for ", name(classes, first), " here?"];
    note = prediction(classes, first);
  } else {
    question = contrast
      ? ["What speaks for ", name(classes, first), " rather than ", name(classes, second), "?"]
      : ["What speaks for ", name(classes, first), ", and what for ", name(classes, second), "?"];
    const best = classes.predicted;
    const both = [first, second].map((index) => `${classes.name(index)} ${percent(classes, index)}`.trim());
    note = both.join(", ");
    if (best && classes.kind === "class" && !targets.includes(best.index))
      note += `; the model says ${classes.name(best.index)}, ${formatPercent(best.probability)}`;
  }
  const text = question.map((part) => part.textContent ?? part).join("");
  return { nodes: [...question, ...(note ? [" ", el("small", {}, `(${note})`)] : [])], text };
}

/** Say in the introduction what is explained: an image, a video, a sound or a text. */
export function setIntroduction(media, classes) {
  for (const element of document.querySelectorAll(".intro-media")) setText(element, media);
  setText(document.getElementById("intro-says"), classes.kind === "token" ? "write" : "say");
  const best = classes.predicted;
  setText(document.getElementById("intro-class"), best ? classes.name(best.index) : "its class");
}

/** The headline of a table of several classes. */
export function tableHeadline(classes) {
  const each = { class: "class", prompt: "prompt", box: "box", region: "region", token: "word" }[classes.kind];
  const text = `What speaks for each ${each}?`;
  const best = classes.predicted;
  const says = best && classes.kind === "class" ? `(the model says ${classes.name(best.index)}, ${formatPercent(best.probability)})` : "";
  return { nodes: [text, says ? el("small", {}, says) : ""].filter(Boolean), text };
}
