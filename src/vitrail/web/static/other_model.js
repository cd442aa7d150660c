/** A second model on the same image: its prediction, and its maps for the class that is explained. */

import * as api from "./api.js";
import { MapChecks } from "./checks.js";
import { el, showAlert } from "./dom.js";
import { loadImage } from "./images.js";
import { JobManager } from "./jobs.js";
import { formatPercent } from "./maps.js";
import { fieldsOf, isNamed, plainName } from "./targets.js";

const plain = (name) => name.split(",")[0].trim().toLowerCase();

/** Intersection over union of two boxes: left, top, right and bottom each. */
function overlap(a, b) {
  if (!a || !b) return 0;
  const side = (i) => Math.max(0, Math.min(a[i + 2], b[i + 2]) - Math.max(a[i], b[i]));
  const area = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0);
  const both = side(0) * side(1);
  return both / Math.max(1e-12, area(a) + area(b) - both);
}

export class OtherModel {
  /**
   * @param select the element to choose the model with
   * @param onChange called when its maps or the model have changed
   * @param onSelect called when another model was chosen
   */
  constructor(select, onChange, onSelect) {
    this.select = select;
    this.onChange = onChange;
    this.jobs = new JobManager(onChange);
    this.checks = new MapChecks(onChange);
    this.model = null;
    this.key = "";
    select.addEventListener("change", () => {
      this.wanted = select.value;
      onSelect();
    });
  }

  /** Offer the models that take and explain the same as the first one. */
  setModels(models, first) {
    const isAlike = (model) =>
      ["kind", "media", "targets"].every((name) => model[name] === first[name]) && model.frames === first.frames;
    const others = models.filter((model) => isAlike(model) && model.id !== first.id);
    this.models = others;
    this.select.replaceChildren(...others.map((model) => el("option", { value: model.id }, model.title)));
    if (!others.some((model) => model.id === this.wanted)) {
      const alike = others.find((model) => model.classes?.join() === first.classes?.join());
      this.wanted = (alike ?? others[0])?.id;
    }
    if (this.wanted) this.select.value = this.wanted;
  }

  /**
   * What of this model corresponds to the target of the first: the class with the same name, or its own prediction; the
   * same prompt; the box or region that overlaps most; its own first word to the same question.
   */
  #matching({ key, name, corners }) {
    const { top } = this.prediction;
    if (this.model.targets === "prompt") return key;
    if (["box", "region"].includes(this.model.targets)) {
      const best = [...top].sort((a, b) => overlap(b.corners, corners) - overlap(a.corners, corners))[0];
      return best?.index ?? key;
    }
    const at = this.model.targets === "class" ? this.model.classes?.findIndex((one) => plain(one) === plain(name)) : -1;
    return at >= 0 ? at : top[0].index;
  }

  className(index) {
    if (isNamed(index)) return this.#known(index)?.name ?? plainName(index);
    return (this.model?.classes?.[index] ?? `class ${index}`).split(",")[0];
  }

  /** The image, of a video its frame at a share of the time. */
  imageAt(time) {
    return this.images?.[Math.min(this.images.length - 1, Math.floor(time * this.images.length + 1e-9))] ?? null;
  }

  /** Predict; prompts are compared with those that are listed, and a question is asked again. */
  #predict(input, { key, listed }) {
    if (this.model.targets === "class") return api.predict(input);
    if (this.model.targets === "prompt")
      return api.predict({ ...input, targets: [...new Set([...listed, key])].map(fieldsOf) });
    if (this.model.targets === "token")
      return api.predict({ ...input, targets: [{ kind: "token", text: fieldsOf(key).text }] });
    return api.predict({ ...input, targets: [] });
  }

  /**
   * Request the maps of some methods for the target that corresponds to that of the first model; the image is opened
   * first if it is another one.
   *
   * @param target {key, name, listed, corners} of the first model
   */
  async request(imageId, methods, target) {
    const model = this.models?.find((one) => one.id === this.wanted);
    if (!model) return;
    const context = model.targets === "class" ? "" : JSON.stringify([target.key, target.listed]);
    const key = `${model.id} ${imageId} ${context}`;
    try {
      if (key !== this.key) {
        this.key = key;
        this.target = null;
        this.model = model;
        const input = { model: model.id, picture: imageId };
        const frames = Array.from({ length: model.frames ?? 1 }, (_, i) => loadImage(api.imageUrl(model.id, imageId, i)));
        const [elements, prediction] = await Promise.all([Promise.all(frames), this.#predict(input, target)]);
        if (key !== this.key) return;
        this.jobs.setInput(input);
        this.checks.setInput(input);
        const images = elements.map((element, i) => ({ id: `${imageId} ${model.id} ${i}`, element }));
        Object.assign(this, { prediction, images, ready: key });
      }
      if (this.ready !== key) return;
      this.target = this.#matching(target);
      if (!isNamed(this.target) && !this.#known(this.target)) {
        const found = await api.predict({ model: model.id, picture: imageId, classes: [this.target] });
        if (key !== this.key) return;
        this.prediction = { ...this.prediction, asked: found.asked };
      }
      const usable = methods.filter(({ spec }) =>
        model.methods.some((method) => method.name === spec.split(":")[0] && method.works),
      );
      this.usable = usable.map(({ spec }) => spec);
      this.jobs.request(usable, [this.target]);
    } catch (error) {
      this.key = "";
      showAlert(error);
    }
    this.onChange();
  }

  /** Check the maps that are ready, unless the user has stopped checking. */
  check(enabled) {
    if (!this.model || this.target == null) return;
    if (!enabled) this.checks.pause();
    else this.checks.update(this.jobs.finished(this.usable ?? [], [this.target]), [this.target], this.jobs.idle);
  }

  #known(index) {
    return [...this.prediction.top, ...(this.prediction.asked ?? [])].find((one) => one.index === index);
  }

  /** The class that is explained with its probability, and what the model says if that is another one. */
  get note() {
    if (this.target == null) return "";
    const [best] = this.prediction.top;
    const own = `${this.className(this.target)} ${formatPercent(this.#known(this.target)?.probability)}`;
    return best.index === this.target ? own : `${own}; says ${best.name} ${formatPercent(best.probability)}`;
  }
}
