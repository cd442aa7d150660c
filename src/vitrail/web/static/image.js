/** The image panel: an image, classes, methods, and their maps. */

import { AboutMap, worstCheck } from "./about.js";
import { DEFAULT_STYLE } from "./address.js";
import * as api from "./api.js";
import { combinedState, methodTitle } from "./captions.js";
import { MapChecks } from "./checks.js";
import { ClassPicker } from "./classes.js";
import { MapComparison } from "./comparison.js";
import { addControls, showClassChoice, showStyle } from "./controls.js";
import { Curves } from "./curves.js";
import { el, hideAlert, sentence, setText, showAlert } from "./dom.js";
import { examplesFor, showExamples } from "./examples.js";
import { Downloads } from "./downloads.js";
import { closeDrawer } from "./drawer.js";
import { FrameSlider } from "./frames.js";
import { headline, setIntroduction, tableHeadline } from "./headline.js";
import { loadImage } from "./images.js";
import { JobManager } from "./jobs.js";
import { setTime, timeOf } from "./maps.js";
import { MethodPicker } from "./methods.js";
import { TargetOverlay } from "./overlay_targets.js";
import { showRecent } from "./recent.js";
import { Pins } from "./pins.js";
import { PatchRemoval } from "./removal.js";
import { uploadReduced } from "./shrink.js";
import { addImageSources, addThumbnails, markSample } from "./sources.js";
import { contrastKey, fieldsOf, isNamed, keyOf } from "./targets.js";
import { findFile, keepFile } from "./uploads.js";
import { TableViews } from "./views.js";
import { paragraph } from "./words.js";
import { WrittenWords } from "./written.js";

const find = (id) => document.getElementById(id);
const NO_MAP = {
  what: "No map is ready yet.",
  fix: "Wait for the first one, or choose a method that applies to this model.",
};

