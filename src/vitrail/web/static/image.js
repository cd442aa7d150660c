/** The image panel: an image, a class, methods, and their maps. */

import * as api from "./api.js";
import { combinedState } from "./captions.js";
import { ClassPicker } from "./classes.js";
import { DIVERGING, SEQUENTIAL, drawColourBar } from "./colour.js";
import { MapComparison } from "./comparison.js";
import { Curves } from "./curves.js";
import { el, hideAlert, sentence, setText, showAlert } from "./dom.js";
import { Downloads } from "./downloads.js";
import { JobManager } from "./jobs.js";
import { formatPercent } from "./maps.js";
import { MethodPicker } from "./methods.js";

const find = (id) => document.getElementById(id);

export class ImagePanel {
  constructor(attention) {
    this.root = find("image-panel");
    const part = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.classes = new ClassPicker(part("classes"), (targets) => this.#setTargets(targets));
    this.methods = new MethodPicker(part("methods"), () => this.#request());
    this.jobs = new JobManager(() => this.draw());
    this.curves = new Curves((spec) => this.methods.info(spec));
    this.downloads = new Downloads(part("downloads"), (onProgress) =>
      this.jobs.completeJob(this.methods.specs, this.targets, onProgress),
    );
    this.comparison = new MapComparison({
      focus: (spec) => {
        this.focus = spec;
        this.draw();
      },
      remove: (spec) => this.methods.remove(spec),
      cancel: (spec) => this.jobs.cancel(spec),
      retry: (spec) => {
        this.jobs.reset(spec);
        this.#request();
      },
      attention: (patch) => attention.open(this.input, patch, this.scene),
    });
    this.targets = [];
    this.focus = null;
    this.session = 0;
    this.style = { opacity: 0.75, smooth: true, mapOnly: false, sequential: "glow", diverging: "coldwarm" };
    this.shownClasses = "both";
    this.#addControls();
    this.#addImageSources();
    find("measure").addEventListener("click", () => this.#measure());
  }

  get input() {
    return { model: this.model.id, picture: this.image.id };
  }

  /** Switch to a model: keep the image, or open its first sample. */
  async setModel(model) {
    this.model = model;
    this.classes.setModel(model);
    this.methods.setModel(model);
    const samples = await api.samples(model.id);
    const loadThumbnails = this.#addThumbnails(samples);
    if (this.source) await this.#open(this.source);
    else if (samples.length) await this.openSample(samples[0].id);
    else setText(find("status"), "Open an image to start.");
    loadThumbnails();
  }

  /** Show a finished or running job, as from a link. */
  async loadJob(model, job) {
    this.model = model;
    this.classes.setModel(model);
    const specs = [...new Set(job.items.map((item) => item.method))].filter(
      (spec) => job.kind === "explain" || spec !== "random",
    );
    this.methods.setModel(model, specs);
    const samples = await api.samples(model.id);
    const loadThumbnails = this.#addThumbnails(samples);
    await this.#show({ picture: job.picture, notes: [] }, (this.session += 1), { job });
    loadThumbnails();
  }

  async openSample(id) {
    await this.#open({ sample: id });
  }

  async upload(file) {
    await this.#open({ file });
  }

  async #open({ sample, file }) {
    const session = (this.session += 1);
    hideAlert();
    this.root.setAttribute("aria-busy", "true");
    setText(find("status"), "Loading the image …");
    try {
      const stored = sample ? await api.useSample(this.model.id, sample) : await api.upload(this.model.id, file);
      if (session !== this.session) return;
      await this.#show(stored, session, { source: { sample, file } });
    } catch (error) {
      if (session !== this.session) return;
      this.#drawStatus();
      showAlert(error);
    }
  }

  /** Show an image with its classes; its sample is marked only now, so that the marked sample is the one shown. */
  async #show(stored, session, { source = null, job = null }) {
    const input = { model: this.model.id, picture: stored.picture };
    const [element, prediction] = await Promise.all([
      loadImage(api.imageUrl(this.model.id, stored.picture)),
      api.predict(input),
    ]);
    if (session !== this.session) return;
    this.image = { id: stored.picture, element };
    this.source = source;
    for (const button of find("samples").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.sample === source?.sample));
    }
    this.curves.clear();
    this.jobs.setInput(input);
    this.targets = job?.targets?.length ? job.targets.slice(0, 2) : [prediction.top[0].index];
    this.classes.show(prediction.top, this.targets);
    this.#showNotes(stored.notes ?? []);
    if (job?.kind === "explain") this.jobs.load(job);
    if (job?.kind === "curves") this.curves.follow(job);
    this.#request(false);
  }

  #measure() {
    const methods = this.jobs.finished(this.methods.specs, this.targets.slice(0, 1));
    if (methods.length) this.curves.measure(this.input, methods, this.targets[0]);
    else
      showAlert({
        what: "No map is ready yet.",
        fix: "Wait for the first one, or choose a method that applies to this model.",
      });
  }

  #showNotes(notes) {
    const element = find("image-note");
    element.hidden = !notes.length;
    setText(element, notes.map(sentence).join(" "));
  }

  #setTargets(targets) {
    if (targets[0] !== this.targets[0]) this.curves.clear();
    this.targets = targets;
    this.#request();
  }

  #request(changed = true) {
    if (!this.image) return;
    if (changed) this.downloads.reset();
    if (!this.methods.specs.includes(this.focus)) [this.focus] = this.methods.specs;
    this.jobs.request(this.methods.selected, this.targets);
    this.draw();
  }

  draw() {
    if (!this.image) return;
    const methods = this.methods.specs.map((spec) => this.methods.info(spec));
    this.scene = {
      image: this.image,
      methods,
      targets: this.targets,
      focus: this.focus,
      style: this.style,
      shownClasses: this.shownClasses,
      size: this.model.input ?? [this.image.element.naturalHeight, this.image.element.naturalWidth],
      grid: this.model.grid ?? [14, 14],
      item: (spec, target) => this.jobs.item(spec, target),
      className: (index) => this.classes.name(index),
    };
    this.comparison.show(this.scene);
    this.#drawStatus(methods);
  }

  #drawStatus(methods = []) {
    const [first, second] = this.targets;
    if (first !== undefined) {
      const p = this.classes.probability(first);
      find("question").replaceChildren(
        "Why ",
        el("em", {}, this.classes.name(first)),
        ...(second === undefined ? [] : [" and not ", el("em", {}, this.classes.name(second))]),
        "?",
        ...(p === undefined ? [] : [el("small", {}, formatPercent(p))]),
      );
      document.title = `Why ${this.classes.name(first)}? Vitrail`;
    }
    find("shown-classes").hidden = second === undefined;
    if (second !== undefined) {
      const names = find("shown-classes").querySelectorAll("span");
      setText(names[1], this.classes.name(first));
      setText(names[2], this.classes.name(second));
    }
    const itemsOf = (method) => this.targets.map((t) => this.jobs.item(method.spec, t)).filter(Boolean);
    const states = methods.map((method) => combinedState(itemsOf(method)));
    const open = states.filter((state) => state === "running" || state === "queued").length;
    const { ahead } = this.jobs;
    const waiting = ahead ? `, ${ahead} ${ahead === 1 ? "job" : "jobs"} ahead in the queue` : "";
    const { length } = states;
    setText(
      find("status"),
      open ? `${length - open} of ${length} ${length === 1 ? "map" : "maps"} ready${waiting}` : "",
    );
    this.root.setAttribute("aria-busy", String(open > 0));
  }

  /** Add the buttons of the samples; their images load when the returned function is called, after the main image. */
  #addThumbnails(samples) {
    const images = [];
    find("samples").replaceChildren(
      ...samples
        .filter((s) => s.url)
        .map((sample) => {
          const image = el("img", { alt: sample.title, width: 56, height: 56 });
          images.push([image, sample.url]);
          const pressed = String(this.source?.sample === sample.id);
          const button = el(
            "button",
            { type: "button", title: sample.title, "aria-pressed": pressed, data: { sample: sample.id } },
            image,
          );
          button.addEventListener("click", () => this.openSample(sample.id));
          return el("li", {}, button);
        }),
    );
    return () =>
      images.forEach(([image, url]) => {
        image.src = url;
      });
  }

  /** Open an image from the file dialog, the clipboard, or by drag and drop. */
  #addImageSources() {
    const openFirst = (files) => {
      const file = [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
      if (file) this.upload(file);
    };
    const isActive = () => !this.root.hidden && this.model;
    find("file").addEventListener("change", (event) => {
      openFirst(event.target.files);
      event.target.value = "";
    });
    document.addEventListener("paste", (event) => {
      if (isActive() && event.clipboardData?.files.length) openFirst(event.clipboardData.files);
    });
    let depth = 0;
    const showOverlay = (on) => find("drop-overlay").classList.toggle("on", on);
    document.addEventListener("dragenter", (event) => {
      if (!isActive() || !event.dataTransfer?.types.includes("Files")) return;
      depth += 1;
      showOverlay(true);
    });
    document.addEventListener("dragleave", () => {
      depth = Math.max(0, depth - 1);
      if (!depth) showOverlay(false);
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      depth = 0;
      showOverlay(false);
      if (isActive()) openFirst(event.dataTransfer?.files);
    });
  }

  #addControls() {
    const opacity = find("opacity");
    opacity.addEventListener("input", () => {
      setText(opacity.nextElementSibling, `${opacity.value} %`);
      this.#setStyle({ opacity: opacity.value / 100 });
    });
    addSwatches(find("sequential"), "sequential", SEQUENTIAL, "glow", (name) => this.#setStyle({ sequential: name }));
    addSwatches(find("diverging"), "diverging", DIVERGING, "coldwarm", (name) => this.#setStyle({ diverging: name }));
    const onChoice = (id, run) => find(id).addEventListener("change", (event) => run(event.target.value));
    onChoice("rendering", (value) => this.#setStyle({ smooth: value === "smooth" }));
    onChoice("view", (value) => this.#setStyle({ mapOnly: value === "map" }));
    onChoice("shown-classes", (value) => {
      this.shownClasses = value;
      this.draw();
    });
  }

  #setStyle(change) {
    this.style = { ...this.style, ...change };
    this.draw();
  }
}

function addSwatches(root, group, names, selected, onChange) {
  for (const [name, label] of Object.entries(names)) {
    const canvas = el("canvas", { "aria-hidden": "true" });
    drawColourBar(canvas, name);
    const radio = el("input", {
      type: "radio",
      name: group,
      value: name,
      checked: name === selected,
      "aria-label": label,
    });
    root.append(el("label", { title: label }, radio, el("span", {}, canvas)));
  }
  root.addEventListener("change", (event) => onChange(event.target.value));
}

function loadImage(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(
    () => image,
    () => {
      throw new api.ApiError("The image cannot be displayed.", "Open it again.");
    },
  );
}
