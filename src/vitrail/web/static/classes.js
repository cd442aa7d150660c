/**
 * The class picker: the most probable classes as buttons, any other by typing, and a second one to compare with. Models
 * without classes have prompts, boxes, regions or words that they write instead.
 */

import { el, setText } from "./dom.js";
import { formatPercent } from "./maps.js";
import { fieldsOf, isContrast, isNamed, keyOf, partsOf, plainName } from "./targets.js";

const MAX_OPTIONS = 40;
/** Entries that are listed without being chosen. */
const LISTED = { class: 5, prompt: 10, box: 10, region: 6, token: 5 };
/** What the picker says for each kind of target. */
const WORDING = {
  class: { title: "Class", list: "Most probable classes", field: "Any class by name or index", note: "" },
  prompt: {
    title: "Prompt",
    list: "Prompts",
    field: "Type a prompt, then press Enter",
    note: "Shares of the listed prompts in a softmax over them. Compare two and choose Difference to explain one against the other.",
  },
  box: {
    title: "Detected object",
    list: "Detected objects",
    field: "Another label for this box",
    note: "Choose a box here or on the image.",
  },
  region: {
    title: "Region",
    list: "Regions that the model finds",
    field: "Another label for this region",
    note: "Click a point of the large image, or brush over patches. On the keyboard: arrow keys, Enter for a patch, Space for more.",
  },
  token: {
    title: "Next word",
    list: "Likeliest words here",
    field: "Ask about the image, then press Enter",
    note: "What the model may write at the chosen place. Choose another word to see what speaks for it.",
  },
};
/** Kinds of targets that are typed in full instead of being found in a list. */
const TYPED = ["prompt", "token"];
let count = 0;

export class ClassPicker {
  /**
   * @param root the section to fill
   * @param onChange called with the list of one or two class indices, and whether their difference is explained
   * @param canCompare whether a second class can be chosen
   */
  constructor(root, onChange, canCompare = true) {
    this.onChange = onChange;
    this.canCompare = canCompare;
    this.targets = [];
    this.contrast = false;
    this.top = [];
    this.asked = [];
    this.model = null;
    this.heading = root.querySelector("h2");
    this.list = el("ul", { class: "classes", "aria-label": WORDING.class.list });
    this.note = el("p", { class: "note", hidden: true });
    this.#createCombobox();
    root.append(this.list, this.#createModes(), this.field, this.note);
  }

  /** What is explained: "class", "prompt", "box" or "region". */
  get kind() {
    return this.model?.targets ?? "class";
  }

  /** The class with the highest probability. */
  get predicted() {
    return this.top[0];
  }

  /** Offer the classes of a model. */
  setModel(model) {
    this.model = model;
    this.input.value = "";
    const { title, list, field, note } = WORDING[this.kind];
    setText(this.heading, title);
    setText(this.note, note);
    this.note.hidden = !note;
    this.list.setAttribute("aria-label", list);
    const combobox = {
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": this.popup.id,
      "aria-autocomplete": "list",
    };
    for (const [name, value] of Object.entries(combobox))
      if (TYPED.includes(this.kind)) this.input.removeAttribute(name);
      else this.input.setAttribute(name, value);
    this.input.placeholder = field;
    this.input.setAttribute("aria-label", field);
    this.field.hidden = this.kind === "token" && model.kind === "text"; // the prompt is typed elsewhere
  }

  name(index) {
    if (isContrast(index)) {
      const [first, second] = partsOf(index).map((part) => this.name(part));
      return `${first} against ${second}`;
    }
    if (isNamed(index)) return this.#namedTarget(index);
    const name = this.model?.classes?.[index] ?? this.top.find((one) => one.index === index)?.name;
    return (name ?? `class ${index}`).split(",")[0];
  }

  /** The name of a prompt, box or region; boxes of one label are told apart by their number. */
  #namedTarget(key) {
    const known = [...this.top, ...this.asked];
    const name = known.find((one) => one.index === key)?.name ?? plainName(key);
    const same = known.filter((one) => one.name === name && one.index !== key).length > 0;
    return this.kind === "box" && same ? `${name} (box ${fieldsOf(key).query})` : name;
  }

