/** Small helpers for building the page. */

/** An element with properties, attributes (names with a dash, or role, for, list) and children. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  return svg("svg", { "aria-hidden": "true" }, svg("use", { href: `/static/icons.svg#${name}` }));
}

/** A button with a drawing and a name. */
export function iconButton(name, label, act, kind = "icon") {
  const button = el("button", { type: "button", class: kind, "aria-label": label, title: label }, icon(name));
  button.addEventListener("click", act);
  return button;
}

/** What went wrong and how to mend it, as sentences. */
export function trouble(error) {
  const what = sentence(error.what ?? error.message ?? String(error));
  return el("p", { class: "trouble" }, el("strong", {}, what), " ", error.fix ? sentence(error.fix) : "");
}

export function sentence(words) {
  const text = words.trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?)…]$/.test(text) ? "" : ".");
}

/** Tell of a failure at the top of the page until it is put away. */
export function alarm(error) {
  if (error?.name === "AbortError") return;
  const place = document.getElementById("alert");
  place.replaceChildren(
    trouble(error),
    iconButton("close", "Put this message away", () => {
      place.hidden = true;
    }),
  );
  place.hidden = false;
}

export function calm() {
  document.getElementById("alert").hidden = true;
}

/** Call at most once a frame. */
export function oncePerFrame(act) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      act();
    });
  };
}

/** Put text into an element only if it changes, so that nothing is announced or laid out twice. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
