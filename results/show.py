"""The tables and the picture of docs/results.md, from imagenet1000.csv alone.

    python results/show.py

What stands between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` of the page is made anew; the rest is left alone.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
NAME = "imagenet1000"
PAGE = HERE.parent / "docs" / "results.md"
PICTURE = "images/results.png"
NUMBERS = ("value", "low", "high", "p_to_best", "to_control", "p_to_control", "to_predicted", "p_to_predicted")
ALPHA = 0.05  # below which corrected p-value a difference counts as real, as in reports


@dataclass(frozen=True)
class Score:
    """A score the page has a column for."""

    title: str
    dataset: str
    protocol: str
    name: str


POSITIVE = Score("positive, %", "imagenet", "chefer21", "positive(black)")
NEGATIVE = Score("negative, %", "imagenet", "chefer21", "negative(black)")
AOPC = Score("AOPC", "imagenet", "vtranm", "aopc(black)")
LODDS = Score("LOdds", "imagenet", "vtranm", "lodds(black)")
BLACK = Score("SRG, black", "imagenet", "srg", "srg(black)")
MEAN = Score("SRG, mean", "imagenet", "srg-mean", "srg(mean)")
KEPT = Score("negative, tokens", "imagenet", "srg-tokens", "negative(tokens)")
TOKENS = Score("SRG, tokens", "imagenet", "srg-tokens", "srg(tokens)")
HIT = Score("hit, %", "imagenet", "pointing", "hit@0")
ENERGY = Score("energy, %", "imagenet", "pointing", "energy")
PIXELS = Score("pixel acc., %", "pets", "segmentation", "pixel_accuracy")
PRECISION = Score("mAP, %", "pets", "segmentation", "map")
MIOU = Score("mIoU, %", "pets", "segmentation", "miou")
REMOVED = (POSITIVE, NEGATIVE, AOPC, LODDS, BLACK, MEAN, TOKENS)
PLACED = (HIT, ENERGY, PIXELS, PRECISION, MIOU)
ALL = (POSITIVE, NEGATIVE, AOPC, LODDS, BLACK, MEAN, KEPT, TOKENS, *PLACED)
RANKED = (POSITIVE, NEGATIVE, LODDS, BLACK, MEAN, TOKENS, HIT, PRECISION, MIOU)
BOTH = (POSITIVE, NEGATIVE, HIT, MIOU)
DRAWN = {NEGATIVE: "negative test, %", BLACK: "SRG, black", TOKENS: "SRG, tokens", MIOU: "mIoU on pets, %"}


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    method: str
    control: bool
    better: str
    value: float
    low: float
    high: float
    unit: str
    p_to_best: float
    to_control: float
    p_to_control: float
    to_predicted: float
    p_to_predicted: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 where more is better, −1 where less is."""
        return 1 if self.better == "up" else -1

    @property
    def tied(self) -> bool:
        """Whether it is the best, or cannot be told from it."""
        return not self.control and not self.p_to_best < ALPHA

    @property
    def beats(self) -> bool:
        """Whether it is shown to be better than the strongest control."""
        return self.sign * self.to_control > 0 and self.p_to_control < ALPHA

    def text(self, value: float, plus: str = "") -> str:
        """A value in this cell's units."""
        digits = 1 if self.unit else 3
        return f"{round(value, digits) + 0.0:{plus}.{digits}f}".replace("-", "−")  # without a minus before zero


class Table:
    """The committed table, by score and target."""

    def __init__(self, path: Path) -> None:
        self.cells: dict[tuple[str, str, str, str], dict[str, Cell]] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                key = row["dataset"], row["protocol"], row["score"], row["target"]
                numbers = {name: float(row[name] or "nan") for name in NUMBERS}
                cell = Cell(row["method"], row["control"] == "True", row["better"], unit=row["unit"], **numbers)
                self.cells.setdefault(key, {})[cell.method] = cell

    def column(self, score: Score, target: str = "predicted") -> dict[str, Cell]:
        """A score's numbers by method, best first, controls last; empty where no run has it."""
        return self.cells.get((score.dataset, score.protocol, score.name, target), {})

    def have(self, scores: Iterable[Score]) -> list[Score]:
        """Those of some scores that are there."""
        return [score for score in scores if self.column(score)]


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]])


def _named(cell: Cell) -> str:
    return f"*{cell.method}* (control)" if cell.control else f"`{cell.method}`"


def methods(table: Table) -> str:
    """How many methods are in the table, and which of the catalogue are not."""
    from vitrail.methods import METHODS

    column = table.column(BLACK)
    names = {name.partition(":")[0] for name in column}
    absent = [f"`{name}`" for name in METHODS if name not in names and name != "inverted"]
    counted = f"{sum(not cell.control for cell in column.values())} rows are methods and variants of methods"
    controls = f"{sum(cell.control for cell in column.values())} are controls"
    return f"{counted}, {controls}." + (f" Not run: {', '.join(absent)}." if absent else "")


def main_table(table: Table, scores: Sequence[Score], by: Score) -> str:
    """Methods down, scores across, best first by one of them."""
    there = table.have(scores)
    head = ["method", *(f"{s.title} {'↑' if next(iter(table.column(s).values())).sign > 0 else '↓'}" for s in there)]
    rows = []
    for method, first in table.column(by).items():
        cells = [table.column(score)[method] for score in there]
        rows.append([_named(first), *map(_cell, cells)])
    return _grid(head, rows)


