/** The page: tabs, model selection, theme, the address, and start-up. */

import { formatAddress, parseAddress, problemsOf } from "./address.js";
import * as api from "./api.js";
import { AttentionDialog } from "./attention.js";
import { el, setText, showAlert, showInfo } from "./dom.js";
import { addDrawer } from "./drawer.js";
import { ImagePanel } from "./image.js";
import { keyOf } from "./targets.js";
import { TextPanel } from "./text.js";
import { addTour } from "./tour.js";
import { reshade } from "./words.js";

const THEME = "vitrail-theme";
const find = (id) => document.getElementById(id);
const scriptStart = performance.now();

let models = [];
let tab = null;
const attention = new AttentionDialog();
const panels = {
  image: new ImagePanel(attention, (push) => writeAddress("image", push)),
  text: new TextPanel(attention, (push) => writeAddress("text", push)),
};

const modelsFor = (kind) => models.filter((model) => model.kind === kind);

/** Write the state of the shown panel to the address; with `push` as a new entry of the history. */
function writeAddress(name, push) {
  if (name !== tab || !panels[name].model) return;
  const address = `/${formatAddress(panels[name].state)}`;
  if (address === location.pathname + location.search) return;
  history[push ? "pushState" : "replaceState"](null, "", address);
}

/** Show a tab and the names of its models. */
function showTab(name) {
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
  if (panels[name].model) {
    select.value = panels[name].model.id;
    panels[name].draw();
  }
}

/** Open a tab by its button: as it was left, or with its first model. */
async function openTab(name) {
  showTab(name);
  find("notice").hidden = true;
  if (panels[name].model) writeAddress(name, true);
  else if (modelsFor(name).length) await openState(modelsFor(name)[0], {}, null, true);
  else if (name === "text") panels.text.showNoModel();
}

/** Show a model with a state in its panel; `search` is the link it comes from, if any. */
async function openState(model, state, job = null, push = false, search = "") {
  if (model.kind !== tab) showTab(model.kind);
  find("model").value = model.id;
  if (push) history.pushState(null, "", location.href);
  try {
    await panels[model.kind].open(model, state, models, job);
    const problems = search ? problemsOf(search, model, panels[model.kind].rejected ?? []) : [];
    if (problems.length) showInfo(`This link was changed. ${problems.join(" ")}`);
  } catch (error) {
    showAlert(error);
  }
}

/** Show what the address says. */
async function openAddress() {
  const state = parseAddress(location.search);
  const kind = state.text && !state.model ? "text" : "image";
  const model = state.model
    ? models.find((one) => one.id === state.model)
    : (modelsFor(kind)[0] ?? models[0]);
  if (model) await openState(model, state, null, false, location.search);
  else if (state.model)
    showNotice(
      `The model “${state.model}” of this link is not served here.`,
      `Start the server with it, or choose one of the models above: ${models.map((one) => one.title).join(", ")}.`,
    );
  else await openTab("image");
}

/** Show the result of a permalink, or say that it is gone. */
async function openJob(id) {
  let job;
  try {
    job = await api.job(id);
  } catch (error) {
    if (error.status !== 404) throw error;
    showNotice(
      "This result has expired or does not exist.",
      "The server keeps results for a limited time. Open the image again, or choose a sample.",
    );
    return;
  }
  const model = models.find((one) => one.id === job.model);
  if (!model) {
    showNotice("The model of this result is no longer served.", `Start the server with ${job.model}.`);
    return;
  }
  const methods = [...new Set(job.items.map((item) => item.method))].filter(
    (spec) => job.kind === "explain" || spec !== "random",
  );
  const contrast = job.contrast != null;
  const classes = (contrast ? [job.targets[0], job.contrast] : job.targets.slice(0, 2)).map(keyOf);
  await openState(model, { image: job.picture, text: job.text, classes, contrast, methods }, job);
}

/** Say that a link is dead; the message stays, and so does the address, until something is opened. */
function showNotice(title, text) {
  showTab(modelsFor("image").length || !models.length ? "image" : "text");
  find("image-panel").classList.add("empty");
  find("image-panel").setAttribute("aria-busy", "false");
  setText(find("notice-title"), title);
  setText(find("notice-text"), text);
  find("notice").hidden = false;
  const [model] = modelsFor("image");
  if (model) panels.image.prepare(model, models);
}

function applyTheme() {
  const chosen = document.documentElement.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  find("theme").setAttribute("aria-pressed", String(dark));
  document.documentElement.classList.toggle("dark", dark);
  reshade();
}

/** The theme stays chosen, in all tabs; theme.js applies it before the page is drawn. */
function addThemeButton() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  find("theme").addEventListener("click", () => {
    const theme = document.documentElement.classList.contains("dark") ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(THEME, theme);
    } catch {
      // storage is disabled: the choice holds until the page is left
    }
    applyTheme();
  });
  addEventListener("storage", (event) => {
    if (event.key !== THEME || !event.newValue) return;
    document.documentElement.dataset.theme = event.newValue;
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
  find("model").addEventListener("change", (event) => {
    const { view, other } = panels[tab].state;
    openState(
      models.find((model) => model.id === event.target.value),
      { view, other },
      null,
      true,
    );
  });
  find("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment is not part of the address
    find("content").focus();
  });
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
  addDrawer();
  addTour();
  addTabEvents();
  measureFirstMap();
  try {
    models = await api.models();
    const { job } = document.body.dataset;
    if (job) await openJob(job);
    else await openAddress();
    addEventListener("popstate", openAddress);
  } catch (error) {
    showAlert(error);
  }
}

start();
