/** Maps as numbers: decoding, patch values and ranks, number formats. */

/**
 * Decode a map from the server.
 *
 * @returns {{rows, columns, values, unit, signed, low, high}} `values` as computed, `unit` scaled to [0, 1], or to
 *   [-1, 1] if signed; a constant map becomes zeros.
 */
export function decodeMap(encoded) {
  const bytes = Uint8Array.from(atob(encoded.data), (c) => c.charCodeAt(0));
  const integers = new Int16Array(bytes.buffer);
  const values = Float32Array.from(integers, (v) => v * encoded.scale);
  const [rows, columns] = encoded.shape.slice(-2);
  const frames = encoded.shape.length > 2 ? encoded.shape[0] : null;
  return { rows, columns, frames, values, signed: encoded.signed, ...scaleValues(values, encoded.signed) };
}

/** The frame that is shown of a video, as a share of its length. */
let shownTime = 0;

/** Show another frame of videos: maps are those of this frame from now on. */
export function setTime(share) {
  shownTime = share;
}

/** The map of one frame; all frames of a video share one scale. */
function frameOf(map) {
  if (map.frames === null) return map;
  const frame = Math.min(map.frames - 1, Math.floor(shownTime * map.frames));
  map.slices ??= [];
  const size = map.rows * map.columns;
  const cut = (all) => all.subarray(frame * size, (frame + 1) * size);
  map.slices[frame] ??= { ...map, frames: null, slices: null, values: cut(map.values), unit: cut(map.unit) };
  return map.slices[frame];
}

/** The relevance of each frame of a video: {sums}; null for an image. */
export function timeOf(item) {
  const map = item?.map && (item.decoded ??= decodeMap(item.map));
  if (!map || map.frames === null) return null;
  map.time ??= { sums: Array.from({ length: map.frames }, (_, i) => sumOf(map, i)) };
  return map.time;
}

function sumOf(map, frame) {
  const size = map.rows * map.columns;
  let sum = 0;
  for (let i = frame * size; i < (frame + 1) * size; i++) sum += Math.max(0, map.unit[i]);
  return sum;
}

export function scaleValues(values, signed) {
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const range = signed ? Math.max(Math.abs(low), Math.abs(high)) : high - low;
  const zero = signed ? 0 : low;
  return { low, high, unit: values.map((v) => (range > 0 ? (v - zero) / range : 0)) };
}

/** The decoded map of an item, of a video that of the shown frame; decoded once. */
export function mapOf(item) {
  if (!item?.map) return null;
  item.decoded ??= decodeMap(item.map);
  return frameOf(item.decoded);
}

/** The whole map of an item, all frames of a video. */
export function wholeMapOf(item) {
  return item?.map ? (item.decoded ??= decodeMap(item.map)) : null;
}

/** The ranks of the patches of a map over a grid, of a video over all of its times; rank 1 is the most relevant. */
export function patchRanks(map, grid, times = 1) {
  if (map.frames === null) return patchValues(map, grid).ranks;
  if (map.allRanks?.grid === `${times} ${grid}`) return map.allRanks.ranks;
  const [rows, columns] = grid;
  const size = map.rows * map.columns;
  const means = new Float32Array(times * rows * columns);
  for (let frame = 0; frame < map.frames; frame++) {
    const values = map.values.subarray(frame * size, (frame + 1) * size);
    const found = patchValues({ ...map, frames: null, values, unit: values }, grid).means;
    const at = Math.floor((frame * times) / map.frames) * rows * columns;
    found.forEach((value, i) => {
      means[at + i] += (value * times) / map.frames;
    });
  }
  map.allRanks = { grid: `${times} ${grid}`, ranks: ranksOf(means) };
  return map.allRanks.ranks;
}

/** The mean value of each patch, row by row, and its rank; rank 1 is the most relevant. */
export function patchValues(map, grid) {
  if (map.patches?.grid === String(grid)) return map.patches;
  const [rows, columns] = grid;
  const means = new Float32Array(rows * columns);
  const units = new Float32Array(rows * columns);
  for (let r = 0; r < rows; r++) {
    const top = Math.floor((r * map.rows) / rows);
    const bottom = Math.max(top + 1, Math.floor(((r + 1) * map.rows) / rows));
    for (let c = 0; c < columns; c++) {
      const left = Math.floor((c * map.columns) / columns);
      const right = Math.max(left + 1, Math.floor(((c + 1) * map.columns) / columns));
      let sum = 0;
      let unit = 0;
      for (let y = top; y < bottom; y++) {
        for (let x = left; x < right; x++) {
          sum += map.values[y * map.columns + x];
          unit += map.unit[y * map.columns + x];
        }
      }
      const count = (bottom - top) * (right - left);
      means[r * columns + c] = sum / count;
      units[r * columns + c] = unit / count;
    }
  }
  map.patches = { grid: String(grid), means, units, ranks: ranksOf(means) };
  return map.patches;
}

/** The rank of each value, 1 for the highest; equal values share the better rank. */
export function ranksOf(values) {
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a]);
  const ranks = new Int32Array(order.length);
  order.forEach((at, position) => {
    const before = order[position - 1];
    ranks[at] = position > 0 && values[before] === values[at] ? ranks[before] : position + 1;
  });
  return ranks;
}

/** The mean of several maps of one shape. */
export function averageMaps(maps) {
  const values = new Float32Array(maps[0].values.length);
  for (const map of maps)
    map.values.forEach((v, i) => {
      values[i] += v / maps.length;
    });
  return {
    rows: maps[0].rows,
    columns: maps[0].columns,
    values,
    signed: maps[0].signed,
    ...scaleValues(values, maps[0].signed),
  };
}

/** Format a number with three significant digits. */
export function formatNumber(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 0.001 && size < 10000 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
  return text.replaceAll("-", "−");
}

export function formatPercent(p) {
  if (p === null || p === undefined) return "";
  return `${p >= 0.9995 ? "100" : p >= 0.001 ? (100 * p).toFixed(1) : "<0.1"}\u00a0%`;
}

/** A share in whole per cent, with a decimal where it would be rounded to 0 without being 0. */
export function formatShare(share) {
  const size = Math.abs(share);
  const text = size > 0 && size < 0.001 ? "<0.1" : (100 * size).toFixed(size > 0 && size < 0.0095 ? 1 : 0);
  return `${share < 0 && !text.startsWith("<") ? "−" : ""}${text}\u00a0%`;
}

export function formatSeconds(s) {
  if (s === null || s === undefined) return "";
  if (s >= 100) return `${Math.round(s / 60)} min`;
  return s < 0.095 ? `${Math.max(1, Math.round(1000 * s))} ms` : s < 9.95 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
}

export function ordinal(n) {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${tail}`;
}
