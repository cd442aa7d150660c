/** Save a table of maps as a PNG file, drawn in the browser as it is shown. */

import { saveBlob } from "./dom.js";

const CELL = 300;
const GAP = 10;
const LEFT = 190;
/** Height of a verdict below a map, and of the colour bars at the end. */
const VERDICT = 26;
const LEGEND = 26;
const FONT = '"Segoe UI", Inter, "Noto Sans", "Liberation Sans", system-ui, sans-serif';

/** Split a text into lines that fit a width. */
function wrap(context, text, width) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (line && context.measureText(longer).width > width) {
      lines.push(line);
      line = word;
    } else line = longer;
  }
  return [...lines, line];
}

/**
 * Draw a table and download it.
 *
 * @param caption the line at the top
 * @param columns [{title, note}]
 * @param rows [{title, note}]
 * @param canvas returns the canvas of a cell
 * @param check returns the check of a cell, or undefined
 * @param bars colour bars: [{canvas, labels}]
 */
export function saveTable(table) {
  drawTable(table).toBlob((blob) => saveBlob(blob, table.fileName), "image/png");
}

/** Draw a table of maps with the verdict of each and the colour bars, on a new canvas. */
function drawTable({ caption, columns, rows, canvas, check, bars }) {
  const page = document.createElement("canvas");
  const context = page.getContext("2d");
  const heights = rows.map((row) =>
    Math.max(...columns.map((column) => (CELL * canvas(row, column).height) / canvas(row, column).width)),
  );
  page.width = LEFT + columns.length * (CELL + GAP) + GAP;
  context.font = `600 22px ${FONT}`;
  const title = wrap(context, caption, page.width - 2 * GAP);
  context.font = `600 19px ${FONT}`;
  const heads = columns.map((column) => wrap(context, column.title, CELL));
  context.font = `16px ${FONT}`;
  const notes = columns.map((column) => (column.note ? wrap(context, column.note, CELL) : []));
  const longest = (texts) => Math.max(...texts.map((lines) => lines.length));
  const noteHeight = 21 * longest(notes);
  const top = GAP + 30 * title.length + 24 * longest(heads) + noteHeight + 14;
  page.height = Math.ceil(top + heights.reduce((sum, h) => sum + h + VERDICT + GAP, 0) + LEGEND + GAP);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, page.width, page.height);
  const write = (lines, x, y, step, font, colour = "#15181b") => {
    context.font = font;
    context.fillStyle = colour;
    lines.forEach((line, i) => context.fillText(line, x, y + i * step));
  };
  write(title, GAP, GAP + 22, 30, `600 22px ${FONT}`);
  columns.forEach((_, c) => {
    const x = LEFT + c * (CELL + GAP);
    write(heads[c], x, top - noteHeight - 12 - 24 * (heads[c].length - 1), 24, `600 19px ${FONT}`);
    write(notes[c], x, top - noteHeight + 8, 21, `16px ${FONT}`, "#4d565e");
  });
  let y = top;
  rows.forEach((row, r) => {
    context.font = `600 18px ${FONT}`;
    write(wrap(context, row.title, LEFT - 2 * GAP), GAP, y + 22, 24, `600 18px ${FONT}`);
    columns.forEach((column, c) => {
      const cell = canvas(row, column);
      context.drawImage(cell, LEFT + c * (CELL + GAP), y, CELL, (CELL * cell.height) / cell.width);
      const found = check(row, column);
      const text = found ? `${found.passed ? "✓" : "✗"} ${found.verdict}` : "not checked";
      const colour = found ? (found.passed ? "#17663a" : "#a3201c") : "#4d565e";
      write([text], LEFT + c * (CELL + GAP), y + heights[r] + 19, 20, `15px ${FONT}`, colour);
    });
    y += heights[r] + VERDICT + GAP;
  });
  let x = GAP;
  for (const { canvas: bar, labels } of bars) {
    context.font = `15px ${FONT}`;
    const width = context.measureText(labels[0]).width;
    write([labels[0]], x, y + 18, 20, `15px ${FONT}`);
    context.drawImage(bar, x + width + 8, y + 6, 160, 14);
    write([labels.at(-1)], x + width + 176, y + 18, 20, `15px ${FONT}`);
    x += width + 190 + context.measureText(labels.at(-1)).width + 20;
  }
  return page;
}
