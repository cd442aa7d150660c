/** Pinned results: up to four maps of any image, class, method or model, side by side. */

import { verdictBadge } from "./about.js";
import { el, setText } from "./dom.js";

const find = (id) => document.getElementById(id);
const MAX_PINS = 4;

export class Pins {
  /** @param current returns the result that is shown: {canvas, model, name, method, check}, or null */
  constructor(current) {
    this.current = current;
    this.pins = [];
    find("pin").addEventListener("click", () => this.#pin());
  }

  #pin() {
    const shown = this.current();
    if (!shown) return;
    const copy = document.createElement("canvas");
    copy.width = shown.canvas.width;
    copy.height = shown.canvas.height;
    copy.getContext("2d").drawImage(shown.canvas, 0, 0);
    this.pins = [...this.pins.filter((pin) => pin.url !== location.href), { ...shown, canvas: copy, url: location.href }];
    const dropped = this.pins.length > MAX_PINS;
    this.pins = this.pins.slice(-MAX_PINS);
    this.#draw();
    setText(find("pins-status"), dropped ? "Pinned; the oldest was removed." : "Pinned.");
  }

  #draw() {
    find("pins").hidden = !this.pins.length;
    find("pins-list").replaceChildren(
      ...this.pins.map((pin) => {
        const what = `${pin.name}, ${pin.method}, ${pin.model}`;
        pin.canvas.setAttribute("role", "img");
        pin.canvas.setAttribute("aria-label", `Map of ${what}`);
        const open = el("a", { href: pin.url }, "Open", el("span", { class: "visually-hidden" }, ` ${what}`));
        const remove = el("button", { type: "button", class: "secondary", "aria-label": `Remove ${what}` }, "Remove");
        remove.addEventListener("click", () => {
          this.pins = this.pins.filter((one) => one !== pin);
          this.#draw();
          find("pin").focus();
        });
        return el(
          "li",
          { class: "pin" },
          pin.canvas,
          el("strong", {}, pin.name),
          el("span", { class: "meta" }, `${pin.method} · ${pin.model}`),
          verdictBadge(pin.check) || el("span", { class: "meta" }, "not checked"),
          el("span", { class: "row" }, open, remove),
        );
      }),
    );
  }
}
