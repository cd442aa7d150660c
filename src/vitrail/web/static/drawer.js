/** On a narrow screen, the choices (image, class, methods) are in a drawer, so that the map comes first. */

import { el } from "./dom.js";

const NARROW = matchMedia("(max-width: 46rem)");

let opened = false;
const toggle = el(
  "button",
  { type: "button", id: "drawer-toggle", "aria-expanded": "false", "aria-controls": "image-panel text-panel" },
  "Image, class and methods",
);

const sidebar = () => document.querySelector(".panel:not([hidden]) .sidebar");

function set(open, focus = true) {
  opened = open && NARROW.matches;
  document.body.classList.toggle("drawer-open", opened);
  toggle.setAttribute("aria-expanded", String(opened));
  toggle.textContent = opened ? "Show the maps" : "Image, class and methods";
  if (!focus) return;
  if (opened) sidebar()?.querySelector("button, input, textarea")?.focus();
  else toggle.focus();
}

/** Close the drawer, because an image was chosen; the focus stays where it is on a wide screen. */
export function closeDrawer() {
  if (opened) set(false);
}

/** Add the button that opens and closes the drawer. */
export function addDrawer() {
  document.querySelector("main").before(toggle);
  toggle.addEventListener("click", () => set(!opened));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && opened && !document.querySelector("dialog[open]")) set(false);
  });
  NARROW.addEventListener("change", () => set(false, false));
}
