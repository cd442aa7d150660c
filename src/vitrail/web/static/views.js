/** The views of the image panel: maps, a table of methods and classes, and two models side by side. */

import { combinedState } from "./captions.js";
import { setText } from "./dom.js";
import { formatPercent, mapOf } from "./maps.js";
import { MapTable } from "./map_table.js";
import { OtherModel } from "./other_model.js";

const find = (id) => document.getElementById(id);
const NAMES = ["maps", "matrix", "models"];

export class TableViews {
  /**
   * @param onChange called when something must be drawn again
   * @param onSelect called when the user has chosen another view or another second model
   */
  constructor(onChange, onSelect) {
    this.name = "maps";
    this.matrix = new MapTable(find("matrix-view"), "vitrail-methods-and-classes.png");
    this.models = new MapTable(find("models-table"), "vitrail-two-models.png");
    this.other = new OtherModel(find("other-model"), onChange, onSelect);
    find("views").addEventListener("change", (event) => {
      this.#select(event.target.value);
      onSelect();
    });
  }

  /** Set the models that can be compared, and the view of a state. */
  setModels(models, model, state) {
    if (state.other) this.other.wanted = state.other;
    const each = { class: "classes", prompt: "prompts", box: "boxes", region: "regions", token: "words" }[model.targets];
    setText(find("views").querySelector("[value=matrix] + span"), `Methods × ${each}`);
    this.other.setModels(models, model);
    const several = this.other.models.length > 0;
    find("views").querySelector("[value=models]").closest("label").hidden = !several;
    this.#select(state.view === "models" && !several ? "maps" : (state.view ?? this.name));
  }

  #select(name) {
    this.name = name;
    for (const radio of find("views").querySelectorAll("input")) radio.checked = radio.value === name;
    for (const other of NAMES) find(`${other}-view`).hidden = other !== name;
    find("faithfulness").hidden = name !== "maps";
  }

  show(scene, given) {
    if (this.name === "matrix") this.#showMatrix(scene, given);
    if (this.name === "models") this.#showModels(scene, given);
  }

  #showMatrix(scene, { model, classes, keys }) {
    this.matrix.show({
      caption: `Methods and targets, ${model.title}`,
      style: scene.style,
      rows: scene.methods.map(rowOf),
      columns: keys.map((key) => ({
        key: String(key),
        title: classes.name(key),
        note: formatPercent(classes.probability(key)),
        target: key,
      })),
      cell: (row, column) => ({
        ...this.#cell(scene.image, scene.size, scene.item(row.key, column.target)),
        check: scene.check(row.key, column.target),
      }),
    });
  }

  #showModels(scene, { heading, model, classes }) {
    const [target] = scene.targets;
    const { other } = this;
    const best = classes.predicted;
    const says =
      best && best.index !== target ? `; says ${classes.name(best.index)} ${formatPercent(best.probability)}` : "";
    const first = {
      key: "first",
      title: model.title,
      note: `${classes.name(target)} ${formatPercent(classes.probability(target))}${says}`,
    };
    const second = { key: "second", title: other.model?.title ?? "…", note: other.note };
    this.models.show({
      caption: `${heading.text} ${model.title} and ${second.title}`,
      style: scene.style,
      rows: scene.methods.map(rowOf),
      columns: [first, second],
      cell: (row, column) => {
        if (column.key === "first")
          return {
            ...this.#cell(scene.image, scene.size, scene.item(row.key, target)),
            check: scene.check(row.key, target),
          };
        if (other.target == null) return { state: "loading" };
        const item = other.jobs.item(row.key, other.target);
        const entry = other.model.methods.find((method) => method.name === row.key.split(":")[0]);
        const cell = this.#cell(other.imageAt(scene.time), other.model.input, item);
        cell.check = other.checks.item(row.key, other.target);
        return entry?.works ? cell : { ...cell, note: "does not apply" };
      },
    });
  }

  #cell(image, size, item) {
    const error = item?.error ? item.error.what : null;
    return { image, size, map: mapOf(item), state: combinedState(item ? [item] : []), note: error };
  }
}

const rowOf = (method) => ({
  key: method.spec,
  title: method.options ? `${method.title} ${method.options}` : method.title,
  note: method.class_specific ? "" : "class-agnostic",
});