def _cell(cell: Cell) -> str:
    value = f"{cell.text(cell.value)}"
    if cell.control:
        return f"{value} ± {cell.text(cell.half)}"
    best = math.isnan(cell.p_to_best)
    mark = ("" if best or not cell.tied else "=") + ("" if cell.beats else "○")
    return f"{f'**{value}**' if best else value}{mark} ± {cell.text(cell.half)}"


def leaders(table: Table) -> str:
    """For each score who leads, who cannot be told from the leader, and what the strongest control does."""
    rows = []
    for score in table.have(ALL):
        column = table.column(score)
        methods = [cell for cell in column.values() if not cell.control]
        control = next(cell for cell in column.values() if cell.control)
        tied = [f"`{cell.method}`" for cell in methods[1:] if cell.tied]
        beating = sum(cell.beats for cell in methods)
        arrow = "↑" if control.sign > 0 else "↓"
        rows.append([
            f"{score.title} {arrow}", f"`{methods[0].method}` {methods[0].text(methods[0].value)}",
            ", ".join(tied) or "–", f"{control.method} {control.text(control.value)}", f"{beating} of {len(methods)}",
        ])  # fmt: skip
    head = ["score", "best", "not told from it", "strongest control", "methods shown to beat it"]
    return _grid(head, rows).replace("|---:|---:|---:|---:|", "|---|---|---|---:|")


def agreement(table: Table) -> str:
    """Spearman's rank correlation between scores over methods, controls left out, better always up."""
    there = table.have(RANKED)
    methods = [name for name, cell in table.column(there[0]).items() if not cell.control]
    ranks = [_ranks([c[m].sign * c[m].value for m in methods]) for c in map(table.column, there)]
    found = np.corrcoef(np.array(ranks))
    rows = [[one.title, *(f"{x:.2f}".replace("-", "−") if j < i else "" for j, x in enumerate(found[i][:-1]))]
            for i, one in enumerate(there)][1:]  # fmt: skip
    return _grid(["", *(score.title for score in there[:-1])], rows)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = np.sort(values)
    return [float(np.flatnonzero(ordered == value).mean()) for value in values]


def targets(table: Table) -> str:
    """Maps of the label minus maps of the predicted class, by scores that ask the same of both."""
    there = table.have(BOTH)
    rows = []
    for method, cell in table.column(BLACK).items():
        own = [table.column(score, "label")[method] for score in there]
        if not all(math.isnan(one.to_predicted) for one in own):  # they are for methods blind to classes
            rows.append([_named(cell), *(one.text(one.to_predicted, "+") + ("" if one.p_to_predicted < ALPHA else "=")
                                         for one in own)])  # fmt: skip
    arrows = ["↑" if next(iter(table.column(s).values())).sign > 0 else "↓" for s in there]
    return _grid(["method", *(f"{s.title} {a}" for s, a in zip(there, arrows, strict=True))], rows)


def draw(table: Table, path: Path) -> None:
    """Four scores of all methods with intervals, ordered by SRG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    there = table.have(DRAWN)
    order = [*reversed(table.column(BLACK))]
    labels = [name if len(name) <= 32 else f"{name[:31]}…" for name in order]
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 0.8 + 0.36 * len(order)), sharey=True, layout="constrained")
    for axis, score in zip(axes.flat, there, strict=True):
        column = table.column(score)
        bar = next(cell.value for cell in column.values() if cell.control)
        axis.axvline(bar, color="0.45", linestyle="--", linewidth=1)
        for y, method in enumerate(order):
            cell = column[method]
            colour = "0.45" if cell.control else "#3b4cc0" if cell.beats else "#d9541e"
            axis.plot([cell.low, cell.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
            axis.plot(cell.value, y, "s" if cell.control else "o", color=colour, markersize=4)
        axis.set_title(DRAWN[score], fontsize=11)
        axis.set_yticks(range(len(order)), labels, fontsize=8.5)
        axis.tick_params(axis="x", labelsize=9)
        axis.grid(axis="both", color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_ylim(-0.7, len(order) - 0.3)
    held = BytesIO()
    figure.savefig(held, dpi=110, facecolor="white")
    plt.close(figure)
    # A palette makes the file a third as large, and nothing is lost that an eye would see.
    Image.open(held).convert("RGB").quantize(64).save(path, optimize=True)


def renewed(page: str, table: Table) -> str:
    """The page with its tables made anew."""
    made = {
        "methods": methods(table), "perturbation": main_table(table, REMOVED, BLACK),
        "places": main_table(table, PLACED, MIOU), "leaders": leaders(table), "agreement": agreement(table),
        "targets": targets(table),
    }  # fmt: skip
    for name, text in made.items():
        before, found, rest = page.partition(f"<!-- {name} -->")
        _, ended, after = rest.partition(f"<!-- /{name} -->")
        if not found or not ended:
            raise ValueError(f"the page has no <!-- {name} --> … <!-- /{name} -->")
        page = f"{before}{found}\n\n{text}\n\n{ended}{after}"
    return page


def show(folder: Path, page: Path) -> None:
    """Make the page's tables and picture anew from the table in a folder."""
    table = Table(folder / f"{NAME}.csv")
    page.write_text(renewed(page.read_text(encoding="utf-8"), table), encoding="utf-8")
    draw(table, page.parent / PICTURE)


if __name__ == "__main__":
    show(HERE, PAGE)