export class ImagePanel {
  /**
   * @param attention the attention dialog
   * @param onState called when the state has changed; with true if it belongs into the history
   */
  constructor(attention, onState) {
    this.root = find("image-panel");
    this.onState = onState;
    const part = (name) => this.root.querySelector(`[data-part=${name}]`);
    this.classes = new ClassPicker(part("classes"), (...chosen) => this.#setTargets(...chosen));
    this.methods = new MethodPicker(part("methods"), () => this.#change());
    this.jobs = new JobManager(() => this.draw());
    this.checks = new MapChecks(() => this.draw());
    this.curves = new Curves(
      (spec) => this.methods.info(spec),
      () => this.onState(false),
    );
    this.downloads = new Downloads(part("downloads"), (...args) =>
      this.jobs.completeJob(this.methods.specs, this.keys, ...args),
    );
    this.about = new AboutMap({
      focus: (spec) => this.#setFocus(spec),
      enableChecks: (enabled) => this.checks.setEnabled(enabled),
    });
    this.comparison = new MapComparison({
      focus: (spec) => this.#setFocus(spec),
      remove: (spec) => this.methods.remove(spec),
      cancel: (spec) => this.jobs.cancel(spec),
      retry: (spec) => {
        this.jobs.reset(spec);
        this.#request();
      },
      attention: (patch) => attention.open(this.input, patch, this.scene),
    });
    this.overlay = new TargetOverlay(find("main-map"), {
      choose: (key) => this.classes.choose(key),
      patch: () => this.comparison.patch,
    });
    this.written = new WrittenWords(find("answer"), (key) => this.#setTargets([key], false));
    this.frames = new FrameSlider((_, settled) => {
      this.draw();
      if (settled) this.onState(false);
    });
    this.removal = new PatchRemoval();
    this.pins = new Pins(() => this.#shownResult());
    this.views = new TableViews(
      () => this.draw(),
      () => this.#change(),
    );
    Object.assign(this, { targets: [], contrast: false, focus: null, session: 0, shown: "both", source: null });
    this.style = { ...DEFAULT_STYLE };
    addControls(
      (change, settled = true) => {
        this.style = { ...this.style, ...change };
        this.draw();
        if (settled) this.onState(false); // a browser refuses an address that changes too often
      },
      (shown) => {
        this.shown = shown;
        this.draw();
        this.onState(false);
      },
    );
    addImageSources(
      () => !this.root.hidden && this.model,
      (file) => this.upload(file),
    );
    find("measure").addEventListener("click", () => this.#measure());
    api.watchIds(async (old, id) => {
      this.onState(false);
      const file = await findFile(old);
      if (file) keepFile(id, file);
    });
  }

  get input() {
    return { model: this.model.id, picture: this.image.id };
  }

  /** What maps are computed for: the classes, or "a-b" for their difference. */
  get keys() {
    if (this.views.name === "matrix") return this.#matrixClasses();
    if (this.views.name === "models") return this.targets.slice(0, 1);
    return this.contrast ? [contrastKey(...this.targets)] : this.targets;
  }

  /** The state, as `parseAddress` reads it. */
  get state() {
    return {
      model: this.model?.id,
      sample: this.source?.sample,
      image: this.source?.sample || !this.image ? null : api.currentId(this.image.id),
      classes: this.targets,
      contrast: this.contrast,
      methods: this.methods.specs,
      focus: this.focus,
      view: this.views.name,
      other: this.views.other.wanted,
      shown: this.targets.length > 1 && !this.contrast ? this.shown : "both",
      time: this.image?.frames ? this.frames.frame : null,
      curves: this.curves.shown,
      style: this.style,
    };
  }

  /**
   * Show a state: a model, and what else is given; the image stays, or the first sample is opened.
   *
   * @param state as `parseAddress` gives it
   * @param models all models, for the comparison of two
   * @param job an existing job to show, as from a link
   */
  async open(model, state, models, job = null) {
    const session = (this.session += 1);
    const known = model === this.model;
    Object.assign(this, { model, models, shown: state.shown ?? "both", focus: state.focus });
    if (state.style) {
      this.style = state.style;
      showStyle(this.style);
    }
    if (!known) this.classes.setModel(model);
    this.rejected = this.methods.setModel(model, state.methods?.length ? state.methods : undefined);
    this.views.setModels(models, model, state);
    this.curves.setModel(model);
    let loadThumbnails = () => {};
    if (!known) {
      loadThumbnails = await this.#addSamples();
      if (session !== this.session) return;
    }
    let source = this.source ?? { sample: this.firstSample };
    if (this.source && !known && this.#isForeign(source)) source = { sample: this.firstSample };
    if (state.sample) source = { sample: state.sample };
    else if (state.image && state.image !== this.image?.id) source = { image: state.image };
    await this.#open(source, { ...state, job });
    loadThumbnails();
  }

  /** Offer a model and its samples without opening an image. */
  async prepare(model, models) {
    Object.assign(this, { model, models });
    this.classes.setModel(model);
    this.methods.setModel(model);
    this.views.setModels(models, model, {});
    (await this.#addSamples())();
  }

  /** Add the samples of the model; the returned function loads their images. */
  async #addSamples() {
    const samples = await api.samples(this.model.id);
    this.samples = samples;
    this.firstSample = samples[0]?.id;
    find("drop-zone").hidden = this.model.media === "sound";
    setText(find("image-title"), { image: "Image", video: "Video", sound: "Sound" }[this.model.media]);
    setText(find("drop-text"), this.model.media === "video" ? "Open an animated GIF" : "Open an image");
    showExamples(find("examples"), examplesFor(this.model, samples, this.models ?? []), (address) => {
      closeDrawer();
      history.pushState(null, "", address);
      dispatchEvent(new PopStateEvent("popstate"));
    });
    return addThumbnails(samples, (id) => {
      closeDrawer();
      this.#open({ sample: id }, { push: true });
    });
  }

  async upload(file) {
    closeDrawer();
    await this.#open({ file }, { push: true });
  }

  /** Open an image; the state is added to the history if `push` is set, and replaced otherwise. */
  async #open(source, { classes = null, contrast = false, curves = false, time = 0, job = null, push = false } = {}) {
    const session = (this.session += 1);
    hideAlert();
    this.root.setAttribute("aria-busy", "true");
    setText(find("status"), "Loading the image …");
    try {
      const [stored, origin] = await this.#store(source);
      if (session !== this.session) return;
      // Classes of a link that are waiting for their image, which was opened again just now.
      const waiting = push ? this.waiting : null;
      this.waiting = null;
      await this.#show(stored, session, { source: origin, classes, contrast, curves, time, job, push, ...waiting });
    } catch (error) {
      if (session !== this.session) return;
      this.root.setAttribute("aria-busy", "false");
      setText(find("status"), "");
      if (source.image && error.status === 404) this.#showDead({ classes, contrast });
      else showAlert(error);
    }
  }

  /** Store an image on the server: a sample, a file, or an image of a link, whose file is sent again if necessary. */
  async #store({ sample, file, image }) {
    const { id } = this.model;
    if (sample) return [await api.useSample(id, sample), { sample }];
    if (file) {
      const { stored, sent } = await uploadReduced(file, (one) => api.upload(id, one));
      await keepFile(stored.picture, sent);
      return [stored, { file: sent }];
    }
    const kept = await findFile(image);
    try {
      const stored = await api.image(id, image);
      if (kept) api.setOrigin(image, () => api.upload(id, kept));
      return [stored, { image }];
    } catch (error) {
      if (error.status !== 404 || !kept) throw error;
      return this.#store({ file: kept });
    }
  }

  /** Say that the image of a link is gone; what else the link says applies to the image that is opened next. */
  #showDead(state) {
    this.waiting = state;
    this.image = null;
    this.root.classList.add("empty");
    find("notice").hidden = false;
    setText(find("notice-title"), "The image of this link is no longer on the server.");
    setText(
      find("notice-text"),
      "The server keeps images for a limited time, and this browser does not have the file. " +
        "Open the image file again: the model, classes and methods of the link are kept. Or choose a sample.",
    );
  }

  /** Show an image with its classes; its sample is marked only now, so that the marked sample is the one shown. */
  async #show(stored, session, { source, classes, contrast, curves, time, job, push }) {
    const input = { model: this.model.id, picture: stored.picture };
    let valid = (classes ?? []).filter((key) => this.#isValid(key)).slice(0, 2);
    const suggested = this.samples?.find((one) => one.id === source.sample)?.prompts ?? [];
    const texts = suggested.length ? suggested : (this.model.prompts ?? []);
    const prompts = texts.map((text) => ({ kind: this.model.targets, text }));
    this.questions = this.model.targets === "token" ? texts : [];
    const isSame = this.image?.id === stored.picture && this.image.model === this.model.id;
    const [image, prediction] = await Promise.all([
      isSame ? this.image : this.#loadImages(stored),
      this.#predict(input, valid, prompts.map(keyOf)).catch((error) => {
        if (!valid.some(isNamed) || error.status !== 422) throw error;
        valid = []; // what the link names does not exist here
        showAlert(error);
        return this.#predict(input, [], prompts.map(keyOf));
      }),
    ]);
    if (session !== this.session) return;
    this.image = image;
    this.source = source;
    this.root.classList.remove("empty");
    find("notice").hidden = true;
    markSample(source.sample ?? null);
    showRecent(find("recent"), (file) => this.upload(file), image.id);
    this.#showNotes([...(stored.notes ?? []), ...(stored.geometry.cropped ? [stored.geometry.text] : [])]);
    if (!isSame || job) {
      this.curves.clear();
      this.jobs.setInput(input);
      this.checks.setInput(input);
    } else if (valid[0] !== this.targets[0]) this.curves.clear();
    this.shownModel = this.model;
    this.frames.setCount(image.frames?.length ?? 1, time ?? 0);
    if (valid.some((key) => isNamed(key) && fieldsOf(key).kind === "token" && fieldsOf(key).token === undefined)) valid = [];
    this.targets = valid.length ? valid : [prediction.top[0]?.index ?? this.#middle()];
    this.answer = prediction.written;
    this.contrast = contrast && this.targets.length === 2;
    this.classes.show(prediction, this.targets, this.contrast);
    if (job?.kind === "explain") this.jobs.load(job);
    if (job?.kind === "curves") this.curves.follow(job);
    this.measureWhenReady = curves && !job;
    this.#request(false);
    this.onState(push);
  }

  /** Whether what is shown is not for this model: a video or sound, or a sample of a model of another kind. */
  #isForeign({ sample }) {
    const { media, targets } = this.model;
    if (this.shownModel.media !== media) return true;
    const sameKind = targets === "class" && this.shownModel.targets === "class";
    return Boolean(sample) && !sameKind && !this.samples.some((one) => one.id === sample);
  }

  /** Whether a target is one of the model. */
  #isValid(key) {
    if (this.model.targets === "class") return typeof key === "number" && key < this.model.class_count;
    return isNamed(key) && fieldsOf(key).kind === this.model.targets;
  }

