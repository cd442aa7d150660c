/** The address is the state of the page: model, input, classes, methods and view as parameters of the URL. */

const VIEWS = ["maps", "matrix", "models"];
const SHOWN = ["both", "first", "second"];

const integers = (text) => (text ?? "").split(",").filter((part) => /^\d{1,7}$/.test(part)).map(Number);

/**
 * Read the state from the parameters of a URL; what is missing or not valid is left out.
 *
 * @returns {{model, sample, image, text, classes, contrast, methods, focus, view, other, shown, curves}}
 */
export function parseAddress(search) {
  const parameters = new URLSearchParams(search);
  const one = (name) => parameters.get(name) || null;
  const known = (name, values) => (values.includes(parameters.get(name)) ? parameters.get(name) : values[0]);
  const classes = [...new Set(integers(parameters.get("classes")))];
  return {
    model: one("model"),
    sample: one("sample"),
    image: one("image"),
    text: one("text"),
    classes: classes.length ? classes : null,
    contrast: classes.length === 2 && parameters.get("contrast") === "1",
    methods: parameters.getAll("method").filter(Boolean),
    focus: one("focus"),
    view: known("view", VIEWS),
    other: one("other"),
    shown: known("shown", SHOWN),
    curves: parameters.get("curves") === "1",
  };
}

/** Write the state as the parameters of a URL; default values are left out. */
export function formatAddress(state) {
  const parameters = new URLSearchParams();
  const add = (name, value) => {
    if (value !== null && value !== undefined && value !== "" && value !== false) parameters.append(name, value);
  };
  for (const name of ["model", "sample", "image", "text"]) add(name, state[name]);
  add("classes", state.classes?.join(","));
  add("contrast", state.contrast && "1");
  for (const method of state.methods ?? []) add("method", method);
  if (state.focus !== state.methods?.[0]) add("focus", state.focus);
  if (state.view !== VIEWS[0]) add("view", state.view);
  add("other", state.view === "models" && state.other);
  if (state.shown !== SHOWN[0]) add("shown", state.shown);
  add("curves", state.curves && "1");
  const text = parameters.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  return text ? `?${text}` : "";
}
