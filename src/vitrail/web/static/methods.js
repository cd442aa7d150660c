/** The methods: which are shown, by family, with what each costs and whether it works on this model. */

import { el } from "./dom.js";

const FAMILIES = {
  attention: "Attention",
  gradient: "Attention and gradient",
  path: "Along a path",
  relevance: "Relevance propagation",
  input: "Gradient of the input",
  perturbation: "By covering parts",
  control: "Controls",
};

/** Shown beside the default at first: one pass makes them all, and a map alone tells little. */
const COMPANIONS = ["vtranm", "transformer_mm", "gradtoken", "rollout"];

export class Methods {
  /**
   * @param root the section to fill
   * @param chosen called when the choice has changed
   */
  constructor(root, chosen) {
    this.chosen = chosen;
    this.specs = [];
    this.model = null;
    this.summary = el("summary", {}, el("span", {}, "Choose"));
    this.filter = el("input", {
      type: "search",
      class: "any",
      placeholder: "Find a method",
      "aria-label": "Find a method",
    });
    this.filter.addEventListener("input", () => this.#sift());
    this.list = el("div", { class: "methods", role: "group", "aria-label": "Methods" });
    this.extra = el("input", {
      type: "text",
      class: "any",
      placeholder: "With options: rise:masks=500",
      "aria-label": "Add a method with options",
      autocomplete: "off",
      spellcheck: false,
    });
    this.extra.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.extra.value.trim()) return;
      this.add(this.extra.value.trim().replaceAll(/\s+/g, ""));
      this.extra.value = "";
    });
    const quick = el("button", { type: "button", class: "quiet" }, "All quick ones");
    quick.addEventListener("click", () =>
      this.#set(this.model.methods.filter((m) => m.works && m.shared_pass && m.family !== "control").map((m) => m.name)),
    );
    const one = el("button", { type: "button", class: "quiet" }, "Only the default");
    one.addEventListener("click", () => this.#set([this.model.default]));
    this.fold = el(
      "details",
      { class: "fold", open: true },
      this.summary,
      this.filter,
      this.list,
      this.extra,
      el("div", { class: "row" }, quick, one),
    );
    root.append(this.fold);
    // On a phone the list would push the picture off the screen.
    if (matchMedia("(max-width: 46rem)").matches) this.fold.open = false;
  }

  of(model, specs) {
    this.model = model;
    const fits = (spec) => model.methods.some((m) => m.name === spec.split(":")[0] && m.works);
    const asked = specs ?? (this.specs.length ? this.specs : [model.default, ...COMPANIONS]);
    const kept = [...new Set(asked)].filter(fits);
    this.specs = kept.length ? kept : [model.default];
    this.#draw();
  }

  /** A spec's line of the registry, with its options in words. */
  about(spec) {
    const [name, ...rest] = spec.split(":");
    const line = this.model?.methods.find((m) => m.name === name);
    return { title: name, shared_pass: false, class_specific: true, ...line, spec, options: rest.join(":") };
  }

  get wanted() {
    return this.specs.map((spec) => ({ spec, cheap: this.about(spec).shared_pass && !this.about(spec).options }));
  }

  add(spec) {
    if (!this.specs.includes(spec)) this.#set([...this.specs, spec]);
  }

  remove(spec) {
    const left = this.specs.filter((one) => one !== spec);
    if (left.length) this.#set(left);
  }

  #set(specs) {
    this.specs = specs.length ? specs : [this.model.default];
    this.#tick();
    this.chosen(this.specs);
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
    this.#sift();
    this.#tick();
  }

  #row(method) {
    const box = el("input", { type: "checkbox", value: method.name, disabled: !method.works });
    box.addEventListener("change", () => {
      if (box.checked) this.add(method.name);
      else this.#set(this.specs.filter((spec) => spec !== method.name));
    });
    const marks = [];
    if (!method.works) marks.push(["not here", method.reason ?? "does not apply to this model"]);
    else {
      if (!method.class_specific) marks.push(["blind", "the same map for every class"]);
      if (method.signed) marks.push(["±", "tells for and against apart"]);
      if (!method.shared_pass && !(method.forwards < 10))
        marks.push([passes(method.forwards), "looks at the picture many times"]);
    }
    const row = el(
      "label",
      { class: method.works ? "method" : "method off", title: method.works ? "" : (method.reason ?? "") },
      box,
      el("span", { class: "name" }, method.title),
      ...marks.map(([mark, words]) => el("span", { class: "mark", title: words }, mark)),
    );
    row.dataset.words = `${method.name} ${method.title} ${method.family}`.toLowerCase();
    return row;
  }

  #sift() {
    const typed = this.filter.value.trim().toLowerCase();
    for (const row of this.list.querySelectorAll("label")) row.hidden = !row.dataset.words.includes(typed);
    for (const group of this.list.querySelectorAll("fieldset"))
      group.hidden = !group.querySelector("label:not([hidden])");
  }

  #tick() {
    for (const box of this.list.querySelectorAll("input")) box.checked = this.specs.includes(box.value);
    const [first] = this.specs;
    const rest = this.specs.length - 1;
    this.summary.firstChild.textContent = this.about(first).title + (rest ? ` and ${rest} more` : "");
  }
}

function passes(count) {
  if (!count) return "slow";
  return count >= 1000 ? `${Math.round(count / 100) / 10}k looks` : `${count} looks`;
}