  /** What is known of a target: {index, name, probability, corners}. */
  entry(index) {
    return [...this.top, ...this.asked].find((one) => one.index === index);
  }

  probability(index) {
    return this.entry(index)?.probability;
  }

  /**
   * @param prediction {top, asked}: the most probable classes, and others that were asked for
   * @param targets the chosen classes
   * @param contrast whether their difference is explained
   */
  show({ top, asked }, targets, contrast = false) {
    Object.assign(this, { top, asked: asked ?? [], targets, contrast: contrast && targets.length === 2 });
    this.draw();
  }

  /** Add probabilities of further classes. */
  addProbabilities(asked) {
    const fresh = new Set(asked.map((one) => one.index));
    this.asked = [...this.asked.filter((one) => !fresh.has(one.index)), ...asked];
    this.draw();
  }

  /** Show other shares of prompts, which depend on the whole list. */
  setTop({ top, asked }) {
    Object.assign(this, { top, asked });
    this.draw();
  }

  draw() {
    const focused = document.activeElement?.dataset?.role;
    const shown = this.top.slice(0, LISTED[this.kind]).map((one) => one.index);
    for (const index of this.targets) if (!shown.includes(index)) shown.push(index);
    this.list.replaceChildren(...shown.map((index) => this.#row(index)));
    this.modes.hidden = this.targets.length < 2;
    for (const radio of this.modes.querySelectorAll("input"))
      radio.checked = (radio.value === "contrast") === this.contrast;
    if (focused) this.list.querySelector(`[data-role="${CSS.escape(focused)}"]`)?.focus();
  }

  #row(index) {
    const position = this.targets.indexOf(index);
    const p = this.probability(index);
    const bar = el("span", { class: "probability-bar", "aria-hidden": "true" });
    bar.style.setProperty("--probability", String(p ?? 0));
    const value = p === undefined ? "…" : formatPercent(p);
    const button = el(
      "button",
      {
        type: "button",
        class: "class-button",
        data: { role: `class-${index}` },
        "aria-pressed": String(position === 0),
      },
      el("span", { class: "name" }, this.name(index)),
      el("span", { class: "value" }, value),
      bar,
    );
    button.addEventListener("click", () => this.#choose(index));
    const row = el("li", { class: position === 0 ? "first" : position === 1 ? "second" : "" }, button);
    if (this.canCompare && position !== 0) {
      const label = position === 1 ? `Stop comparing with ${this.name(index)}` : `Compare with ${this.name(index)}`;
      const compare = el(
        "button",
        {
          type: "button",
          class: "compare",
          data: { role: `compare-${index}` },
          "aria-pressed": String(position === 1),
          title: label,
          "aria-label": label,
        },
        position === 1 ? "comparing" : "compare",
      );
      compare.addEventListener("click", () =>
        this.#select(position === 1 ? [this.targets[0]] : [this.targets[0], index]),
      );
      row.append(compare);
    }
    return row;
  }

  #choose(index) {
    const [first, second] = this.targets;
    // Choosing the second class of a pair swaps the two.
    this.#select(index === second ? [second, first] : second === undefined ? [index] : [index, second]);
  }

  /** Choose a target, as a click on the image does. */
  choose(key) {
    this.#choose(key);
  }

  #select(targets) {
    this.targets = targets;
    this.contrast &&= targets.length === 2;
    this.draw();
    this.onChange(targets, this.contrast);
  }

