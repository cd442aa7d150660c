/** The text bench: the same for a text, its words shaded. */

import * as api from "./api.js";
import { remarks, states, title } from "./captions.js";
import { Classes } from "./classes.js";
import { alarm, calm, el, iconButton, oncePerFrame, trouble, write } from "./dom.js";
import { figures, ordinal, percent, ranked } from "./maps.js";
import { Methods } from "./methods.js";
import { Run } from "./run.js";
import { Takeaway } from "./takeaway.js";
import { paragraph } from "./words.js";

const find = (id) => document.getElementById(id);

export class TextBench {
  constructor(attention) {
    this.root = find("text");
    const part = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.classes = new Classes(
      part("classes"),
      (targets) => {
        this.targets = targets;
        this.#ask();
      },
      false,
    );
    this.methods = new Methods(part("methods"), () => this.#ask());
    this.draw = oncePerFrame(() => this.#draw());
    this.run = new Run(this.draw);
    this.takeaway = new Takeaway(part("takeaway"), (progress) =>
      this.run.job(this.methods.specs, this.targets, progress),
    );
    this.attention = attention;
    this.pages = find("pages");
    this.made = new Map();
    this.targets = [];
    this.turn = 0;
    this.word = null;
    find("read").addEventListener("click", () => this.read(find("words").value));
    find("words").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.read(find("words").value);
    });
    this.#hover();
  }

  /** No text model is served: say how to start one. */
  absent() {
    for (const child of this.root.children) child.hidden = child.id !== "absent";
  }

  async use(model) {
    this.model = model;
    this.classes.of(model);
    this.methods.of(model);
    const samples = (await api.samples(model.id)).filter((sample) => sample.text);
    find("quotes").replaceChildren(
      ...samples.map((sample) => {
        const button = el("button", { type: "button", class: "quote" }, sample.text);
        button.addEventListener("click", () => this.read(sample.text));
        return el("li", {}, button);
      }),
    );
    const first = this.text ?? samples[0]?.text;
    if (first) await this.read(first);
  }

  async recall(model, job) {
    this.model = model;
    this.classes.of(model);
    this.methods.of(model, [...new Set(job.items.map((item) => item.method))]);
    await this.read(job.text, job);
  }

  async read(text, job = null) {
    const turn = (this.turn += 1);
    calm();
    find("words").value = text;
    if (!text.trim()) {
      alarm({ what: "There is no text.", fix: "Type a sentence or choose one of the samples." });
      return;
    }
    this.root.setAttribute("aria-busy", "true");
    write(find("text-status"), "Reading …");
    const subject = { model: this.model.id, text };
    try {
      const answer = await api.predict(subject);
      if (turn !== this.turn) return;
      Object.assign(this, { text, subject });
      this.run.about(subject);
      this.targets = job?.targets?.length ? job.targets.slice(0, 1) : [answer.top[0].index];
      this.classes.show(answer.top, this.targets);
      if (job) this.run.adopt(job);
      this.#ask(false);
    } catch (error) {
      if (turn !== this.turn) return;
      this.root.setAttribute("aria-busy", "false");
      write(find("text-status"), "");
      alarm(error);
    }
  }

