/** What is explained, as keys: a class index; the JSON of a prompt, box, region or token; or the difference of two of these. */

const FIELDS = ["kind", "text", "query", "label", "point", "patches", "token", "written"];

/** The key of a target as the server gives it: a class index, or the fields of a prompt, box or region. */
export function keyOf(target) {
  if (typeof target !== "object" || target === null) return target;
  const given = FIELDS.filter((name) => target[name] != null && target[name].length !== 0);
  return JSON.stringify(Object.fromEntries(given.map((name) => [name, target[name]])));
}

/** Whether a key is that of a prompt, box or region. */
export const isNamed = (key) => typeof key === "string" && key.startsWith("{");

/** Whether a key is that of the difference of two targets. */
export const isContrast = (key) => typeof key === "string" && !isNamed(key);

/** The key of the difference of two targets: "a-b" for classes. */
export const contrastKey = (first, second) =>
  isNamed(first) ? JSON.stringify([first, second]) : `${first}-${second}`;

/** The two keys of a difference. */
export const partsOf = (key) => (key.startsWith("[") ? JSON.parse(key) : key.split("-").map(Number));

/** A key as the server takes it. */
export const fieldsOf = (key) => (isNamed(key) ? JSON.parse(key) : key);

/** A name for a target whose label is not known yet. */
export function plainName(key) {
  const { kind, text, query, point, patches, token } = fieldsOf(key);
  if (kind === "prompt") return text;
  if (kind === "token") return token === undefined ? "the answer" : `token ${token}`;
  if (kind === "box") return `box ${query}`;
  return point ? `pixel ${point.join(", ")}` : `${patches.length} patches`;
}

/** Numbers as ranges: "3-5.9". */
const ranges = (numbers) => {
  const found = [];
  for (const n of numbers) {
    const last = found.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([a, b]) => (a === b ? String(a) : `${a}-${b}`)).join(".");
};

const MAX_PATCHES = 20_000;

function numbersOf(text) {
  const found = [];
  for (const part of text.split(".")) {
    if (!/^\d{1,6}(-\d{1,6})?$/.test(part)) return null;
    const [a, b = a] = part.split("-").map(Number);
    for (let n = a; n <= b && found.length <= MAX_PATCHES; n++) found.push(n);
  }
  return found.length <= MAX_PATCHES ? [...new Set(found)].sort((a, b) => a - b) : null;
}

/** Parameters of the address that name a target, and how they are read and written. */
const PARAMETERS = {
  prompt: { read: (text) => text.trim().slice(0, 500) && { kind: "prompt", text: text.trim().slice(0, 500) } },
  box: { read: (text) => /^\d{1,6}$/.test(text) && { kind: "box", query: Number(text) } },
  point: {
    read: (text) => /^\d{1,5},\d{1,5}$/.test(text) && { kind: "region", point: text.split(",").map(Number) },
  },
  patches: {
    read: (text) => {
      const patches = numbersOf(text);
      return patches && { kind: "region", patches };
    },
  },
};

/** Tokens of an address: the tokens before the explained one, then this one, "46.19"; the question, if there is one. */
function parseTokens(parameters) {
  const text = (parameters.get("question") ?? "").trim().slice(0, 500) || undefined;
  const named = parameters.getAll("token").filter((value) => /^\d{1,7}(\.\d{1,7}){0,64}$/.test(value));
  const tokens = named.map((value) => {
    const numbers = value.split(".").map(Number);
    return keyOf({ kind: "token", text, token: numbers.at(-1), written: numbers.slice(0, -1) });
  });
  return tokens.length || !text ? tokens : [keyOf({ kind: "token", text })];
}

/** The targets that parameters of an address name, as keys in their order. */
export function parseTargets(parameters) {
  const found = parseTokens(parameters);
  for (const [name, value] of parameters) {
    const kind = Object.hasOwn(PARAMETERS, name) && PARAMETERS[name];
    if (!kind) continue;
    const [, text, label] = name === "prompt" ? [null, value] : (value.match(/^([^:]*)(?::(\d{1,6}))?$/) ?? [null, ""]);
    const target = kind.read(text);
    if (target) found.push(keyOf(label === undefined ? target : { ...target, label: Number(label) }));
  }
  return [...new Set(found)];
}

/** A target as a parameter of the address: [name, value]; the question of a token is a parameter of its own. */
export function formatTarget(key) {
  const { kind, text, query, label, point, patches, token, written } = fieldsOf(key);
  if (kind === "token") return ["token", token === undefined ? null : [...(written ?? []), token].join(".")];
  if (kind === "prompt") return ["prompt", text];
  const suffix = label == null ? "" : `:${label}`;
  if (kind === "box") return ["box", `${query}${suffix}`];
  return point ? ["point", `${point.map(Math.round).join(",")}${suffix}`] : ["patches", `${ranges(patches)}${suffix}`];
}
