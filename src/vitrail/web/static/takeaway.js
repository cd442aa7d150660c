/** Take it away: figure, maps, manifest, a link for another person, and the same in Python. */

import * as api from "./api.js";
import { alarm, el, icon, write } from "./dom.js";

const FILES = [
  ["figure.png", "Figure, PNG"],
  ["figure.pdf", "Figure, PDF"],
  ["maps.safetensors", "Maps"],
  ["manifest.json", "Manifest"],
];

export class Takeaway {
  /**
   * @param root the section to fill
   * @param job gives the id of one finished job with all that is shown; told where to report progress
   */
  constructor(root, job) {
    this.job = job;
    this.status = el("p", { class: "status", role: "status", "aria-live": "polite" });
    const files = FILES.map(([file, words]) => this.#button("down", words, () => this.#download(file)));
    const link = this.#button("link", "Copy link", () => this.#link());
    this.show = this.#button("code", "As Python", () => this.#code());
    this.show.setAttribute("aria-expanded", "false");
    this.text = el("code", {});
    const copy = this.#button("copy", "Copy as Python", () => this.#copy(this.text.textContent, "Copied."));
    this.box = el(
      "div",
      { class: "python", hidden: true },
      el("pre", { tabIndex: 0, "aria-label": "The same in Python" }, this.text),
      copy,
    );
    root.append(el("div", { class: "row" }, ...files, link, this.show), this.status, this.box);
  }

  /** What is shown has changed: a listing of something else must not stay. */
  changed() {
    this.box.hidden = true;
    this.show.setAttribute("aria-expanded", "false");
    write(this.status, "");
  }

  #button(name, words, act) {
    const button = el("button", { type: "button", class: "button" }, icon(name), words);
    button.addEventListener("click", async () => {
      button.disabled = true;
      write(this.status, "Preparing …");
      try {
        write(this.status, (await act()) ?? "");
      } catch (error) {
        write(this.status, "");
        alarm(error);
      } finally {
        button.disabled = false;
      }
    });
    return button;
  }

  #whole() {
    return this.job((part) => write(this.status, `Preparing … ${Math.round(100 * part)} %`));
  }

  async #download(file) {
    const link = el("a", { href: api.fileUrl(await this.#whole(), file), download: "" });
    document.body.append(link);
    link.click();
    link.remove();
    return `${file} is on its way.`;
  }

  async #link() {
    const address = new URL(`/r/${await this.#whole()}`, location.href).href;
    return this.#copy(address, `Copied: ${address}`);
  }

  async #code() {
    if (!this.box.hidden) {
      this.changed();
      return "";
    }
    write(this.text, await api.code(await this.#whole()));
    this.box.hidden = false;
    this.show.setAttribute("aria-expanded", "true");
    return "";
  }

  async #copy(text, words) {
    try {
      await navigator.clipboard.writeText(text);
      return words;
    } catch {
      // Without https a page on another machine may not write to the clipboard: show it to be copied by hand.
      return `Copy this: ${text}`;
    }
  }
}