  /** The pixel in the middle, which is explained where a model finds no region. */
  #middle() {
    const [height, width] = this.model.input;
    return keyOf({ kind: "region", point: [Math.floor(width / 2), Math.floor(height / 2)] });
  }

  /** Predict; prompts are compared with all others that are listed. */
  #predict(input, keys, prompts = []) {
    if (this.model.targets === "class") return api.predict({ ...input, classes: keys });
    if (this.model.targets === "token" && !keys.length) return api.predict({ ...input, targets: prompts.slice(0, 1).map(fieldsOf) });
    const asked = this.model.targets === "prompt" ? [...new Set([...prompts, ...keys])] : keys;
    return api.predict({ ...input, targets: asked.map(fieldsOf) });
  }

  /** Load the model's input, and the original image if it shows more: {id, model, element, geometry, original}. */
  async #loadImages({ picture, width, geometry, frames }) {
    if (frames) {
      const elements = await Promise.all(
        Array.from({ length: frames }, (_, i) => loadImage(api.imageUrl(this.model.id, picture, i))),
      );
      const shown = elements.map((element, i) => ({ id: `${picture} frame ${i}`, element }));
      return { id: picture, model: this.model.id, element: elements[0], geometry, original: null, frames: shown };
    }
    const showsMore = geometry.cropped || geometry.squashed || width > (this.model.input?.[1] ?? Infinity);
    const [element, original] = await Promise.all([
      loadImage(api.imageUrl(this.model.id, picture)),
      showsMore ? loadImage(api.originalUrl(picture)) : null,
    ]);
    const full = original && { id: `${picture} original`, element: original, box: geometry.box };
    return { id: picture, model: this.model.id, element, geometry, original: full };
  }

  #showNotes(notes) {
    const element = find("image-note");
    element.hidden = !notes.length;
    setText(element, notes.map(sentence).join(" "));
  }

  #setFocus(spec) {
    this.focus = spec;
    this.draw();
    this.onState(false);
  }

  async #setTargets(targets, contrast) {
    if (targets[0] !== this.targets[0]) this.curves.clear();
    const unknown = targets.filter((index) => this.classes.probability(index) === undefined);
    const predicted = unknown.length ? this.#predict(this.input, unknown, this.classes.top.map((one) => one.index)) : null;
    if (unknown.some(isNamed) && !(await this.#exists(predicted))) return;
    if (predicted && this.model.targets === "token") {
      const found = await predicted;
      this.answer = found.written;
      if (fieldsOf(targets[0]).token === undefined) targets = [found.top[0].index];
      this.classes.show(found, targets, contrast);
    }
    Object.assign(this, { targets, contrast });
    predicted?.then((found) => {
      if (["prompt", "token"].includes(this.model.targets)) this.classes.setTop(found);
      else this.classes.addProbabilities(found.asked);
      this.draw();
    }, showAlert);
    this.#change();
  }

  /** Whether a prompt, box or region exists; otherwise say why not, and show what was chosen before. */
  async #exists(predicted) {
    const { session } = this;
    try {
      await predicted;
      return session === this.session;
    } catch (error) {
      showAlert(error);
      this.classes.show({ top: this.classes.top, asked: this.classes.asked }, this.targets, this.contrast);
      return false;
    }
  }

  /** Compute what is missing after a choice of the user, and add the choice to the history. */
  #change() {
    this.#request();
    this.onState(true);
  }

  #request(changed = true) {
    if (!this.image) return;
    if (changed) this.downloads.reset();
    if (!this.methods.specs.includes(this.focus)) [this.focus] = this.methods.specs;
    this.jobs.request(this.methods.selected, this.keys);
    if (this.views.name === "models")
      this.views.other.request(this.image.id, this.methods.selected, {
        key: this.targets[0],
        name: this.classes.name(this.targets[0]),
        listed: this.classes.top.map((one) => one.index),
        corners: this.classes.entry(this.targets[0])?.corners,
      });
    this.draw();
  }

  /** The classes of the table: the chosen ones, then the most probable. */
  #matrixClasses() {
    const top = this.classes.top.map((one) => one.index);
    return [...new Set([...this.targets, ...top])].slice(0, Math.max(4, this.targets.length));
  }

  #measure() {
    const methods = this.jobs.finished(this.methods.specs, this.targets.slice(0, 1));
    const among = this.model.targets === "prompt" ? this.classes.top.map((one) => one.index) : [];
    if (methods.length) this.curves.measure(this.input, methods, this.targets[0], among);
    else showAlert(NO_MAP);
  }

  draw() {
    if (!this.image) return;
    const methods = this.methods.specs.map((spec) => this.methods.info(spec));
    const { keys, targets, contrast } = this;
    const { frames } = this.image;
    setTime(frames ? this.frames.frame / frames.length : 0);
    this.scene = {
      image: frames ? { ...this.image, ...frames[this.frames.frame] } : this.image,
      inputName: { image: "Image", video: "Frame", sound: "Spectrogram" }[this.model.media],
      axes: this.model.axes,
      time: frames ? this.frames.frame / frames.length : 0,
      times: this.model.times ?? 1,
      canAttend: this.model.attention,
      kind: this.model.targets,
      original: this.style.original ? this.image.original : null,
      methods,
      targets: this.views.name === "matrix" ? targets : keys,
      focus: this.focus,
      style: this.style,
      shownClasses: this.shown,
      size: this.model.input ?? [this.image.element.naturalHeight, this.image.element.naturalWidth],
      grid: this.model.grid ?? [14, 14],
      ahead: this.jobs.ahead,
      item: (spec, target) => this.jobs.item(spec, target),
      check: (spec, target) => this.checks.item(spec, target),
      className: (index) => this.classes.name(index),
    };
    const { name: view } = this.views;
    const shown = view === "models" ? targets.slice(0, 1) : targets;
    const heading = view === "matrix" ? tableHeadline(this.classes) : headline(this.classes, shown, contrast);
    this.views.show(this.scene, { heading, model: this.model, classes: this.classes, keys });
    if (this.views.name === "maps") this.#drawMaps(methods, keys);
    else this.#checkTable(keys);
    this.#drawStatus(methods, heading);
  }

  /** The large map with what it shows, for pinning; null while it is not ready. */
  #shownResult() {
    const method = this.methods.info(this.focus);
    if (!this.image || !this.jobs.finished([method.spec], this.keys).length) return null;
    return {
      canvas: find("main-map").querySelector("canvas"),
      model: this.model.title,
      name: this.keys.map((key) => this.classes.name(key)).join(" and "),
      method: methodTitle(method),
      check: worstCheck(this.keys.map((key) => this.checks.item(method.spec, key))),
    };
  }

  /** Check the maps of a table: those of the first model, then those of the second. */
  #checkTable(keys) {
    const ready = this.jobs.finished(this.methods.specs, keys);
    this.checks.update(ready, keys, this.jobs.idle);
    const { done, total } = this.checks.progress(ready, keys);
    if (this.views.name === "models") this.views.other.check(this.checks.enabled && done === total);
  }

  #drawMaps(methods, keys) {
    const method = methods.find((m) => m.spec === this.focus) ?? methods[0];
    const others = this.methods.specs.filter((spec) => spec !== method.spec);
    const ready = this.jobs.finished([method.spec, ...others], keys); // the large map is checked first
    this.checks.update(ready, keys, this.jobs.idle);
    this.comparison.show(this.scene);
    this.overlay.show({
      kind: this.model.targets,
      entries: [...this.classes.top, ...this.classes.asked.filter((one) => !this.classes.top.some((t) => t.index === one.index))],
      targets: this.targets,
      grid: this.scene.grid,
      size: this.scene.size,
      area: this.scene.original?.box ?? [0, 0, 1, 1],
      name: this.scene.className,
    });
    this.frames.showRelevance(timeOf(this.jobs.item(method.spec, keys[0])));
    this.#drawWords(method, keys[0]);
    this.#drawAnswer();
    const failed = keys.some((key) => this.checks.item(method.spec, key)?.check?.passed === false);
    const passes = (m) => keys.every((key) => this.checks.item(m.spec, key)?.check?.passed);
    this.about.show({
      method,
      targets: keys,
      contrast: this.contrast,
      className: this.scene.className,
      check: (target) => this.checks.item(method.spec, target),
      progress: this.checks.progress(ready, keys),
      enabled: this.checks.enabled,
      better: failed ? (methods.find(passes) ?? null) : null,
      geometry: this.image.geometry,
    });
    this.removal.show(this.scene, this.input, method, this.classes);
    showClassChoice(
      keys.length > 1 ? keys.map((key) => this.classes.name(key)) : [],
      this.shown,
    );
    const { axes } = this.model;
    find("axes-note").hidden = !axes;
    if (axes)
      setText(
        find("axes-note"),
        `Left to right: 0 to ${axes.seconds.toFixed(1)} seconds. Bottom to top: 0 to ${(axes.hertz / 1000).toFixed(1)} kHz.`,
      );
    find("frame").hidden = !this.image.original;
    find("measure").disabled = this.curves.running || this.contrast;
    find("measure-contrast").hidden = !this.contrast;
    if (this.measureWhenReady && this.jobs.idle && ready.length) {
      this.measureWhenReady = false;
      this.#measure();
    }
  }

  /** The question, other questions to choose, and the words of the answer. */
  #drawAnswer() {
    const { text } = this.model.targets === "token" ? fieldsOf(this.targets[0]) : {};
    this.written.show(`“${text}” The model answers:`, text ? (this.answer ?? []) : null, this.targets[0]);
    const list = find("questions");
    list.hidden = !this.questions?.length;
    if (list.shown === this.questions) return;
    list.shown = this.questions;
    list.replaceChildren(
      ...(this.questions ?? []).map((question) => {
        const button = el("button", { type: "button", class: "link" }, question);
        button.addEventListener("click", () => this.#setTargets([keyOf({ kind: "token", text: question })], false));
        return el("li", {}, button);
      }),
    );
  }

  /** The words of the prompt for the image, coloured by the method that is shown. */
  #drawWords(method, key) {
    const root = find("prompt-words");
    const isQuestion = this.model.targets === "token";
    const words = isQuestion || this.model.targets === "prompt" ? this.jobs.item(method.spec, key)?.words : null;
    root.hidden = !words?.length;
    if (root.hidden || root.shown === words) return;
    root.shown = words;
    let at = 0;
    const placed = words.map((word) => ({ ...word, start: at, end: (at += word.text.length + 1) - 1 }));
    const text = words.map((word) => word.text).join(" ");
    const what = isQuestion ? "question and the answer so far" : "prompt";
    const line = paragraph(text, placed, `Words of the ${what} by ${methodTitle(method)}`, !method.class_specific);
    root.replaceChildren(el("span", {}, isQuestion ? "Words that it read: " : "Words of the prompt, for this image: "), line);
  }

  #drawStatus(methods, heading) {
    find("question").replaceChildren(...heading.nodes);
    document.title = `${heading.text} Vitrail`;
    if (!this.root.hidden) setIntroduction(this.model.media, this.classes);
    const itemsOf = (method) => this.keys.map((t) => this.jobs.item(method.spec, t)).filter(Boolean);
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
    setText(find("live"), open || !methods.length ? "" : `Maps ready: ${methods.map(methodTitle).join(", ")}`);
  }
}