  #ask(changed = true) {
    if (!this.subject) return;
    if (changed) this.takeaway.changed();
    this.run.want(this.methods.wanted, this.targets);
    this.draw();
  }

  #draw() {
    if (!this.subject) return;
    const [target] = this.targets;
    const p = this.classes.probability(target);
    find("text-why").replaceChildren(
      "Why ",
      el("em", {}, this.classes.name(target)),
      "?",
      p === undefined ? "" : el("small", {}, percent(p)),
    );
    const methods = this.methods.specs.map((spec) => this.methods.about(spec));
    for (const [spec, page] of this.made) {
      if (this.methods.specs.includes(spec)) continue;
      page.root.remove();
      this.made.delete(spec);
    }
    methods.forEach((method, place) => {
      const page = this.made.get(method.spec) ?? this.#make(method);
      if (this.pages.children[place] !== page.root)
        this.pages.insertBefore(page.root, this.pages.children[place] ?? null);
      page.close.hidden = methods.length < 2;
      this.#fill(page, method, this.run.item(method.spec, target));
    });
    const all = methods.map((m) => this.run.item(m.spec, target)?.state ?? "queued");
    const open = all.filter((state) => state === "running" || state === "queued").length;
    write(find("text-status"), open ? `${all.length - open} of ${all.length} ready` : "");
    this.root.setAttribute("aria-busy", String(open > 0));
  }

  #make(method) {
    const words = title(method);
    const close = iconButton("close", `Remove ${words}`, () => this.methods.remove(method.spec), "icon small");
    const meta = el("span", { class: "meta" });
    const reading = el("span", { class: "reading" });
    const body = el("div", { class: "page-body" });
    const head = el("div", { class: "slide-head" }, el("h3", { class: "name" }, words), meta, reading, close);
    const root = el("article", { class: "page", role: "listitem", data: { method: method.spec } }, head, body);
    const page = { root, close, meta, reading, body, item: null };
    this.made.set(method.spec, page);
    return page;
  }

  #fill(page, method, item) {
    const state = states(item ? [item] : []);
    page.root.dataset.state = state;
    if (page.item === item && page.text === this.text) return;
    Object.assign(page, { item, text: this.text });
    write(page.meta, remarks(method, item).join(" · "));
    if (state === "done") {
      page.words = item.words ?? [];
      page.ranks = ranked(page.words.map((word) => word.score ?? 0));
      page.body.replaceChildren(
        paragraph(this.text, page.words, `Words by ${title(method)}: arrow keys read them, Enter shows attention`),
      );
      if (item.flat) page.body.append(el("span", { class: "warn" }, "Flat: all words alike, this says nothing"));
    } else if (state === "failed" || state === "cancelled") {
      const again = el("button", { type: "button", class: "quiet" }, "Try again");
      again.addEventListener("click", () => {
        this.run.forget(method.spec);
        this.#ask();
      });
      page.body.replaceChildren(state === "failed" ? trouble(item.error) : el("span", {}, "Cancelled"), again);
    } else {
      const meter = el("progress", { max: 1, "aria-label": `${title(method)}: progress` });
      if (item?.progress) meter.value = item.progress;
      const stop = el("button", { type: "button", class: "quiet", "aria-label": `Cancel ${title(method)}` }, "Cancel");
      stop.addEventListener("click", () => this.run.stop(method.spec));
      page.body.replaceChildren(el("div", { class: "slide-note" }, meter, stop));
    }
  }

  /** One cursor over all pages: pointing at a word reads it in every method, clicking shows what it attends to. */
  #hover() {
    const of = (event) => event.target.closest?.("[data-word]")?.dataset.word;
    this.pages.addEventListener("pointerover", (event) => this.point(of(event) ?? null));
    this.pages.addEventListener("pointerleave", () => this.point(null));
    this.pages.addEventListener("keydown", (event) => {
      const page = event.target.closest(".page");
      const words = this.made.get(page?.dataset.method)?.words;
      if (!words?.length || !event.target.matches(".words")) return;
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const now = this.word === null ? (step > 0 ? -1 : 0) : Number(this.word);
        this.point(String((now + step + words.length) % words.length));
        write(find("text-live"), this.made.get(page.dataset.method).reading.textContent);
      } else if (event.key === "Enter" && this.word !== null) this.#attend(Number(this.word), page.dataset.method);
    });
    this.pages.addEventListener("click", (event) => {
      const word = of(event);
      if (word !== undefined) this.#attend(Number(word), event.target.closest(".page").dataset.method);
    });
  }

  point(word) {
    this.word = word;
    for (const span of this.pages.querySelectorAll(".word.here")) span.classList.remove("here");
    for (const page of this.made.values()) {
      const known = word === null ? null : page.words?.[word];
      write(
        page.reading,
        known
          ? `${known.text}: ${figures(known.raw ?? known.score)} · ${ordinal(page.ranks[word])} of ${page.words.length}`
          : "",
      );
      if (known) page.body.querySelector(`[data-word="${word}"]`)?.classList.add("here");
    }
  }

  #attend(word, spec) {
    const { words } = this.made.get(spec);
    this.attention.open(this.subject, word, null, words);
  }
}