  /** With two classes: a map for each, or one map for the difference of their logits. */
  #createModes() {
    const group = `class-mode-${(count += 1)}`;
    const radio = (value, label, title) =>
      el("label", { title }, el("input", { type: "radio", name: group, value }), el("span", {}, label));
    this.modes = el(
      "fieldset",
      { class: "choice class-modes", hidden: true },
      el("legend", { class: "visually-hidden" }, "How the two classes are compared"),
      radio("pair", "Two maps", "one map for each class"),
      radio("contrast", "Difference", "one map: the logit of the first class minus the logit of the second"),
    );
    this.modes.addEventListener("change", (event) => {
      this.contrast = event.target.value === "contrast";
      this.onChange(this.targets, this.contrast);
    });
    return this.modes;
  }

  #createCombobox() {
    const id = `any-class-${(count += 1)}`;
    this.input = el("input", {
      type: "text",
      id,
      class: "field",
      placeholder: "Any class by name or index",
      autocomplete: "off",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": `${id}-list`,
      "aria-autocomplete": "list",
      "aria-label": "Any class by name or index",
    });
    this.popup = el("ul", { class: "popup", id: `${id}-list`, role: "listbox", "aria-label": "Classes", hidden: true });
    this.field = el("div", { class: "combobox" }, this.input, this.popup);
    this.active = -1;
    this.input.addEventListener("input", () => this.#openPopup());
    this.input.addEventListener("focus", () => this.#openPopup());
    this.input.addEventListener("blur", () => this.#closePopup());
    this.input.addEventListener("keydown", (event) => this.#onKey(event));
    this.popup.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const option = event.target.closest("[role=option]");
      if (option) this.#chooseOption(Number(option.dataset.index));
    });
  }

  #openPopup() {
    if (!this.model || TYPED.includes(this.kind)) return;
    const typed = this.input.value.trim().toLowerCase();
    const names = this.model.classes ?? Array.from({ length: this.model.class_count }, (_, i) => `class ${i}`);
    const matches = [];
    names.forEach((name, index) => {
      const at = name.toLowerCase().indexOf(typed);
      if (at >= 0 || String(index) === typed) matches.push({ index, name, at: String(index) === typed ? -1 : at });
    });
    if (typed) matches.sort((a, b) => (a.at > 0) - (b.at > 0) || a.index - b.index);
    this.active = typed && matches.length ? 0 : -1;
    this.popup.replaceChildren(
      ...matches
        .slice(0, MAX_OPTIONS)
        .map(({ index, name }) =>
          el(
            "li",
            { role: "option", id: `${this.input.id}-${index}`, data: { index }, "aria-selected": "false" },
            el("span", {}, name),
            el("span", { class: "value" }, String(index)),
          ),
        ),
    );
    if (!matches.length) this.popup.append(el("li", { class: "none" }, "No matching class"));
    this.popup.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.#markActive();
  }

  #markActive() {
    const options = [...this.popup.querySelectorAll("[role=option]")];
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === this.active)));
    const option = options[this.active];
    if (option) {
      this.input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else this.input.removeAttribute("aria-activedescendant");
  }

  #onKey(event) {
    const options = this.popup.querySelectorAll("[role=option]");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (this.popup.hidden) this.#openPopup();
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (options.length) this.active = (this.active + step + options.length) % options.length;
      this.#markActive();
    } else if (event.key === "Enter" && TYPED.includes(this.kind)) {
      const text = this.input.value.trim();
      if (text && this.kind === "token") this.#select([keyOf({ kind: "token", text })]);
      else if (text) this.#choose(keyOf({ kind: this.kind, text }));
      this.input.value = "";
    } else if (event.key === "Enter" && options[this.active]) {
      event.preventDefault();
      this.#chooseOption(Number(options[this.active].dataset.index));
    } else if (event.key === "Escape") {
      this.#closePopup();
    }
  }

  #chooseOption(index) {
    this.input.value = "";
    this.#closePopup();
    const key = this.kind === "class" ? index : keyOf({ ...fieldsOf(this.targets[0]), label: index });
    this.#choose(key);
    this.list.querySelector(`[data-role="${CSS.escape(`class-${key}`)}"]`)?.focus();
  }

  #closePopup() {
    this.popup.hidden = true;
    if (TYPED.includes(this.kind)) return;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
