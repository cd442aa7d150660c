/** The text panel: a text, a class, methods, and the words coloured by their scores. */

import { verdictBadge } from "./about.js";
import * as api from "./api.js";
import { combinedState, mapProperties, methodTitle, waitingText } from "./captions.js";
import { MapChecks } from "./checks.js";
import { ClassPicker } from "./classes.js";
import { el, errorMessage, hideAlert, iconButton, minus, oncePerFrame, sentence, setText, showAlert } from "./dom.js";
import { Downloads } from "./downloads.js";
import { headline, setIntroduction } from "./headline.js";
import { JobManager } from "./jobs.js";
import { formatNumber, ordinal, ranksOf } from "./maps.js";
import { MethodPicker } from "./methods.js";
import { fieldsOf, isNamed } from "./targets.js";
import { paragraph } from "./words.js";
import { WrittenWords } from "./written.js";

const find = (id) => document.getElementById(id);
/** In front of the words that a language model writes. */
const WRITES = "The model continues (choose a word):";

export class TextPanel {
  /**
   * @param attention the attention dialog
   * @param onState called when the state has changed; with true if it belongs into the history
   */
  constructor(attention, onState) {
    this.onState = onState;
    this.root = find("text-panel");
    const part = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.classes = new ClassPicker(
      part("classes"),
      (targets) => {
        this.targets = targets;
        this.written.show(WRITES, this.answer, targets[0]);
        this.#change();
      },
      false,
    );
    this.written = new WrittenWords(find("continuation"), (key) => this.explain(this.text, { classes: [key], push: true }));
    this.methods = new MethodPicker(part("methods"), () => this.#change());
    this.draw = oncePerFrame(() => this.#draw());
    this.jobs = new JobManager(this.draw);
    this.checks = new MapChecks(this.draw);
    this.toggle = find("text-check-toggle");
    this.toggle.addEventListener("click", () => this.checks.setEnabled(this.toggle.dataset.action === "start"));
    this.downloads = new Downloads(part("downloads"), (...args) =>
      this.jobs.completeJob(this.methods.specs, this.targets, ...args),
    );
    this.attention = attention;
    this.list = find("text-cards");
    this.cards = new Map();
    this.targets = [];
    this.session = 0;
    this.word = null;
    const explainTyped = () => this.explain(find("text-input").value, { push: true });
    find("explain-text").addEventListener("click", explainTyped);
    find("text-input").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) explainTyped();
    });
    this.#addEvents();
  }

  /** Say that no text model is available, and how to start the server with one. */
  showNoModel() {
    for (const child of this.root.children) child.hidden = child.id !== "no-text-model";
  }

  /** The state, as `parseAddress` reads it. */
  get state() {
    return { model: this.model?.id, text: this.text, classes: this.targets, methods: this.methods.specs };
  }

  /** Show a state: a model, and what else is given; the text stays, or the first sample is explained. */
  async open(model, state, _models, job = null) {
    const known = model === this.model;
    this.model = model;
    if (!known) this.classes.setModel(model);
    this.rejected = this.methods.setModel(model, state.methods?.length ? state.methods : undefined);
    if (!known) {
      const samples = (await api.samples(model.id)).filter((sample) => sample.text);
      this.firstSample = samples[0]?.text;
      find("sample-texts").replaceChildren(
        ...samples.map((sample) => {
          const button = el("button", { type: "button", class: "sample-text" }, sample.text);
          button.addEventListener("click", () => this.explain(sample.text, { push: true }));
          return el("li", {}, button);
        }),
      );
    }
    const text = job?.text ?? state.text ?? this.text ?? this.firstSample;
    if (text) await this.explain(text, { classes: job?.targets ?? state.classes, job });
  }

  async explain(text, { classes = null, job = null, push = false } = {}) {
    const session = (this.session += 1);
    hideAlert();
    find("text-input").value = text;
    if (!text.trim()) {
      showAlert({ what: "The text is empty.", fix: "Type a sentence or choose one of the samples." });
      return;
    }
    this.root.setAttribute("aria-busy", "true");
    setText(find("text-status"), "Loading …");
    const input = { model: this.model.id, text };
    try {
      const writes = this.model.targets === "token";
      const named = (classes ?? []).filter(isNamed).slice(0, 1);
      const prediction = await api.predict(writes ? { ...input, targets: named.map(fieldsOf) } : input);
      if (session !== this.session) return;
      const isSame = text === this.text && input.model === this.input?.model;
      Object.assign(this, { text, input });
      if (!isSame || job) {
        this.jobs.setInput(input);
        this.checks.setInput(input);
      }
      const valid = writes ? named : (classes ?? []).filter((index) => index < this.model.class_count).slice(0, 1);
      Object.assign(this, { read: prediction.before ?? text, answer: prediction.written });
      this.targets = valid.length ? valid : [prediction.top[0].index];
      this.classes.show(prediction, this.targets);
      this.written.show(WRITES, this.answer, this.targets[0]);
      this.#showLegend(writes);
      if (job) this.jobs.load(job);
      this.#request(false);
      this.onState(push);
    } catch (error) {
      if (session !== this.session) return;
      this.root.setAttribute("aria-busy", "false");
      setText(find("text-status"), "");
      showAlert(error);
    }
  }

  /** What the colours mean: for a class, or for the next word. */
  #showLegend(writes) {
    const what = writes ? "word" : "class";
    const [support, against, agnostic] = find("text-legend").children;
    setText(support, `for the ${what}`);
    setText(against, `against the ${what}`);
    setText(agnostic, `relevant, for no ${what} (${writes ? "methods without a target" : "class-agnostic methods"})`);
    setText(find("explain-text"), writes ? "Let the model continue" : "Explain this text");
  }

  /** Compute what is missing after a choice of the user, and add the choice to the history. */
  #change() {
    this.#request();
    this.onState(true);
  }

  #request(changed = true) {
    if (!this.input) return;
    if (changed) this.downloads.reset();
    this.jobs.request(this.methods.selected, this.targets);
    this.draw();
  }

  #draw() {
    if (!this.input) return;
    const [target] = this.targets;
    const heading = headline(this.classes, this.targets, false);
    find("text-question").replaceChildren(...heading.nodes);
    if (!this.root.hidden) {
      document.title = `${heading.text} Vitrail`;
      setIntroduction("text", this.classes);
    }
    const methods = this.methods.specs.map((spec) => this.methods.info(spec));
    for (const [spec, card] of this.cards) {
      if (this.methods.specs.includes(spec)) continue;
      card.root.remove();
      this.cards.delete(spec);
    }
    methods.forEach((method, position) => {
      const card = this.cards.get(method.spec) ?? this.#createCard(method);
      if (this.list.children[position] !== card.root)
        this.list.insertBefore(card.root, this.list.children[position] ?? null);
      card.remove.hidden = methods.length < 2;
      this.#drawCard(card, method, this.jobs.item(method.spec, target));
      this.#drawCheck(card, this.checks.item(method.spec, target));
    });
    const ready = this.jobs.finished(this.methods.specs, this.targets);
    this.checks.update(ready, this.targets, this.jobs.idle);
    this.toggle.hidden = this.checks.enabled && !this.checks.job;
    this.toggle.dataset.action = this.checks.enabled ? "stop" : "start";
    setText(this.toggle, this.checks.enabled ? "Stop checking" : "Check the word scores");
    const states = methods.map((m) => this.jobs.item(m.spec, target)?.state ?? "queued");
    const open = states.filter((state) => state === "running" || state === "queued").length;
    setText(find("text-status"), open ? `${states.length - open} of ${states.length} ready` : "");
    this.root.setAttribute("aria-busy", String(open > 0));
  }

  #createCard(method) {
    const title = methodTitle(method);
    const remove = iconButton("close", `Remove ${title}`, () => this.methods.remove(method.spec), "icon small");
    const meta = el("span", { class: "meta" });
    const readout = el("span", { class: "readout" });
    const body = el("div", { class: "card-body" });
    const head = el("div", { class: "card-head" }, el("h2", { class: "name" }, title), meta, readout, remove);
    const check = el("div", { class: "text-check" });
    const root = el("div", { class: "text-card", role: "listitem", data: { method: method.spec } }, head, body, check);
    const card = { root, remove, meta, readout, body, check, item: null };
    this.cards.set(method.spec, card);
    return card;
  }

  #drawCard(card, method, item) {
    const state = combinedState(item ? [item] : []);
    card.root.dataset.state = state;
    if (card.item === item && card.text === this.read) return;
    Object.assign(card, { item, text: this.read });
    setText(card.meta, mapProperties(method, item).join(" · "));
    const title = methodTitle(method);
    if (state === "done") {
      card.words = item.words ?? [];
      card.ranks = ranksOf(card.words.map((word) => word.score ?? 0));
      const label = `Word scores by ${title}: arrow keys read them, Enter shows the attention`;
      card.body.replaceChildren(paragraph(this.read, card.words, label, !method.class_specific));
      if (item.flat) card.body.append(el("span", { class: "warning" }, "Constant: all words have the same score"));
    } else if (state === "failed" || state === "cancelled") {
      const retry = el("button", { type: "button", class: "secondary" }, "Try again");
      retry.addEventListener("click", () => {
        this.jobs.reset(method.spec);
        this.#request();
      });
      card.body.replaceChildren(state === "failed" ? errorMessage(item.error) : el("span", {}, "Cancelled"), retry);
    } else {
      const meter = el("progress", { max: 1, "aria-label": `${title}: progress` });
      if (item?.progress) meter.value = item.progress;
      meter.hidden = state === "queued";
      const waiting = el("span", { class: "waiting" }, waitingText(state, item ? [item] : [], this.jobs.ahead));
      const cancel = el("button", { type: "button", class: "secondary", "aria-label": `Cancel ${title}` }, "Cancel");
      cancel.addEventListener("click", () => this.jobs.cancel(method.spec));
      card.body.replaceChildren(el("div", { class: "card-note" }, meter, waiting, cancel));
    }
  }

  /** The verdict of the check and its sentences, its progress, or why there is none. */
  #drawCheck(card, item) {
    const parts = [];
    if (item?.check)
      parts.push(
        el("p", { class: "check-verdict" }, verdictBadge(item), " ", sentence(item.check.meaning)),
        el("p", { class: "check-detail" }, minus(item.check.sentences.join(" "))),
      );
    else if (item?.error) parts.push(el("p", { class: "check-detail" }, `Not checked: ${sentence(item.error.what)}`));
    else if (item?.state === "running")
      parts.push(el("p", { class: "check-detail" }, `Checking … ${Math.round(100 * (item.progress ?? 0))} %`));
    const drawnKey = parts.map((part) => part.textContent).join("\n");
    if (card.check.drawnKey === drawnKey) return;
    card.check.drawnKey = drawnKey;
    card.check.replaceChildren(...parts);
  }

  /** Pointing at a word reads its score in every method; clicking it shows its attention. */
  #addEvents() {
    const wordOf = (event) => event.target.closest?.("[data-word]")?.dataset.word;
    this.list.addEventListener("pointerover", (event) => this.setWord(wordOf(event) ?? null));
    this.list.addEventListener("pointerleave", () => this.setWord(null));
    this.list.addEventListener("keydown", (event) => {
      const card = event.target.closest(".text-card");
      const words = this.cards.get(card?.dataset.method)?.words;
      if (!words?.length || !event.target.matches(".words")) return;
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const current = this.word === null ? (step > 0 ? -1 : 0) : Number(this.word);
        this.setWord(String((current + step + words.length) % words.length));
        setText(find("text-live"), this.cards.get(card.dataset.method).readout.textContent);
      } else if (event.key === "Enter" && this.word !== null)
        this.#openAttention(Number(this.word), card.dataset.method);
    });
    this.list.addEventListener("click", (event) => {
      const word = wordOf(event);
      if (word !== undefined) this.#openAttention(Number(word), event.target.closest(".text-card").dataset.method);
    });
  }

  setWord(word) {
    this.word = word;
    for (const span of this.list.querySelectorAll(".word.current")) span.classList.remove("current");
    for (const card of this.cards.values()) {
      const known = word === null ? null : card.words?.[word];
      const rank = known && `${ordinal(card.ranks[word])} of ${card.words.length}`;
      setText(card.readout, known ? `${known.text}: ${formatNumber(known.raw ?? known.score)} · ${rank}` : "");
      if (known) card.body.querySelector(`[data-word="${word}"]`)?.classList.add("current");
    }
  }

  #openAttention(word, spec) {
    if (!this.model.attention) return;
    const { words } = this.cards.get(spec);
    this.attention.open(this.input, word, null, words);
  }
}
