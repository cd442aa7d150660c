/** A second model on the same image: its prediction, and its maps for the class that is explained. */

import * as api from "./api.js";
import { MapChecks } from "./checks.js";
import { el, showAlert } from "./dom.js";
import { loadImage } from "./images.js";
import { JobManager } from "./jobs.js";
import { formatPercent } from "./maps.js";

const plain = (name) => name.split(",")[0].trim().toLowerCase();

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

  /** Offer all classifiers of images but the first one; none beside a model of another kind. */
  setModels(models, first) {
    const isClassifier = (model) => model.kind === "image" && model.media === "image" && model.targets === "class";
    const others = isClassifier(first) ? models.filter((model) => isClassifier(model) && model.id !== first.id) : [];
    this.models = others;
    this.select.replaceChildren(...others.map((model) => el("option", { value: model.id }, model.title)));
    if (!others.some((model) => model.id === this.wanted)) {
      const alike = others.find((model) => model.classes?.join() === first.classes?.join());
      this.wanted = (alike ?? others[0])?.id;
    }
    if (this.wanted) this.select.value = this.wanted;
  }

  /** The class of this model that corresponds to a class name of the first: the same name, or its own prediction. */
  #matching(name) {
    const at = this.model.classes?.findIndex((one) => plain(one) === plain(name)) ?? -1;
    return at >= 0 ? at : this.prediction.top[0].index;
  }

  className(index) {
    return (this.model?.classes?.[index] ?? `class ${index}`).split(",")[0];
  }

  /** Request the maps of some methods for the class with a name; the image is opened first if it is another one. */
  async request(imageId, methods, name) {
    const model = this.models?.find((one) => one.id === this.wanted);
    if (!model) return;
    const key = `${model.id} ${imageId}`;
    try {
      if (key !== this.key) {
        this.key = key;
        this.model = this.target = null;
        const input = { model: model.id, picture: imageId };
        const [element, prediction] = await Promise.all([
          loadImage(api.imageUrl(model.id, imageId)),
          api.predict(input),
        ]);
        if (key !== this.key) return;
        this.jobs.setInput(input);
        this.checks.setInput(input);
        Object.assign(this, { model, prediction, image: { id: `${imageId} ${model.id}`, element } });
      }
      if (!this.model) return;
      this.target = this.#matching(name);
      if (!this.#known(this.target)) {
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
    if (!this.model) return "";
    const [best] = this.prediction.top;
    const own = `${this.className(this.target)} ${formatPercent(this.#known(this.target)?.probability)}`;
    return best.index === this.target ? own : `${own}; says ${best.name} ${formatPercent(best.probability)}`;
  }
}
