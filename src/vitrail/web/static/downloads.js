/** Downloads, the link to a result, and its Python code. */

import * as api from "./api.js";
import { el, icon, saveBlob, setText, showAlert } from "./dom.js";

const FILES = [
  ["figure.png", "Figure (PNG)"],
  ["figure.pdf", "Figure (PDF)"],
  ["maps.safetensors", "Maps"],
  ["manifest.json", "Manifest"],
];

export class Downloads {
  /**
   * @param root the section to fill
   * @param getJob returns the id of one finished job with everything shown; its arguments are a function that is called
   *   with the progress, and the id of a job that the server no longer has
   */
  constructor(root, getJob) {
    this.getJob = getJob;
    this.status = el("p", { class: "status", role: "status", "aria-live": "polite" });
    const files = FILES.map(([file, label]) => this.#button("down", label, () => this.#download(file)));
    const link = this.#button("link", "Copy link", () => this.#copyLink());
    this.toggle = this.#button("code", "Python code", () => this.#toggleCode());
    this.toggle.setAttribute("aria-expanded", "false");
    this.code = el("code", {});
    const copy = this.#button("copy", "Copy code", () => this.#copy(this.code.textContent, "Copied."));
    this.box = el(
      "div",
      { class: "python", hidden: true },
      el("pre", { tabIndex: 0, "aria-label": "Python code" }, this.code),
      copy,
    );
    root.append(el("div", { class: "row" }, ...files, link, this.toggle), this.status, this.box);
  }

  /** Hide the code and the status, because the maps shown have changed. */
  reset() {
    this.box.hidden = true;
    this.toggle.setAttribute("aria-expanded", "false");
    setText(this.status, "");
  }

  #button(iconName, label, run) {
    const button = el("button", { type: "button", class: "button" }, icon(iconName), label);
    button.addEventListener("click", async () => {
      button.disabled = true;
      setText(this.status, "Preparing …");
      try {
        setText(this.status, (await run()) ?? "");
      } catch (error) {
        setText(this.status, "");
        showAlert(error);
      } finally {
        button.disabled = false;
      }
    });
    return button;
  }

  /** A file of what is shown. A server that was restarted does not have the job: then a new one is started. */
  async #file(name) {
    const onProgress = (progress) => setText(this.status, `Preparing … ${Math.round(100 * progress)} %`);
    const id = await this.getJob(onProgress);
    try {
      return await api.file(id, name);
    } catch (error) {
      if (error.status !== 404) throw error;
      return api.file(await this.getJob(onProgress, id), name);
    }
  }

  async #download(name) {
    const { blob, fileName } = await this.#file(name);
    saveBlob(blob, fileName);
    return `Downloaded ${fileName}.`;
  }

  async #copyLink() {
    return this.#copy(location.href, `Copied: ${location.href}`);
  }

  async #toggleCode() {
    if (!this.box.hidden) {
      this.reset();
      return "";
    }
    setText(this.code, await (await this.#file("code.py")).blob.text());
    this.box.hidden = false;
    this.toggle.setAttribute("aria-expanded", "true");
    return "";
  }

  async #copy(text, message) {
    try {
      await navigator.clipboard.writeText(text);
      return message;
    } catch {
      // Without HTTPS, a page from another machine may not write to the clipboard: show the text instead.
      return `Copy this: ${text}`;
    }
  }
}
