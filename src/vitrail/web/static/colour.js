/** Colour for relevance, and maps laid over pictures, drawn on canvas. */

// Corner colours in Oklab (lightness, green-red, blue-yellow). In the sequential tables lightness rises in equal steps,
// so equal steps of relevance look equal, also in grey print and to colour-blind eyes; in the diverging ones it falls
// alike on both sides of the middle.
const CORNERS = {
  glow: [
    [0.16, 0.02, -0.07],
    [0.34, 0.11, -0.13],
    [0.52, 0.19, -0.01],
    [0.7, 0.14, 0.12],
    [0.88, 0, 0.16],
    [0.98, -0.01, 0.05],
  ],
  meadow: [
    [0.2, 0.03, -0.1],
    [0.38, -0.01, -0.11],
    [0.55, -0.09, -0.02],
    [0.73, -0.12, 0.1],
    [0.92, -0.05, 0.17],
  ],
  frost: [
    [0.14, 0.0, -0.03],
    [0.34, 0.02, -0.13],
    [0.54, -0.03, -0.13],
    [0.76, -0.07, -0.06],
    [0.98, -0.01, 0.01],
  ],
  ash: [
    [0.12, 0, 0],
    [0.98, 0, 0],
  ],
  coldwarm: [
    [0.4, -0.03, -0.17],
    [0.68, -0.05, -0.11],
    [0.97, 0, 0],
    [0.68, 0.13, 0.08],
    [0.42, 0.16, 0.08],
  ],
  plumfern: [
    [0.4, 0.12, -0.13],
    [0.68, 0.09, -0.09],
    [0.97, 0, 0],
    [0.68, -0.13, 0.09],
    [0.42, -0.1, 0.08],
  ],
};
export const SEQUENTIAL = { glow: "Glow", meadow: "Meadow", frost: "Frost", ash: "Ash" };
export const DIVERGING = { coldwarm: "Cold and warm", plumfern: "Plum and fern" };
/** The two classes of a pair: the asked one and the other. */
export const PAIR = [
  [255, 168, 38],
  [48, 140, 255],
];
/** Lines of curves, readable on light and on dark ground, apart from each other for colour-blind eyes as well. */
export const LINES = ["#c8641b", "#2f6fd0", "#1d8f78", "#a8479b", "#8a7a14", "#c23a4b", "#5b62b8", "#3f8fa8"];

const tables = new Map();

/** 256 colours as bytes, red, green, blue after one another. */
export function table(name) {
  if (!tables.has(name)) tables.set(name, make(CORNERS[name]));
  return tables.get(name);
}

function make(corners) {
  const colours = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (corners.length - 1);
    const low = Math.min(Math.floor(at), corners.length - 2);
    const lab = corners[low].map((v, k) => v + (corners[low + 1][k] - v) * (at - low));
    colours.set(srgb(lab), 3 * i);
  }
  return colours;
}

function srgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((v) => {
    const c = Math.min(1, Math.max(0, v));
    return 255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);
  });
}

