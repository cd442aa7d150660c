/** Words coloured by their score: warm colours for the class, cold colours against it; grey if it has no class. */

import { el } from "./dom.js";

const FOR = [232, 93, 36];
const AGAINST = [40, 110, 190];
/** Relevance of class-agnostic methods, which is neither for nor against a class. */
const NEUTRAL = [124, 112, 140];
/** Words below this fraction of the maximum are not coloured. */
const MIN_FRACTION = 0.02;

const linear = (c) => {
  const v = c / 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
};
const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);

let background = null;

/** The background colour of the words, as three bytes. */
function backgroundColour() {
  background ??= getComputedStyle(document.querySelector(".page-header"))
    .backgroundColor.match(/\d+/g)
    .slice(0, 3)
    .map(Number);
  return background;
}

/** Colour an element by a value from -1 to 1, with a text colour that is readable on it; neutral: not for a class. */
export function shade(element, value, neutral = false) {
  element.dataset.value = String(value);
  element.dataset.neutral = String(neutral);
  if (Math.abs(value) < MIN_FRACTION) {
    element.style.removeProperty("background-color");
    element.style.removeProperty("color");
    return;
  }
  const weight = 0.88 * Math.min(1, Math.abs(value));
  const hue = neutral ? NEUTRAL : value > 0 ? FOR : AGAINST;
  const mixed = backgroundColour().map((c, k) => Math.round(c + weight * (hue[k] - c)));
  element.style.backgroundColor = `rgb(${mixed})`;
  element.style.color = luminance(mixed) > 0.179 ? "#000000" : "#ffffff";
}

/** Colour all words again after the theme has changed. */
export function reshade() {
  background = null;
  for (const element of document.querySelectorAll("[data-value]")) {
    const { value, neutral } = element.dataset;
    shade(element, Number(value), neutral === "true");
  }
}

/**
 * Create a paragraph with coloured words.
 *
 * @param text the whole text
 * @param words [{text, start, end, score}]
 * @param label the label for screen readers
 * @param neutral whether the scores are not for or against a class
 * @returns a paragraph whose spans have the index of their word in data-word
 */
export function paragraph(text, words, label, neutral = false) {
  const maximum = Math.max(...words.map((word) => Math.abs(word.score ?? 0)), 1e-12);
  const line = el("p", { class: "words", tabIndex: 0, role: "group", "aria-label": label });
  let end = 0;
  words.forEach((word, i) => {
    if (word.start > end) line.append(text.slice(end, word.start));
    const span = el("span", { class: "word", data: { word: String(i) } }, text.slice(word.start, word.end));
    shade(span, (word.score ?? 0) / maximum, neutral);
    line.append(span);
    end = word.end;
  });
  if (end < text.length) line.append(text.slice(end));
  return line;
}

/** The index of the first token of a word, found by counting the characters of tokens and words. */
export function firstToken(tokens, words, word) {
  let at = 0;
  let characters = 0;
  for (let i = 0; i < tokens.length; i++) {
    const unknown = /^(\[UNK\]|<unk>)$/i.test(tokens[i]);
    if (!unknown && /^(\[[A-Z]+\]|<\/?[a-z]+>)$/.test(tokens[i])) continue;
    if (at === word) return i;
    characters += tokens[i].replace(/^(##|▁|Ġ)/, "").length;
    if (unknown || characters >= words[at].text.length) {
      at += 1;
      characters = 0;
    }
  }
  return word;
}
