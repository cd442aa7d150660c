/** Colour maps, and maps drawn over images on a canvas. */

export const SEQUENTIAL = { glow: "Glow", meadow: "Meadow", frost: "Frost", ash: "Ash" };
export const DIVERGING = { coldwarm: "Cold and warm", plumfern: "Plum and fern" };
/** The colours of two compared classes. */
export const PAIR = [
  [255, 168, 38],
  [48, 140, 255],
];
/** Line colours of curves, readable on light and dark backgrounds and distinguishable with colour blindness. */
export const LINES = ["#c8641b", "#2f6fd0", "#1d8f78", "#a8479b", "#8a7a14", "#c23a4b", "#5b62b8", "#3f8fa8"];

const tables = new Map();

/** The 256 colours of a colour map as RGB bytes; the server writes the tables into the page. */
function colourTable(name) {
  if (!tables.size)
    for (const [key, hex] of Object.entries(JSON.parse(document.getElementById("colour-tables").textContent)))
      tables.set(key, Uint8ClampedArray.from(hex.match(/../g), (byte) => parseInt(byte, 16)));
  return tables.get(name);
}

/** Draw a bar of all colours of a colour map. */
export function drawColourBar(canvas, name) {
  canvas.width = 128;
  canvas.height = 1;
  const pixels = new ImageData(128, 1);
  const colours = colourTable(name);
  for (let x = 0; x < 128; x++) {
    const at = 3 * Math.round((x * 255) / 127);
    pixels.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * x);
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** The pixels of the image at the size of a canvas; computed once for each size. */
function imagePixels(image, width, height) {
  image.sizes ??= new Map();
  const key = `${width}x${height}`;
  if (!image.sizes.has(key)) {
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(image.element, 0, 0, width, height);
    image.sizes.set(key, context.getImageData(0, 0, width, height).data);
  }
  return image.sizes.get(key);
}

/** Resize the unit values of a map to width × height: bilinear without aligned corners, or nearest patch. */
function resizeMap(map, width, height, smooth) {
  const across = sampleWeights(map.columns, width, smooth);
  const down = sampleWeights(map.rows, height, smooth);
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

function sampleWeights(count, size, smooth) {
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

/** The rectangle of a canvas that shows the model's input: all of it, or the crop of an original image. */
function inputRectangle(image, width, height) {
  const [left, top, right, bottom] = image.box ?? [0, 0, 1, 1];
  const clamp = (v, n) => Math.min(n, Math.max(0, Math.round(v * n)));
  const [x, y] = [clamp(left, width), clamp(top, height)];
  return { x, y, width: Math.max(1, clamp(right, width) - x), height: Math.max(1, clamp(bottom, height) - y) };
}

/**
 * Draw an image with colours inside the model's input; what was cropped away is grey and dark, behind a white line.
 *
 * @param colour (rectangle) → (index in the rectangle, base pixels, their offset, output pixels) → void
 */
function drawInside(canvas, image, colour) {
  const { width, height } = canvas;
  const base = imagePixels(image, width, height);
  const area = inputRectangle(image, width, height);
  const pixels = new ImageData(width, height);
  const out = pixels.data;
  if (area.width < width || area.height < height)
    for (let at = 0; at < out.length; at += 4) {
      const grey = 0.14 * (base[at] + base[at + 1] + base[at + 2]) + 12;
      out[at] = out[at + 1] = out[at + 2] = grey;
      out[at + 3] = 255;
    }
  const paint = colour(area);
  for (let y = 0; y < area.height; y++) {
    let at = 4 * ((area.y + y) * width + area.x);
    for (let i = y * area.width; i < (y + 1) * area.width; i++, at += 4) {
      paint(i, base, at, out);
      out[at + 3] = 255;
    }
  }
  const context = canvas.getContext("2d");
  context.putImageData(pixels, 0, 0);
  if (area.width === width && area.height === height) return;
  context.lineWidth = Math.max(1, width / 500);
  context.strokeStyle = "rgb(255 255 255 / .85)";
  context.strokeRect(area.x + 0.5, area.y + 0.5, area.width - 1, area.height - 1);
}

/** Fewest values of a map of pixels. */
const PIXELS = 4096;

/** A sparse map of pixels, divided by the 99th percentile of its magnitudes, so that more than a few are visible. */
function stretched(map) {
  if (map.unit.length < PIXELS) return map;
  if (!map.stretched) {
    const sizes = Float32Array.from(map.unit, Math.abs).sort();
    const high = sizes[Math.floor(0.99 * (sizes.length - 1))];
    const clip = (v) => Math.min(1, Math.max(-1, v / high));
    map.stretched = high > 0 && high < 0.25 ? { ...map, unit: map.unit.map(clip) } : map;
  }
  return map.stretched;
}

/**
 * Draw one map over its image. The image is desaturated, and covered least where relevance is low.
 *
 * @param image {element, box}: box is the part that the map covers, as fractions; all of it if it is missing
 * @param style {opacity 0..1, smooth, mapOnly, sequential, diverging}
 */
export function drawMap(canvas, image, map, style) {
  const colours = colourTable(map.signed ? style.diverging : style.sequential);
  const desaturation = Math.min(1, style.opacity * 3);
  drawInside(canvas, image, (area) => {
    const unit = resizeMap(stretched(map), area.width, area.height, style.smooth);
    return (i, base, offset, out) => {
      const u = unit[i];
      const at = 3 * Math.round(255 * Math.min(1, Math.max(0, map.signed ? (u + 1) / 2 : u)));
      const root = Math.sqrt(Math.abs(u));
      const cover = style.mapOnly ? 1 : style.opacity * (map.signed ? root : 0.25 + 0.75 * root);
      const grey = (base[offset] + base[offset + 1] + base[offset + 2]) / 3;
      for (let k = 0; k < 3; k++) {
        const own = base[offset + k];
        const muted = map.signed ? 64 + 0.7 * grey : 0.55 * grey + 0.25 * own;
        out[offset + k] = (1 - cover) * (own + desaturation * (muted - own)) + cover * colours[at + k];
      }
    };
  });
}

/** Draw the maps of two classes, each in its colour; where both are high the colour turns white. */
export function drawPair(canvas, image, [first, second], style) {
  const desaturation = Math.min(1, style.opacity * 3);
  drawInside(canvas, image, (area) => {
    const a = resizeMap(first, area.width, area.height, style.smooth);
    const b = resizeMap(second, area.width, area.height, style.smooth);
    return (i, base, offset, out) => {
      const [u, v] = [Math.max(0, a[i]) ** 0.7, Math.max(0, b[i]) ** 0.7];
      const strength = Math.max(u, v);
      const cover = style.mapOnly ? strength : style.opacity * strength;
      const overlap = strength > 0 ? Math.min(u, v) / strength : 0;
      const share = u + v > 0 ? u ** 2 / (u ** 2 + v ** 2) : 0.5;
      const grey = (base[offset] + base[offset + 1] + base[offset + 2]) / 3;
      for (let k = 0; k < 3; k++) {
        const own = base[offset + k];
        const muted = style.mapOnly ? 18 : own + desaturation * (0.42 * grey + 0.12 * own - own);
        const hue = share * PAIR[0][k] + (1 - share) * PAIR[1][k];
        const colour = hue + overlap ** 3 * 0.7 * (255 - hue);
        out[offset + k] = (1 - cover) * muted + cover * colour;
      }
    };
  });
}

/** Draw the image without a map. */
export function drawImage(canvas, image) {
  drawInside(canvas, image, () => (_, base, offset, out) => {
    for (let k = 0; k < 3; k++) out[offset + k] = base[offset + k];
  });
}

/** Draw a map without the image at its own resolution, one pixel for each value. */
export function drawCells(canvas, map, name) {
  canvas.width = map.columns;
  canvas.height = map.rows;
  const pixels = new ImageData(map.columns, map.rows);
  const colours = colourTable(name);
  map.unit.forEach((u, i) => {
    const at = 3 * Math.round(255 * (map.signed ? (u + 1) / 2 : u));
    pixels.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * i);
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}