/** A bar of all colours of a table on a canvas. */
export function bar(canvas, name) {
  canvas.width = 128;
  canvas.height = 1;
  const pixels = new ImageData(128, 1);
  const colours = table(name);
  for (let x = 0; x < 128; x++) {
    const at = 3 * Math.round((x * 255) / 127);
    pixels.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * x);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** The picture's pixels at the size of a canvas, kept for the next time. */
function ground(picture, width, height) {
  picture.sizes ??= new Map();
  const key = `${width}x${height}`;
  if (!picture.sizes.has(key)) {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(picture.image, 0, 0, width, height);
    picture.sizes.set(key, context.getImageData(0, 0, width, height).data);
  }
  return picture.sizes.get(key);
}

/** A map's unit values stretched over width × height: bilinear with corners not aligned, or patch by patch. */
export function stretch(map, width, height, smooth) {
  const across = places(map.columns, width, smooth);
  const down = places(map.rows, height, smooth);
  const out = new Float32Array(width * height);
  for (let y = 0; y < height; y++) {
    const [top, bottom, dy] = [down.low[y] * map.columns, down.high[y] * map.columns, down.part[y]];
    for (let x = 0; x < width; x++) {
      const [left, right, dx] = [across.low[x], across.high[x], across.part[x]];
      const upper = map.unit[top + left] * (1 - dx) + map.unit[top + right] * dx;
      const lower = map.unit[bottom + left] * (1 - dx) + map.unit[bottom + right] * dx;
      out[y * width + x] = upper * (1 - dy) + lower * dy;
    }
  }
  return out;
}

function places(count, size, smooth) {
  const low = new Int32Array(size);
  const high = new Int32Array(size);
  const part = new Float32Array(size);
  for (let i = 0; i < size; i++) {
    const at = Math.min(count - 1, Math.max(0, ((i + 0.5) * count) / size - 0.5));
    low[i] = smooth ? Math.floor(at) : Math.min(count - 1, Math.floor((i * count) / size));
    high[i] = smooth ? Math.min(count - 1, low[i] + 1) : low[i];
    part[i] = smooth ? at - low[i] : 0;
  }
  return { low, high, part };
}

/**
 * Draw one map over its picture: the picture in quiet greys shows through, most where there is little relevance.
 *
 * @param look {opacity 0..1, smooth, alone, sequential, diverging}
 */
export function paint(canvas, picture, map, look) {
  const { width, height } = canvas;
  const base = ground(picture, width, height);
  const unit = stretch(map, width, height, look.smooth);
  const colours = table(map.signed ? look.diverging : look.sequential);
  const pixels = new ImageData(width, height);
  const hush = Math.min(1, look.opacity * 3);
  for (let i = 0; i < unit.length; i++) {
    const u = unit[i];
    const at = 3 * Math.round(255 * Math.min(1, Math.max(0, map.signed ? (u + 1) / 2 : u)));
    const root = Math.sqrt(Math.abs(u));
    const cover = look.alone ? 1 : look.opacity * (map.signed ? root : 0.25 + 0.75 * root);
    const grey = (base[4 * i] + base[4 * i + 1] + base[4 * i + 2]) / 3;
    for (let k = 0; k < 3; k++) {
      const own = base[4 * i + k];
      const quiet = map.signed ? 64 + 0.7 * grey : 0.55 * grey + 0.25 * own;
      pixels.data[4 * i + k] = (1 - cover) * (own + hush * (quiet - own)) + cover * colours[at + k];
    }
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** Two maps at once, each in its colour; where both are strong the colours meet in white. */
export function paintPair(canvas, picture, [first, second], look) {
  const { width, height } = canvas;
  const base = ground(picture, width, height);
  const a = stretch(first, width, height, look.smooth);
  const b = stretch(second, width, height, look.smooth);
  const pixels = new ImageData(width, height);
  const hush = Math.min(1, look.opacity * 3);
  for (let i = 0; i < a.length; i++) {
    const [one, two] = [Math.max(0, a[i]) ** 0.7, Math.max(0, b[i]) ** 0.7];
    const strength = Math.max(one, two);
    const cover = look.alone ? strength : look.opacity * strength;
    const meet = strength > 0 ? Math.min(one, two) / strength : 0;
    const share = one + two > 0 ? one ** 2 / (one ** 2 + two ** 2) : 0.5;
    const grey = (base[4 * i] + base[4 * i + 1] + base[4 * i + 2]) / 3;
    for (let k = 0; k < 3; k++) {
      const own = base[4 * i + k];
      const quiet = look.alone ? 18 : own + hush * (0.42 * grey + 0.12 * own - own);
      const hue = share * PAIR[0][k] + (1 - share) * PAIR[1][k];
      const colour = hue + meet ** 3 * 0.7 * (255 - hue);
      pixels.data[4 * i + k] = (1 - cover) * quiet + cover * colour;
    }
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** The picture alone. */
export function paintPicture(canvas, picture) {
  const { width, height } = canvas;
  const pixels = new ImageData(new Uint8ClampedArray(ground(picture, width, height)), width, height);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** A map alone at its own resolution, one pixel for each value. */
export function paintCells(canvas, map, name) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const pixels = new ImageData(map.columns, map.rows);
  const colours = table(name);
  map.unit.forEach((u, i) => {
    const at = 3 * Math.round(255 * (map.signed ? (u + 1) / 2 : u));
    pixels.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}
