/** The classes: the likeliest as buttons, any other by typing, and a second one to compare with. */

import { el } from "./dom.js";
import { percent } from "./maps.js";

const MOST_OFFERED = 40;
let count = 0;

export class Classes {
  /**
   * @param root the section to fill
   * @param chosen called with the list of one or two class indices
   * @param pairs whether a second class can be chosen
   */
  constructor(root, chosen, pairs = true) {
    this.chosen = chosen;
    this.pairs = pairs;
    this.targets = [];
    this.top = [];
    this.model = null;
    this.list = el("ul", { class: "classes", "aria-label": "Likeliest classes" });
    this.#combobox();
    root.append(this.list, this.field);
  }

  /** Which model's names to offer. */
  of(model) {
    this.model = model;
    this.input.value = "";
  }

  name(index) {
    const known = this.model?.classes?.[index] ?? this.top.find((one) => one.index === index)?.name;
    return (known ?? `class ${index}`).split(",")[0];
  }

  probability(index) {
    return this.top.find((one) => one.index === index)?.probability;
  }

  show(top, targets) {
    this.top = top;
    this.targets = targets;
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.dataset?.role;
    const shown = this.top.slice(0, 5).map((one) => one.index);
    for (const index of this.targets) if (!shown.includes(index)) shown.push(index);
    this.list.replaceChildren(...shown.map((index) => this.#row(index)));
    if (focused) this.list.querySelector(`[data-role="${focused}"]`)?.focus();
  }

  #row(index) {
    const place = this.targets.indexOf(index);
    const p = this.probability(index);
    const bar = el("span", { class: "amount", "aria-hidden": "true" });
    bar.style.setProperty("--amount", String(p ?? 0));
    const value = p === undefined ? "below the first ten" : percent(p);
    const button = el(
      "button",
      { type: "button", class: "class", data: { role: `ask-${index}` }, "aria-pressed": String(place === 0) },
      el("span", { class: "name" }, this.name(index)),
      el("span", { class: "value" }, value),
      bar,
    );
    button.addEventListener("click", () => this.#ask(index));
    const row = el("li", { class: place === 0 ? "first" : place === 1 ? "second" : "" }, button);
    if (this.pairs && place !== 0) {
      const label = `${place === 1 ? "Stop comparing" : "Compare"} with ${this.name(index)}`;
      const other = el(
        "button",
        {
          type: "button",
          class: "versus",
          data: { role: `versus-${index}` },
          "aria-pressed": String(place === 1),
          title: label,
          "aria-label": label,
        },
        "vs",
      );
      other.addEventListener("click", () => this.#set(place === 1 ? [this.targets[0]] : [this.targets[0], index]));
      row.append(other);
    }
    return row;
  }

  #ask(index) {
    const [first, second] = this.targets;
    // Asking for the other of a pair turns the pair around.
    this.#set(index === second ? [second, first] : second === undefined ? [index] : [index, second]);
  }

  #set(targets) {
    this.targets = targets;
    this.draw();
    this.chosen(targets);
  }

  #combobox() {
    const id = `any-class-${(count += 1)}`;
    this.input = el("input", {
      type: "text",
      id,
      class: "any",
      placeholder: "Any class by name or number",
      autocomplete: "off",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": `${id}-list`,
      "aria-autocomplete": "list",
      "aria-label": "Any class by name or number",
    });
    this.popup = el("ul", { class: "popup", id: `${id}-list`, role: "listbox", "aria-label": "Classes", hidden: true });
    this.field = el("div", { class: "combobox" }, this.input, this.popup);
    this.at = -1;
    this.input.addEventListener("input", () => this.#offer());
    this.input.addEventListener("focus", () => this.#offer());
    this.input.addEventListener("blur", () => this.#close());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.popup.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const option = event.target.closest("[role=option]");
      if (option) this.#take(Number(option.dataset.index));
    });
  }

  #offer() {
    if (!this.model) return;
    const typed = this.input.value.trim().toLowerCase();
    const names = this.model.classes ?? Array.from({ length: this.model.class_count }, (_, i) => `class ${i}`);
    const found = [];
    names.forEach((name, index) => {
      const at = name.toLowerCase().indexOf(typed);
      if (at >= 0 || String(index) === typed) found.push({ index, name, at: String(index) === typed ? -1 : at });
    });
    if (typed) found.sort((a, b) => (a.at > 0) - (b.at > 0) || a.index - b.index);
    this.at = typed && found.length ? 0 : -1;
    this.popup.replaceChildren(
      ...found
        .slice(0, MOST_OFFERED)
        .map(({ index, name }) =>
          el(
            "li",
            { role: "option", id: `${this.input.id}-${index}`, data: { index }, "aria-selected": "false" },
            el("span", {}, name),
            el("span", { class: "value" }, String(index)),
          ),
        ),
    );
    if (!found.length) this.popup.append(el("li", { class: "none" }, "No class of this name"));
    this.popup.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.#mark();
  }

  #mark() {
    const options = [...this.popup.querySelectorAll("[role=option]")];
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === this.at)));
    const option = options[this.at];
    if (option) {
      this.input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    const options = this.popup.querySelectorAll("[role=option]");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (this.popup.hidden) this.#offer();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (options.length) this.at = (this.at + step + options.length) % options.length;
      this.#mark();
    } else if (event.key === "Enter" && options[this.at]) {
      event.preventDefault();
      this.#take(Number(options[this.at].dataset.index));
    } else if (event.key === "Escape") {
      this.#close();
    }
  }

  #take(index) {
    this.input.value = "";
    this.#close();
    this.#ask(index);
  }

  #close() {
    this.popup.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
