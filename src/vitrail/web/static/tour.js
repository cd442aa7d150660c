/** A short tour of the first example; nothing is blocked while it runs, and it can be left at any time. */

import { el, setText } from "./dom.js";

const SEEN = "vitrail-tour";
const STEPS = [
  ["#question", "The model predicts a class. The question is which patches of the image speak for it."],
  ["#main-figure", "A method answers with a map: bright patches count most. Point at a patch to read its relevance."],
  [".check-box", "Methods disagree, and a map can be wrong. The check removes what the map marks and gives a verdict."],
  ["#removal", "Repeat the test yourself: move the slider or brush patches, and watch the probabilities."],
  ["#map-grid", "Compare methods: each map has its own verdict. Choose others under Methods."],
];

let at = -1;
const text = el("p", { role: "status", "aria-live": "polite" });
const next = el("button", { type: "button", class: "primary" }, "Next");
const skip = el("button", { type: "button", class: "secondary" }, "Skip the tour");
const box = el("aside", { class: "tour", "aria-label": "Tour" }, text, el("div", { class: "row" }, next, skip));
box.hidden = true;

function seen() {
  try {
    return localStorage.getItem(SEEN) === "1";
  } catch {
    return true;
  }
}

function end() {
  box.hidden = true;
  document.querySelector(".touring")?.classList.remove("touring");
  const invitation = document.getElementById("tour-invitation");
  invitation.hidden = true;
  try {
    localStorage.setItem(SEEN, "1");
  } catch {
    // storage is disabled: the invitation comes back
  }
}

function show(step) {
  document.querySelector(".touring")?.classList.remove("touring");
  at = step;
  if (at >= STEPS.length) {
    end();
    document.getElementById("content").focus();
    return;
  }
  const [selector, words] = STEPS[at];
  const target = document.querySelector(selector);
  if (!target?.checkVisibility()) {
    show(at + 1);
    return;
  }
  target.classList.add("touring");
  target.scrollIntoView({ block: "center" });
  setText(text, `${at + 1} of ${STEPS.length}. ${words}`);
  setText(next, at === STEPS.length - 1 ? "Done" : "Next");
}

/** Offer the tour to those who have not seen it. */
export function addTour() {
  document.body.append(box);
  const invitation = document.getElementById("tour-invitation");
  invitation.hidden = seen();
  document.getElementById("tour-start").addEventListener("click", () => {
    box.hidden = false;
    show(0);
    next.focus();
  });
  next.addEventListener("click", () => show(at + 1));
  skip.addEventListener("click", end);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !box.hidden) end();
  });
}
