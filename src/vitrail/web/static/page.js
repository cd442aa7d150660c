/** The page: which bench is shown, which model, light or dark, and where to begin. */

import * as api from "./api.js";
import { Attention } from "./attention.js";
import { alarm, el } from "./dom.js";
import { PictureBench } from "./picture.js";
import { TextBench } from "./text.js";
import { reshade } from "./words.js";

const find = (id) => document.getElementById(id);
const KINDS = { picture: "image", text: "text" };
const started = performance.now();

let models = [];
let tab = "picture";
const used = {};
const attention = new Attention();
const benches = { picture: new PictureBench(attention), text: new TextBench(attention) };

function offered(name) {
  return models.filter((model) => model.kind === KINDS[name]);
}

/** Show a bench; the first time, with its first model. */
async function turn(name) {
  tab = name;
  for (const one of Object.keys(benches)) {
    const on = one === name;
    find(`tab-${one}`).setAttribute("aria-selected", String(on));
    find(`tab-${one}`).tabIndex = on ? 0 : -1;
    find(one).hidden = !on;
  }
  const select = find("model");
  select.replaceChildren(...offered(name).map((model) => el("option", { value: model.id }, model.title)));
  select.disabled = select.options.length < 2;
  select.closest("label").hidden = !select.options.length;
  if (used[name]) select.value = used[name].id;
  else if (offered(name).length) await use(offered(name)[0]);
  else if (name === "text") benches.text.absent();
}

async function use(model) {
  used[tab] = model;
  find("model").value = model.id;
  try {
    await benches[tab].use(model);
  } catch (error) {
    alarm(error);
  }
}

/** A link's result, exactly as it was made. */
async function recall(id) {
  const job = await api.job(id);
  const model = models.find((one) => one.id === job.model);
  if (!model)
    throw new api.Trouble("The model of this result is no longer served.", `Start vitrail serve with ${job.model}.`);
  const name = model.kind === "text" ? "text" : "picture";
  used[name] = model;
  await turn(name);
  find("model").value = model.id;
  await benches[name].recall(model, job);
}

function dress() {
  const kept = document.documentElement.dataset.theme;
  const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  find("theme").setAttribute("aria-pressed", String(dark));
  document.documentElement.classList.toggle("dark", dark);
  reshade();
}

function surroundings() {
  const kept = sessionStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  find("theme").addEventListener("click", () => {
    const theme = document.documentElement.classList.contains("dark") ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    sessionStorage.setItem("theme", theme);
    dress();
  });
  dress();
}

function tabs() {
  const names = Object.keys(benches);
  for (const name of names) {
    const button = find(`tab-${name}`);
    button.addEventListener("click", () => turn(name));
    button.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      const other = names[(names.indexOf(name) + 1) % names.length];
      find(`tab-${other}`).focus();
      turn(other);
    });
  }
  find("model").addEventListener("change", (event) => use(models.find((model) => model.id === event.target.value)));
}

/** When the first map is on the plate, note how long it took: performance.getEntriesByName("first-picture"). */
function watch() {
  const canvas = find("glass").querySelector("canvas");
  const observer = new MutationObserver(() => {
    if (!canvas.dataset.shows || canvas.dataset.shows === "picture") return;
    observer.disconnect();
    performance.measure("first-picture", { start: 0, end: performance.now(), detail: { script: started } });
  });
  observer.observe(canvas, { attributes: true, attributeFilter: ["data-shows"] });
}

async function begin() {
  surroundings();
  tabs();
  watch();
  try {
    models = await api.models();
  } catch (error) {
    alarm(error);
    return;
  }
  const { job } = document.body.dataset;
  if (job) {
    try {
      await recall(job);
      return;
    } catch (error) {
      alarm(
        error.status === 404
          ? {
              what: "This result is no longer held here.",
              fix: "Results are kept for a while; below is a fresh start.",
            }
          : error,
      );
    }
  }
  delete used.picture;
  await turn(offered("picture").length || !models.length ? "picture" : "text");
}

begin();
