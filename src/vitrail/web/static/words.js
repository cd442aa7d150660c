/** Words in colour: warm ones speak for a class, cold ones against. */

import { el } from "./dom.js";

const FOR = [232, 93, 36];
const AGAINST = [40, 110, 190];
/** Below this share of the strongest word a word stays without colour. */
const FAINT = 0.02;

const light = (c) => {
  const v = c / 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
};
const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);

let surface = null;

/** The ground words stand on, as three bytes. */
function ground() {
  surface ??= getComputedStyle(document.querySelector(".bar")).backgroundColor.match(/\d+/g).slice(0, 3).map(Number);
  return surface;
}

/** Colour an element by a share from -1 to 1, with ink that can be read on it. */
export function shade(element, share) {
  element.dataset.share = String(share);
  if (Math.abs(share) < FAINT) {
    element.style.removeProperty("background-color");
    element.style.removeProperty("color");
    return;
  }
  const weight = 0.88 * Math.min(1, Math.abs(share));
  const hue = share > 0 ? FOR : AGAINST;
  const mixed = ground().map((c, k) => Math.round(c + weight * (hue[k] - c)));
  element.style.backgroundColor = `rgb(${mixed})`;
  element.style.color = luminance(mixed) > 0.179 ? "#0d0f11" : "#ffffff";
}

/** Colour again what was coloured for other surroundings. */
export function reshade() {
  surface = null;
  for (const element of document.querySelectorAll("[data-share]")) shade(element, Number(element.dataset.share));
}

/**
 * A text with its words shaded.
 *
 * @param text the whole text
 * @param words [{text, start, end, score}]
 * @param label what it is, for who does not see it
 * @returns a paragraph whose spans carry the number of their word in data-word
 */
export function paragraph(text, words, label) {
  const most = Math.max(...words.map((word) => Math.abs(word.score ?? 0)), 1e-12);
  const line = el("p", { class: "words", tabIndex: 0, role: "group", "aria-label": label });
  let done = 0;
  words.forEach((word, i) => {
    if (word.start > done) line.append(text.slice(done, word.start));
    const span = el("span", { class: "word", data: { word: String(i) } }, text.slice(word.start, word.end));
    shade(span, (word.score ?? 0) / most);
    line.append(span);
    done = word.end;
  });
  if (done < text.length) line.append(text.slice(done));
  return line;
}

/** Which piece of a tokenizer begins a word: pieces are counted off against the words' letters. */
export function pieceOf(tokens, words, word) {
  let at = 0;
  let letters = 0;
  for (let i = 0; i < tokens.length; i++) {
    const unknown = /^(\[UNK\]|<unk>)$/i.test(tokens[i]);
    if (!unknown && /^(\[[A-Z]+\]|<\/?[a-z]+>)$/.test(tokens[i])) continue;
    if (at === word) return i;
    letters += tokens[i].replace(/^(##|▁|Ġ)/, "").length;
    if (unknown || letters >= words[at].text.length) {
      at += 1;
      letters = 0;
    }
  }
  return word;
}
