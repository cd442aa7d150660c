/** Relevance as numbers: reading the server's maps, and asking a map about its patches. */

/**
 * A map as the server sends it, decoded.
 *
 * @returns {{rows, columns, values, unit, signed, low, high}} `values` as computed, `unit` the same
 *   from 0 to 1, or from -1 to 1 if signed; a map without contrast becomes zeros.
 */
export function decode(sent) {
  const bytes = Uint8Array.from(atob(sent.data), (c) => c.charCodeAt(0));
  const whole = new Int16Array(bytes.buffer);
  const values = Float32Array.from(whole, (v) => v * sent.scale);
  const [rows, columns] = sent.shape;
  return { rows, columns, values, signed: sent.signed, ...spread(values, sent.signed) };
}

export function spread(values, signed) {
  let low = Infinity;
  let high = -Infinity;
  for (const v of values) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const span = signed ? Math.max(Math.abs(low), Math.abs(high)) : high - low;
  const zero = signed ? 0 : low;
  return { low, high, unit: values.map((v) => (span > 0 ? (v - zero) / span : 0)) };
}

/** The decoded map of an item, kept with it. */
export function mapOf(item) {
  if (!item?.map) return null;
  item.decoded ??= decode(item.map);
  return item.decoded;
}

/** Mean value of each patch, row by row; and for each patch its place when sorted, 1 for the most relevant. */
export function byPatch(map, grid) {
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
  map.patches = { grid: String(grid), means, units, ranks: ranked(means) };
  return map.patches;
}

/** Place of each value, 1 for the highest; equal values share the better place. */
export function ranked(values) {
  const order = Array.from(values.keys()).sort((a, b) => values[b] - values[a]);
  const ranks = new Int32Array(order.length);
  order.forEach((at, place) => {
    const before = order[place - 1];
    ranks[at] = place > 0 && values[before] === values[at] ? ranks[before] : place + 1;
  });
  return ranks;
}

/** The mean of several maps of one shape. */
export function average(maps) {
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
    ...spread(values, maps[0].signed),
  };
}

/** A number short enough for a caption, with three figures. */
export function figures(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 0.001 && size < 10000 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
  return text.replaceAll("-", "−");
}

export function percent(p) {
  if (p === null || p === undefined) return "";
  return `${p >= 0.9995 ? "100" : p >= 0.001 ? (100 * p).toFixed(1) : "<0.1"}\u00a0%`;
}

export function seconds(s) {
  if (s === null || s === undefined) return "";
  return s < 0.095 ? `${Math.max(1, Math.round(1000 * s))} ms` : s < 9.95 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
}

export function ordinal(n) {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${tail}`;
}
