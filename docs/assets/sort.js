/* Sort the tables inside .sortable by a click on a column heading: by numbers, then ratings, then words. */
(() => {
  const ratings = ["fail", "mixed", "pass"];

  function key(cell) {
    const rating = cell.querySelector(".rating");
    const word = rating ? rating.textContent.trim() : "";
    const text = cell.textContent.trim().slice(word.length).trim().replace("\u2212", "-");
    const number = text === "" ? NaN : Number(text);
    if (!Number.isNaN(number)) return number;
    if (rating) return ratings.indexOf(word);
    return text === "\u2013" ? null : text;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b));
  }

  function sort(table, column, heading) {
    const before = heading.getAttribute("aria-sort");
    const rated = table.tBodies[0].rows[0].cells[column].querySelector(".rating") !== null;
    const down = heading.textContent.includes("\u2193");
    const better = heading.textContent.includes("\u2191") || (rated && !down) ? "descending" : "ascending";
    const other = better === "ascending" ? "descending" : "ascending";
    const order = before === better ? other : better;
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
    for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
  }

  function prepare() {
    for (const table of document.querySelectorAll(".sortable table")) {
      [...table.tHead.rows[0].cells].forEach((heading, column) => {
        const button = document.createElement("button");
        button.type = "button";
        button.append(...heading.childNodes);
        button.addEventListener("click", () => sort(table, column, heading));
        heading.append(button);
      });
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", prepare);
  else prepare();
})();
