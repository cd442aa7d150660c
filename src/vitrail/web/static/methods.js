/** The method picker: methods by family, their cost, and whether they apply to the model. */

import { el } from "./dom.js";

const FAMILIES = {
  attention: "Attention",
  gradient: "Attention and gradient",
  path: "Path integration",
  relevance: "Relevance propagation",
  input: "Input gradient",
  perturbation: "Perturbation",
  trained: "Trained explainer",
  control: "Controls",
};

/** Shown with the default method at first: all are computed in one pass. */
const INITIAL_METHODS = ["vtranm", "gradtoken", "transformer_mm", "rollout"];

/** Methods with fewer forward passes than this have no badge for their cost. */
const MIN_PASSES_SHOWN = 10;

export class MethodPicker {
  /**
   * @param root the section to fill
   * @param onChange called when the selection has changed
   */
  constructor(root, onChange) {
    this.onChange = onChange;
    this.specs = [];
    this.model = null;
    this.summary = el("summary", {}, el("span", {}, "Choose"));
    this.filter = el("input", {
      type: "search",
      class: "field",
      placeholder: "Find a method",
      "aria-label": "Find a method",
    });
    this.filter.addEventListener("input", () => this.#applyFilter());
    this.showAll = el("button", { type: "button", class: "secondary all-methods", "aria-expanded": "false" });
    this.showAll.addEventListener("click", () => {
      this.showAll.setAttribute("aria-expanded", String(this.showAll.getAttribute("aria-expanded") !== "true"));
      this.#applyFilter();
    });
    this.list = el("div", { class: "methods", role: "group", "aria-label": "Methods" });
    this.specInput = el("input", {
      type: "text",
      class: "field",
      placeholder: "With options: rise:masks=500",
      "aria-label": "Add a method with options",
      autocomplete: "off",
      spellcheck: false,
    });
    this.specInput.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.specInput.value.trim()) return;
      this.add(this.specInput.value.trim().replaceAll(/\s+/g, ""));
      this.specInput.value = "";
    });
    const fast = el("button", { type: "button", class: "secondary" }, "All fast methods");
    fast.addEventListener("click", () =>
      this.#select(
        this.model.methods.filter((m) => m.works && m.shared_pass && m.family !== "control").map((m) => m.name),
      ),
    );
    const defaultOnly = el("button", { type: "button", class: "secondary" }, "Default only");
    defaultOnly.addEventListener("click", () => this.#select([this.model.default]));
    this.collapsible = el(
      "details",
      { class: "collapsible", open: true },
      this.summary,
      this.filter,
      this.list,
      this.showAll,
      this.specInput,
      el("div", { class: "row" }, fast, defaultOnly),
    );
    root.append(this.collapsible);
  }

  /** Show the methods of a model; keep the selection where the methods apply. Returns those given that do not. */
  setModel(model, specs) {
    this.model = model;
    const applies = (spec) => model.methods.some((m) => m.name === spec.split(":")[0] && m.works);
    const requested = specs ?? (this.specs.length ? this.specs : [model.default, ...INITIAL_METHODS]);
    const kept = [...new Set(requested)].filter(applies);
    this.specs = kept.length ? kept : [model.default];
    this.#draw();
    return specs ? [...new Set(specs)].filter((spec) => !kept.includes(spec)) : [];
  }

  /** The registry entry of a method, with its options as text. */
  info(spec) {
    const [name, ...rest] = spec.split(":");
    const entry = this.model?.methods.find((m) => m.name === name);
    return { title: name, shared_pass: false, class_specific: true, ...entry, spec, options: rest.join(":") };
  }

  /** The selected methods, and whether each shares the common pass. */
  get selected() {
    return this.specs.map((spec) => {
      const { shared_pass: sharedPass, options } = this.info(spec);
      return { spec, sharedPass: sharedPass && !options };
    });
  }

  add(spec) {
    if (!this.specs.includes(spec)) this.#select([...this.specs, spec]);
  }

  remove(spec) {
    const left = this.specs.filter((one) => one !== spec);
    if (left.length) this.#select(left);
  }

  #select(specs) {
    this.specs = specs.length ? specs : [this.model.default];
    this.#updateChecks();
    this.onChange(this.specs);
  }

  #draw() {
    const groups = new Map();
    for (const method of this.model.methods) {
      if (!groups.has(method.family)) groups.set(method.family, []);
      groups.get(method.family).push(method);
    }
    this.list.replaceChildren(
      ...[...groups].map(([family, methods]) =>
        el("fieldset", {}, el("legend", {}, FAMILIES[family] ?? family), ...methods.map((method) => this.#row(method))),
      ),
    );
    this.#applyFilter();
    this.#updateChecks();
  }

  #row(method) {
    const spec = this.model.default.split(":")[0] === method.name ? this.model.default : method.name;
    const box = el("input", { type: "checkbox", value: spec, disabled: !method.works });
    box.addEventListener("change", () => {
      if (box.checked) this.add(spec);
      else this.#select(this.specs.filter((one) => one !== spec));
    });
    const badges = [];
    if (!method.works) badges.push(["n/a", method.reason ?? "does not apply to this model"]);
    else {
      if (!method.class_specific) badges.push(["class-agnostic", "the same map for every class"]);
      if (method.signed) badges.push(["signed", "separates evidence for the class from evidence against it"]);
      if (!method.shared_pass && !(method.forwards < MIN_PASSES_SHOWN)) badges.push(costBadge(method.forwards));
    }
    const row = el(
      "label",
      { class: method.works ? "method" : "method unavailable", title: this.#tooltip(method) },
      box,
      el("span", { class: "name" }, method.title),
      ...badges.map(([text, tooltip]) => el("span", { class: "badge", title: tooltip }, text)),
    );
    row.dataset.search = `${method.name} ${method.title} ${method.family}`.toLowerCase();
    return row;
  }

  /** What a method computes and its paper, or why it does not apply. */
  #tooltip(method) {
    if (!method.works) return method.reason ?? "";
    const { paper } = method;
    return [method.summary, paper && `${paper.authors}, ${paper.year}: ${paper.title}`].filter(Boolean).join("\n");
  }

  #applyFilter() {
    const typed = this.filter.value.trim().toLowerCase();
    const all = this.showAll.getAttribute("aria-expanded") === "true";
    const short = new Set([this.model?.default, ...INITIAL_METHODS, ...this.specs]);
    for (const row of this.list.querySelectorAll("label")) {
      const listed = typed || all || short.has(row.querySelector("input").value);
      row.hidden = !listed || !row.dataset.search.includes(typed);
    }
    const { length } = this.model?.methods ?? [];
    this.showAll.textContent = all ? "Fewer methods" : `All ${length} methods`;
    this.showAll.hidden = Boolean(typed);
    for (const group of this.list.querySelectorAll("fieldset"))
      group.hidden = !group.querySelector("label:not([hidden])");
  }

  #updateChecks() {
    for (const box of this.list.querySelectorAll("input")) box.checked = this.specs.includes(box.value);
    const [first] = this.specs;
    const rest = this.specs.length - 1;
    this.summary.firstChild.textContent = this.info(first).title + (rest ? ` and ${rest} more` : "");
  }
}

function costBadge(forwards) {
  if (!forwards) return ["slow", "evaluates many perturbed images"];
  const count = forwards >= 1000 ? `${Math.round(forwards / 100) / 10}k` : String(forwards);
  return [`${count} passes`, `evaluates ${forwards - 1} perturbed images`];
}
