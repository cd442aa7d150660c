/** Ways to open an image: the file dialog, drag and drop, the clipboard, and the samples. */

import { el, showAlert } from "./dom.js";

const find = (id) => document.getElementById(id);

/**
 * Open an image from the file dialog, the clipboard, or by drag and drop.
 *
 * @param isActive whether images can be opened now
 * @param open called with the file
 */
export function addImageSources(isActive, open) {
  const openFirst = (files) => {
    const file = [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
    if (file) open(file);
  };
  find("file").addEventListener("change", (event) => {
    openFirst(event.target.files);
    event.target.value = "";
  });
  document.addEventListener("paste", (event) => {
    if (isActive() && event.clipboardData?.files.length) openFirst(event.clipboardData.files);
  });
  let depth = 0;
  const showOverlay = (on) => find("drop-overlay").classList.toggle("on", on);
  document.addEventListener("dragenter", (event) => {
    if (!isActive() || !event.dataTransfer?.types.includes("Files")) return;
    depth += 1;
    showOverlay(true);
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) showOverlay(false);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    showOverlay(false);
    if (!isActive()) return;
    const { files, types } = event.dataTransfer ?? {};
    if (files?.length) openFirst(files);
    else if (types?.includes("text/uri-list") || types?.includes("text/html"))
      showAlert({
        what: "A link was dropped, not a file. This page does not load images from other sites.",
        fix: "Save the image, then open or drop the file; or copy the image and paste it here.",
      });
  });
}

/** Add the buttons of the samples; their images load when the returned function is called, after the main image. */
export function addThumbnails(samples, open) {
  const images = [];
  find("samples").replaceChildren(
    ...samples
      .filter((sample) => sample.url)
      .map((sample) => {
        const image = el("img", { alt: sample.title, width: 56, height: 56 });
        images.push([image, sample.url]);
        const title = [sample.title, sample.about, sample.credit].filter(Boolean).join(". ");
        const button = el(
          "button",
          { type: "button", title, "aria-pressed": "false", data: { sample: sample.id } },
          image,
          sample.label ? el("small", { "aria-hidden": "true" }, sample.label) : "",
        );
        button.addEventListener("click", () => open(sample.id));
        return el("li", {}, button);
      }),
  );
  return () =>
    images.forEach(([image, url]) => {
      image.src = url;
    });
}

/** Mark the sample that is shown; none for null. */
export function markSample(id) {
  for (const button of find("samples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset.sample === id));
}
