/** The page: tabs, model selection, theme, and start-up. */

import * as api from "./api.js";
import { AttentionDialog } from "./attention.js";
import { el, showAlert } from "./dom.js";
import { ImagePanel } from "./image.js";
import { TextPanel } from "./text.js";
import { reshade } from "./words.js";

const find = (id) => document.getElementById(id);
const scriptStart = performance.now();

let models = [];
let tab = "image";
const selectedModels = {};
const attention = new AttentionDialog();
const panels = { image: new ImagePanel(attention), text: new TextPanel(attention) };

function modelsFor(name) {
  return models.filter((model) => model.kind === name);
}

/** Show a tab; the first time, with its first model. */
async function openTab(name) {
  tab = name;
  for (const other of Object.keys(panels)) {
    const on = other === name;
    find(`tab-${other}`).setAttribute("aria-selected", String(on));
    find(`tab-${other}`).tabIndex = on ? 0 : -1;
    find(`${other}-panel`).hidden = !on;
  }
  const select = find("model");
  select.replaceChildren(...modelsFor(name).map((model) => el("option", { value: model.id }, model.title)));
  select.disabled = select.options.length < 2;
  select.closest("label").hidden = !select.options.length;
  if (selectedModels[name]) select.value = selectedModels[name].id;
  else if (modelsFor(name).length) await selectModel(modelsFor(name)[0]);
  else if (name === "text") panels.text.showNoModel();
}

async function selectModel(model) {
  selectedModels[tab] = model;
  find("model").value = model.id;
  try {
    await panels[tab].setModel(model);
  } catch (error) {
    showAlert(error);
  }
}

/** Show the result of a permalink. */
async function openJob(id) {
  const job = await api.job(id);
  const model = models.find((one) => one.id === job.model);
  if (!model)
    throw new api.ApiError("The model of this result is no longer served.", `Start vitrail serve with ${job.model}.`);
  selectedModels[model.kind] = model;
  await openTab(model.kind);
  find("model").value = model.id;
  await panels[model.kind].loadJob(model, job);
}

function applyTheme() {
  const chosen = document.documentElement.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  find("theme").setAttribute("aria-pressed", String(dark));
  document.documentElement.classList.toggle("dark", dark);
  reshade();
}

function addThemeButton() {
  const chosen = sessionStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  find("theme").addEventListener("click", () => {
    const theme = document.documentElement.classList.contains("dark") ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    sessionStorage.setItem("theme", theme);
    applyTheme();
  });
  applyTheme();
}

function addTabEvents() {
  const names = Object.keys(panels);
  for (const name of names) {
    const button = find(`tab-${name}`);
    button.addEventListener("click", () => openTab(name));
    button.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
      const other = names[(names.indexOf(name) + 1) % names.length];
      find(`tab-${other}`).focus();
      openTab(other);
    });
  }
  find("model").addEventListener("change", (event) =>
    selectModel(models.find((model) => model.id === event.target.value)),
  );
}

/** Measure the time until the first map is drawn: performance.getEntriesByName("first-map"). */
function measureFirstMap() {
  const canvas = find("main-map").querySelector("canvas");
  const observer = new MutationObserver(() => {
    if (!canvas.dataset.shows || canvas.dataset.shows === "image") return;
    observer.disconnect();
    performance.measure("first-map", { start: 0, end: performance.now(), detail: { script: scriptStart } });
  });
  observer.observe(canvas, { attributes: true, attributeFilter: ["data-shows"] });
}

async function start() {
  addThemeButton();
  addTabEvents();
  measureFirstMap();
  try {
    models = await api.models();
  } catch (error) {
    showAlert(error);
    return;
  }
  const { job } = document.body.dataset;
  let problem = null;
  if (job) {
    try {
      await openJob(job);
      return;
    } catch (error) {
      const expired = {
        what: "This result has expired or does not exist.",
        fix: "Results are kept for a limited time. The page shows a sample instead.",
      };
      problem = error.status === 404 ? expired : error;
    }
  }
  delete selectedModels.image;
  await openTab(modelsFor("image").length || !models.length ? "image" : "text");
  if (problem) showAlert(problem); // after the tab: opening a sample hides earlier messages
}

start();
