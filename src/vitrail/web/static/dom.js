/** Helpers for building the page. */

/** Create an element with properties, attributes (names with a dash, role, for) and children. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function icon(name) {
  return svg("svg", { "aria-hidden": "true" }, svg("use", { href: `/static/icons.svg#${name}` }));
}

/** Create a button that shows an icon and has a label for screen readers. */
export function iconButton(name, label, onClick, className = "icon") {
  const button = el("button", { type: "button", class: className, "aria-label": label, title: label }, icon(name));
  button.addEventListener("click", onClick);
  return button;
}

/** Save a blob as a file. */
export function saveBlob(blob, fileName) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: fileName });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Render an error, the problem and its fix, as sentences. */
export function errorMessage(error) {
  const what = sentence(error.what ?? error.message ?? String(error));
  return el("p", { class: "error-message" }, el("strong", {}, what), " ", error.fix ? sentence(error.fix) : "");
}

/** Capitalise a text and end it with a full stop. */
export function sentence(string) {
  const text = string.trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?)…]$/.test(text) ? "" : ".");
}

/** Show an error at the top of the page until it is dismissed. */
export function showAlert(error) {
  if (error?.name === "AbortError") return;
  const alert = document.getElementById("alert");
  alert.classList.remove("info");
  alert.replaceChildren(
    errorMessage(error),
    iconButton("close", "Dismiss this message", () => {
      alert.hidden = true;
    }),
  );
  alert.hidden = false;
}

/** Say at the top of the page what was changed or ignored, until it is dismissed. */
export function showInfo(text) {
  const alert = document.getElementById("alert");
  alert.classList.add("info");
  alert.replaceChildren(
    el("p", { class: "info-message" }, text),
    iconButton("close", "Dismiss this message", () => {
      alert.hidden = true;
    }),
  );
  alert.hidden = false;
}

/** Write hyphens before digits as minus signs. */
export const minus = (text) => text.replaceAll(/(^|[\s(=])-(?=[\d.])/g, "$1−");

export function hideAlert() {
  document.getElementById("alert").hidden = true;
}

/** Wrap a function so that it runs at most once per frame. */
export function oncePerFrame(run) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      run();
    });
  };
}

/** Set the text of an element only if it changes, so that nothing is announced or laid out twice. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
