"""Write docs/leaderboard.md from the entries in results/leaderboard and the published numbers of three papers.

python results/leaderboard.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vitrail.bench.leaderboard import read_entry
from vitrail.bench.papers import paper_tables

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "leaderboard.md"
MARKS = "<!-- table -->", "<!-- end of the table -->"
HEADER = ("method", "model", "data set", "protocol", "score", "value", "interval", "images", "source")
ARROWS = {"up": " ↑", "down": " ↓"}


def measured_rows() -> Iterator[tuple[str, ...]]:
    """Rows of the entries; scores without a direction are left out."""
    for path in sorted((ROOT / "results" / "leaderboard").glob("*.toml")):
        entry = read_entry(path)
        for row in entry["values"]:
            if row["direction"] in ARROWS:
                low, high = row["interval"]
                yield (
                    f"`{entry['method']}`", entry["model"], entry["dataset"], f"{row['protocol']}, {row['target']}",
                    row["score"] + ARROWS[row["direction"]], f"{row['value']:.4f}", f"{low:.4f} to {high:.4f}",
                    str(row["images"]), f"entry, run {entry['key']}",
                )  # fmt: skip


def published_rows() -> Iterator[tuple[str, ...]]:
    """Rows of the papers' tables, in their own units; what was quoted there from other papers too."""
    for table in paper_tables().values():
        for number in table.numbers:
            if number.value is not None:
                images = table.datasets[number.dataset].images
                metric = number.metric + ARROWS.get(number.direction, "")
                yield (
                    number.method, number.model, number.dataset, table.title, metric,
                    f"{number.value:g}", "–", f"{images}" if images else "–", table.paper,
                )  # fmt: skip


def table() -> str:
    """The table in Markdown."""
    rows = [*measured_rows(), *published_rows()]
    lines = [f"| {' | '.join(HEADER)} |", "|---|---|---|---|---|---:|---:|---:|---|"]
    return "\n".join(lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows])


def page(text: str) -> str:
    """The page with the present table."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
