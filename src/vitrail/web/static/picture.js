/** The picture bench: a picture, a class, methods, and what they say. */

import * as api from "./api.js";
import { states } from "./captions.js";
import { Classes } from "./classes.js";
import { DIVERGING, SEQUENTIAL, bar } from "./colour.js";
import { Curves } from "./curves.js";
import { alarm, calm, el, sentence, write } from "./dom.js";
import { percent } from "./maps.js";
import { Methods } from "./methods.js";
import { Run } from "./run.js";
import { Table } from "./table.js";
import { Takeaway } from "./takeaway.js";

const find = (id) => document.getElementById(id);

export class PictureBench {
  constructor(attention) {
    this.root = find("picture");
    const part = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.classes = new Classes(part("classes"), (targets) => this.#aim(targets));
    this.methods = new Methods(part("methods"), () => this.#ask());
    this.run = new Run(() => this.draw());
    this.curves = new Curves((spec) => this.methods.about(spec));
    this.takeaway = new Takeaway(part("takeaway"), (progress) =>
      this.run.job(this.methods.specs, this.targets, progress),
    );
    this.table = new Table({
      focus: (spec) => {
        this.focus = spec;
        this.draw();
      },
      remove: (spec) => this.methods.remove(spec),
      stop: (spec) => this.run.stop(spec),
      again: (spec) => {
        this.run.forget(spec);
        this.#ask();
      },
      attend: (patch) => attention.open(this.subject, patch, this.scene),
    });
    this.targets = [];
    this.focus = null;
    this.turn = 0;
    this.look = { opacity: 0.75, smooth: true, alone: false, sequential: "glow", diverging: "coldwarm" };
    this.side = "both";
    this.#controls();
    this.#source();
    find("measure").addEventListener("click", () => this.#measure());
  }

  get subject() {
    return { model: this.model.id, picture: this.picture.id };
  }

  /** Another model: the same picture through its eyes, or its first sample. */
  async use(model) {
    this.model = model;
    this.classes.of(model);
    this.methods.of(model);
    const samples = await api.samples(model.id);
    const develop = this.#thumbs(samples);
    if (this.kept) await this.#open(this.kept);
    else if (samples.length) await this.sample(samples[0].id);
    else write(find("status"), "Open a picture to begin.");
    develop();
  }

  /** A result that was made before, as from a link. */
  async recall(model, job) {
    this.model = model;
    this.classes.of(model);
    const specs = [...new Set(job.items.map((item) => item.method))].filter(
      (spec) => job.kind === "explain" || spec !== "random",
    );
    this.methods.of(model, specs);
    const samples = await api.samples(model.id);
    const develop = this.#thumbs(samples);
    await this.#picture({ picture: job.picture, notes: [] }, (this.turn += 1), { job });
    develop();
  }

  async sample(id) {
    await this.#open({ sample: id });
  }

  async upload(file) {
    await this.#open({ file });
  }

  async #open({ sample, file }) {
    const turn = (this.turn += 1);
    calm();
    this.root.setAttribute("aria-busy", "true");
    write(find("status"), "Reading the picture …");
    try {
      const held = sample ? await api.useSample(this.model.id, sample) : await api.upload(this.model.id, file);
      if (turn !== this.turn) return;
      await this.#picture(held, turn, { source: { sample, file } });
    } catch (error) {
      if (turn !== this.turn) return;
      this.#settle();
      alarm(error);
    }
  }

  /** Show a picture with its classes; the sample is marked only now, so that what is marked is what is shown. */
  async #picture(held, turn, { source = null, job = null }) {
    const subject = { model: this.model.id, picture: held.picture };
    const [image, answer] = await Promise.all([
      load(api.pictureUrl(this.model.id, held.picture)),
      api.predict(subject),
    ]);
    if (turn !== this.turn) return;
    this.picture = { id: held.picture, image };
    this.kept = source;
    for (const button of find("samples").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.sample === source?.sample));
    }
    this.curves.clear();
    this.run.about(subject);
    this.targets = job?.targets?.length ? job.targets.slice(0, 2) : [answer.top[0].index];
    this.classes.show(answer.top, this.targets);
    this.#note(held.notes ?? []);
    if (job?.kind === "explain") this.run.adopt(job);
    if (job?.kind === "curves") this.curves.follow(job);
    this.#ask(false);
  }

  #measure() {
    const methods = this.run.done(this.methods.specs, this.targets.slice(0, 1));
    if (methods.length) this.curves.measure(this.subject, methods, this.targets[0]);
    else alarm({ what: "No map is ready yet.", fix: "Wait for the first one, or choose a method that works here." });
  }

  #note(notes) {
    const place = find("picture-note");
    place.hidden = !notes.length;
    write(place, notes.map(sentence).join(" "));
  }

  #aim(targets) {
    if (targets[0] !== this.targets[0]) this.curves.clear();
    this.targets = targets;
    this.#ask();
  }

  #ask(changed = true) {
    if (!this.picture) return;
    if (changed) this.takeaway.changed();
    if (!this.methods.specs.includes(this.focus)) [this.focus] = this.methods.specs;
    this.run.want(this.methods.wanted, this.targets);
    this.draw();
  }

  draw() {
    if (!this.picture) return;
    const methods = this.methods.specs.map((spec) => this.methods.about(spec));
    this.scene = {
      picture: this.picture,
      methods,
      targets: this.targets,
      focus: this.focus,
      look: this.look,
      side: this.side,
      size: this.model.input ?? [this.picture.image.naturalHeight, this.picture.image.naturalWidth],
      grid: this.model.grid ?? [14, 14],
      item: (spec, target) => this.run.item(spec, target),
      name: (index) => this.classes.name(index),
    };
    this.table.show(this.scene);
    this.#settle(methods);
  }

  #settle(methods = []) {
    const [first, second] = this.targets;
    if (first !== undefined) {
      const p = this.classes.probability(first);
      find("why").replaceChildren(
        "Why ",
        el("em", {}, this.classes.name(first)),
        ...(second === undefined ? [] : [" and not ", el("em", {}, this.classes.name(second))]),
        "?",
        ...(p === undefined ? [] : [el("small", {}, percent(p))]),
      );
      document.title = `Why ${this.classes.name(first)}? Vitrail`;
    }
    find("side").hidden = second === undefined;
    if (second !== undefined) {
      const names = find("side").querySelectorAll("span");
      write(names[1], this.classes.name(first));
      write(names[2], this.classes.name(second));
    }
    const all = methods.map((m) => states(this.targets.map((t) => this.run.item(m.spec, t)).filter(Boolean)));
    const open = all.filter((state) => state === "running" || state === "queued").length;
    const { ahead } = this.run;
    const waiting = ahead ? `, ${ahead} ${ahead === 1 ? "job" : "jobs"} before the next` : "";
    write(
      find("status"),
      open ? `${all.length - open} of ${all.length} ${all.length === 1 ? "map" : "maps"} ready${waiting}` : "",
    );
    this.root.setAttribute("aria-busy", String(open > 0));
  }

  /** Frames for the samples; their pictures come when the returned function is called, after the large one. */
  #thumbs(samples) {
    const images = [];
    find("samples").replaceChildren(
      ...samples
        .filter((s) => s.url)
        .map((sample) => {
          const image = el("img", { alt: sample.title, width: 56, height: 56 });
          images.push([image, sample.url]);
          const pressed = String(this.kept?.sample === sample.id);
          const button = el(
            "button",
            { type: "button", title: sample.title, "aria-pressed": pressed, data: { sample: sample.id } },
            image,
          );
          button.addEventListener("click", () => this.sample(sample.id));
          return el("li", {}, button);
        }),
    );
    return () =>
      images.forEach(([image, url]) => {
        image.src = url;
      });
  }

  #source() {
    const take = (files) => {
      const file = [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
      if (file) this.upload(file);
    };
    const shown = () => !this.root.hidden && this.model;
    find("file").addEventListener("change", (event) => {
      take(event.target.files);
      event.target.value = "";
    });
    document.addEventListener("paste", (event) => {
      if (shown() && event.clipboardData?.files.length) take(event.clipboardData.files);
    });
    let depth = 0;
    const veil = (on) => find("drag").classList.toggle("on", on);
    document.addEventListener("dragenter", (event) => {
      if (!shown() || !event.dataTransfer?.types.includes("Files")) return;
      depth += 1;
      veil(true);
    });
    document.addEventListener("dragleave", () => {
      depth = Math.max(0, depth - 1);
      if (!depth) veil(false);
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      depth = 0;
      veil(false);
      if (shown()) take(event.dataTransfer?.files);
    });
  }

  #controls() {
    const opacity = find("opacity");
    opacity.addEventListener("input", () => {
      write(opacity.nextElementSibling, `${opacity.value} %`);
      this.#see({ opacity: opacity.value / 100 });
    });
    swatches(find("sequential"), "sequential", SEQUENTIAL, "glow", (name) => this.#see({ sequential: name }));
    swatches(find("diverging"), "diverging", DIVERGING, "coldwarm", (name) => this.#see({ diverging: name }));
    const choose = (id, act) => find(id).addEventListener("change", (event) => act(event.target.value));
    choose("rendering", (value) => this.#see({ smooth: value === "smooth" }));
    choose("view", (value) => this.#see({ alone: value === "alone" }));
    choose("side", (value) => {
      this.side = value;
      this.draw();
    });
  }

  #see(change) {
    this.look = { ...this.look, ...change };
    this.draw();
  }
}

function swatches(root, group, names, first, act) {
  for (const [name, words] of Object.entries(names)) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    bar(canvas, name);
    const radio = el("input", {
      type: "radio",
      name: group,
      value: name,
      checked: name === first,
      "aria-label": words,
    });
    root.append(el("label", { title: words }, radio, el("span", {}, canvas)));
  }
  root.addEventListener("change", (event) => act(event.target.value));
}

function load(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(
    () => image,
    () => {
      throw new api.Trouble("The picture could not be shown.", "Open it again.");
    },
  );
}
