/** A map in words, for those who do not see it. */

import { formatShare, patchValues } from "./maps.js";

/** Side of the region that is named, as a share of the rows and columns. */
const SIDE = 0.28;

/**
 * Find the region with the most relevance.
 *
 * @returns {{top, left, bottom, right, share}} rows and columns counted from 1, and the region's share of all positive
 *   relevance; null for a map without any
 */
export function mainRegion(map, grid) {
  const [rows, columns] = grid;
  const { units } = patchValues(map, grid);
  const values = Array.from(units, (value) => Math.max(0, value));
  const total = values.reduce((sum, value) => sum + value, 0);
  if (!(total > 0)) return null;
  const [height, width] = [rows, columns].map((n) => Math.max(1, Math.round(SIDE * n)));
  let best = null;
  for (let top = 0; top + height <= rows; top++)
    for (let left = 0; left + width <= columns; left++) {
      let sum = 0;
      for (let y = top; y < top + height; y++)
        for (let x = left; x < left + width; x++) sum += values[y * columns + x];
      if (!best || sum > best.sum) best = { sum, top, left };
    }
  const { top, left, sum } = best;
  return { top: top + 1, left: left + 1, bottom: top + height, right: left + width, share: sum / total };
}

/** The region in words: "Most relevance: rows 4–7, columns 5–8, 62 % of it, on a grid of 14 rows and 14 columns." */
export function summarise(map, grid) {
  const region = mainRegion(map, grid);
  if (!region) return "No patch has positive relevance.";
  const span = (from, to) => (from === to ? String(from) : `${from}–${to}`);
  return (
    `Most relevance: rows ${span(region.top, region.bottom)}, columns ${span(region.left, region.right)}, ` +
    `${formatShare(region.share)} of it, on a grid of ${grid[0]} rows and ${grid[1]} columns.`
  );
}
