/** What a model writes, word by word: each word can be chosen, and is explained by what stands before it. */

import { el, setText } from "./dom.js";
import { formatPercent } from "./maps.js";

export class WrittenWords {
  /**
   * @param root the element to fill
   * @param onChoose called with the key of the chosen word
   */
  constructor(root, onChoose) {
    this.title = el("span", { class: "written-title" });
    this.words = el("span", { class: "written-words" });
    root.append(this.title, this.words);
    Object.assign(this, { root, onChoose });
  }

  /**
   * @param title what stands in front of the words
   * @param entries [{index, name, probability}], or null for a model that writes nothing
   * @param target the key of what is explained
   */
  show(title, entries, target) {
    this.root.hidden = !entries;
    if (!entries) return;
    setText(this.title, title);
    this.root.setAttribute("aria-label", title);
    const focused = document.activeElement?.dataset?.written;
    this.words.replaceChildren(
      ...entries.map((entry, position) => {
        const attributes = {
          type: "button",
          class: "written-word",
          "aria-pressed": String(entry.index === target),
          title: `Explain this word, ${formatPercent(entry.probability)}`,
          data: { written: String(position) },
        };
        const button = el("button", attributes, entry.name);
        button.addEventListener("click", () => this.onChoose(entry.index));
        return button;
      }),
      entries.length ? "" : "nothing: it ends the text at once. Choose one of the likeliest words.",
    );
    if (focused) this.words.querySelector(`[data-written="${focused}"]`)?.focus();
  }
}
