"""MkDocs hook: the table of measured scores on each method page.

``<!-- measured -->`` on a page docs/methods/NAME.md becomes a table of the method and its measured variants, with the
strongest control for comparison, without the scores that none of them has. Numbers come from results/imagenet1000.csv
and studies/results/pairs-scenes.json.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import get_plugin_logger

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

logger = get_plugin_logger("measured")

MARK = "<!-- measured -->"


@dataclass(frozen=True)
class Column:
    """A score of the table; where it stands in the file of results, and its number of decimals."""

    title: str
    dataset: str
    score: str
    digits: int


COLUMNS = (
    Column("SRG, tokens ↑", "imagenet", "srg(tokens)", 3),
    Column("SRG, black ↑", "imagenet", "srg(black)", 3),
    Column("pointing game, % ↑", "imagenet", "hit@0", 1),
    Column("pixel accuracy, % ↑", "pets", "pixel_accuracy", 1),
    Column("mIoU, % ↑", "pets", "miou", 1),
)
CONTROLS = ("centre", "edges", "random")
PAIRS = Column("class discrimination, % ↑", "scenes", "wins", 1)

#: By column and method, a value and half of its 95 % interval.
Scores = dict[Column, dict[str, tuple[float, float]]]


@cache
def load(root: Path) -> Scores:
    """Read the committed results."""
    scores: Scores = {column: {} for column in (*COLUMNS, PAIRS)}
    wanted = {(column.dataset, column.score): column for column in COLUMNS}
    with (root / "results" / "imagenet1000.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            column = wanted.get((row["dataset"], row["score"]))
            if column is not None and row["target"] == "predicted":
                half = (float(row["high"]) - float(row["low"])) / 2
                scores[column][row["method"]] = float(row["value"]), half
    pairs = json.loads((root / "studies" / "results" / "pairs-scenes.json").read_text(encoding="utf-8"))
    methods = next(result["methods"] for result in pairs["results"] if result["model"] == "scenes")
    for name, found in methods.items():
        value, low, high = (100 * number for number in found["wins"])
        scores[PAIRS][name] = value, (high - low) / 2
    return scores


def table(method: str, scores: Scores) -> str:
    """The table of one method in Markdown, or "" if it was not measured."""
    measured = {name for column in scores.values() for name in column if name.partition(":")[0] == method}
    measured = {name for name in measured if "," not in name}  # several options at once: see the results page
    if not measured:
        return ""
    names = sorted(measured, key=lambda name: (name != method, name))
    header = ["", *(f"`{name}`" for name in names), "strongest control"]
    lines = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(names) + 1)]
    for column, found in scores.items():
        if not found.keys() & measured:
            continue
        control = max((name for name in CONTROLS if name != method), key=lambda name: found[name][0])
        strongest = _cell(found[control], column)
        if column is not PAIRS:  # every class-agnostic map has half of the pairs
            strongest += f" ({control})"
        cells = [column.title, *(_cell(found.get(name), column) for name in names), strongest]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: tuple[float, float] | None, column: Column) -> str:
    if found is None:
        return "–"
    value, half = found
    return f"{value:.{column.digits}f} ± {half:.{column.digits}f}".replace("-", "−")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Put the table into a method page."""
    if MARK not in markdown:
        return markdown
    root = Path(config.config_file_path).parent
    name = Path(page.file.src_uri).stem
    found = table(name, load(root))
    if not found:
        logger.warning("%s asks for measured scores, but no result has the method %r", page.file.src_uri, name)
    return markdown.replace(MARK, found)
