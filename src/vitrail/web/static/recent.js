/** The images that were opened in this browser, with name and thumbnail. */

import { el } from "./dom.js";
import { recentFiles } from "./uploads.js";

/** Number of images shown. */
const SHOWN = 6;

let urls = [];

/**
 * List the last images; the section is hidden while there are none.
 *
 * @param root the element to fill
 * @param open called with a file
 * @param current the id of the image that is shown
 */
export async function showRecent(root, open, current) {
  const entries = (await recentFiles()).slice(0, SHOWN);
  for (const url of urls) URL.revokeObjectURL(url);
  urls = entries.map(({ file }) => URL.createObjectURL(file));
  root.hidden = !entries.length;
  root.querySelector("ul").replaceChildren(
    ...entries.map(({ id, file }, i) => {
      const name = file.name || "pasted image";
      const button = el(
        "button",
        { type: "button", title: name, "aria-pressed": String(id === current) },
        el("img", { src: urls[i], alt: "", width: 32, height: 32 }),
        el("span", {}, name),
      );
      button.addEventListener("click", () => open(file));
      return el("li", {}, button);
    }),
  );
}
