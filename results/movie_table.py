"""Update the tables of movie reviews on docs/text.md from the files movies*.json of studies/results.

    python results/movie_table.py

The text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path

from method_pages import replaced

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "text.md"
#: Marks on the page, and files of results.
TABLES = {
    "movie reviews": "movies.json", "movie reviews, size of BERT-base": "movies-base.json",
    "movie reviews, second training": "movies-base-second.json", "movie reviews, language model": "movies-decoder.json",
}  # fmt: skip
CONTROLS = ("random", "inverted", "start first", "end first")
SCORES = {"f1": "token-F1 ↑", "auprc": "AUPRC ↑", "comprehensiveness": "comprehensiveness ↑",
          "sufficiency": "sufficiency ↓"}  # fmt: skip


def cell(score: dict[str, float]) -> str:
    """A mean with half of the width of its interval."""
    return f"{score['mean']:.3f} ± {(score['high'] - score['low']) / 2:.3f}".replace("-", "−")


def table(file: str) -> str:
    """All methods by token-F1, then controls, in Markdown."""
    rows = json.loads((ROOT / "studies" / "results" / file).read_text(encoding="utf-8"))["rows"]
    lines = [f"| method | {' | '.join(SCORES.values())} |", "|---" + "|---:" * len(SCORES) + "|"]
    for row in sorted(rows, key=lambda row: (row["method"] in CONTROLS, -row["f1"]["mean"])):
        name = row["method"]
        shown = f"*{name}* (control)" if name in CONTROLS else f"`{name}`"
        lines.append(f"| {shown} | {' | '.join(cell(row[score]) for score in SCORES)} |")
    return "\n".join(lines)


def updated(page: str) -> str:
    """The page with its tables replaced."""
    for mark, file in TABLES.items():
        page = replaced(page, mark, table(file))
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
