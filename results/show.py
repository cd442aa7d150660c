"""Update the tables and the figure of docs/results.md from imagenet1000.csv.

    python results/show.py

The text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` of the page is replaced; the rest is not changed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
NAME = "imagenet1000"
PAGE = HERE.parent / "docs" / "results.md"
FIGURE = "images/results.png"
NUMBERS = (
    "value", "low", "high", "to_best", "p_to_best", "to_best_low", "to_best_high", "to_control", "p_to_control",
    "to_predicted", "p_to_predicted",
)  # fmt: skip
ALPHA = 0.05  # significance level of the Holm-corrected p-values, as in reports


@dataclass(frozen=True)
class ScoreColumn:
    """A column of the page: its title, and the data set, protocol and score in the CSV."""

    title: str
    dataset: str
    protocol: str
    score: str


POSITIVE = ScoreColumn("positive, %", "imagenet", "chefer21", "positive(black)")
NEGATIVE = ScoreColumn("negative, %", "imagenet", "chefer21", "negative(black)")
AOPC = ScoreColumn("AOPC", "imagenet", "vtranm", "aopc(black)")
LODDS = ScoreColumn("LOdds", "imagenet", "vtranm", "lodds(black)")
SRG_BLACK = ScoreColumn("SRG, black", "imagenet", "srg", "srg(black)")
NEGATIVE_TOKENS = ScoreColumn("negative, tokens", "imagenet", "srg-tokens", "negative(tokens)")
SRG_TOKENS = ScoreColumn("SRG, tokens", "imagenet", "srg-tokens", "srg(tokens)")
POINTING = ScoreColumn("pointing game, %", "imagenet", "pointing", "hit@0")
ENERGY = ScoreColumn("energy pointing, %", "imagenet", "pointing", "energy")
PIXEL_ACCURACY = ScoreColumn("pixel acc., %", "pets", "segmentation", "pixel_accuracy")
MAP = ScoreColumn("mAP, %", "pets", "segmentation", "map")
MIOU = ScoreColumn("mIoU, %", "pets", "segmentation", "miou")
PERTURBATION = (POSITIVE, NEGATIVE, AOPC, LODDS, SRG_BLACK, SRG_TOKENS)
LOCALISATION = (POINTING, ENERGY, PIXEL_ACCURACY, MAP, MIOU)
LEADERS = (POSITIVE, NEGATIVE, AOPC, LODDS, SRG_BLACK, NEGATIVE_TOKENS, SRG_TOKENS, *LOCALISATION)
CORRELATED = (POSITIVE, NEGATIVE, LODDS, SRG_BLACK, SRG_TOKENS, POINTING, MAP, MIOU)
BOTH_TARGETS = (POSITIVE, NEGATIVE, POINTING, MIOU)
#: Columns of the figure, with their titles there.
DRAWN = {
    NEGATIVE: "negative test, % ↑", SRG_BLACK: "SRG, black ↑", SRG_TOKENS: "SRG, tokens ↑", MIOU: "mIoU on pets, % ↑",
}  # fmt: skip


@dataclass(frozen=True)
class ScoreCell:
    """One row of the CSV."""

    method: str
    control: bool
    better: str
    value: float
    low: float
    high: float
    unit: str
    to_best: float
    p_to_best: float
    to_best_low: float
    to_best_high: float
    to_control: float
    p_to_control: float
    to_predicted: float
    p_to_predicted: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 where higher is better, −1 where lower is."""
        return 1 if self.better == "up" else -1

    @property
    def arrow(self) -> str:
        """Arrow in the better direction."""
        return "↑" if self.sign > 0 else "↓"

    @property
    def tied(self) -> bool:
        """Whether it is the best method or not significantly different from it."""
        return not self.control and not self.p_to_best < ALPHA

    @property
    def beats_controls(self) -> bool:
        """Whether it is significantly better than the strongest control."""
        return self.sign * self.to_control > 0 and self.p_to_control < ALPHA

    def text(self, value: float, plus: str = "") -> str:
        """Format a value with the digits of this score."""
        digits = 1 if self.unit else 3
        return f"{round(value, digits) + 0.0:{plus}.{digits}f}".replace("-", "−")  # + 0.0 turns −0 into 0


class ResultsTable:
    """The committed CSV, by score and target."""

    def __init__(self, path: Path) -> None:
        self.cells: dict[tuple[str, str, str, str], dict[str, ScoreCell]] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                key = row["dataset"], row["protocol"], row["score"], row["target"]
                numbers = {name: float(row[name] or "nan") for name in NUMBERS}
                cell = ScoreCell(row["method"], row["control"] == "True", row["better"], unit=row["unit"], **numbers)
                self.cells.setdefault(key, {})[cell.method] = cell

    def column(self, column: ScoreColumn, target: str = "predicted") -> dict[str, ScoreCell]:
        """Cells of a column by method, best first, controls last."""
        return self.cells[column.dataset, column.protocol, column.score, target]

    def heading(self, column: ScoreColumn) -> str:
        """Title of a column with the arrow of its better direction."""
        return f"{column.title} {next(iter(self.column(column).values())).arrow}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]])


def _method_name(cell: ScoreCell) -> str:
    return f"*{cell.method}* (control)" if cell.control else f"`{cell.method}`"


def methods(table: ResultsTable) -> str:
    """Number of methods in the table, and the registered methods that are not in it."""
    from vitrail.methods import METHODS

    column = table.column(SRG_BLACK)
    names = {name.partition(":")[0] for name in column}
    absent = [f"`{name}`" for name in METHODS if name not in names and name != "inverted"]
    counted = f"{sum(not cell.control for cell in column.values())} rows are methods and variants of methods"
    controls = f"{sum(cell.control for cell in column.values())} are controls"
    return f"{counted}, {controls}." + (f" Without a row: {', '.join(absent)}." if absent else "")


def main_table(table: ResultsTable, columns: Sequence[ScoreColumn], sort_by: ScoreColumn) -> str:
    """Methods as rows, scores as columns, sorted by one of them, best first."""
    rows = []
    for method, first in table.column(sort_by).items():
        cells = [table.column(column)[method] for column in columns]
        rows.append([_method_name(first), *map(_cell_text, cells)])
    return _markdown(["method", *map(table.heading, columns)], rows)


def _cell_text(cell: ScoreCell) -> str:
    value = f"{cell.text(cell.value)}"
    if cell.control:
        return f"{value} ± {cell.text(cell.half_width)}"
    best = math.isnan(cell.p_to_best)
    mark = ("" if best or not cell.tied else "=") + ("" if cell.beats_controls else "○")
    return f"{f'**{value}**' if best else value}{mark} ± {cell.text(cell.half_width)}"


def leaders(table: ResultsTable) -> str:
    """For each score the best method, those not significantly different from it, and the strongest control."""
    rows = []
    for column in LEADERS:
        cells = table.column(column)
        ranked = [cell for cell in cells.values() if not cell.control]
        control = next(cell for cell in cells.values() if cell.control)
        tied = [f"`{cell.method}` {_gap(cell)}" for cell in ranked[1:] if cell.tied]
        beating = sum(cell.beats_controls for cell in ranked)
        rows.append([
            table.heading(column), f"`{ranked[0].method}` {ranked[0].text(ranked[0].value)}", ", ".join(tied) or "–",
            f"{control.method} {control.text(control.value)}", f"{beating} of {len(ranked)}",
        ])  # fmt: skip
    head = ["score", "best", "not significantly different, and by how much", "strongest control",
            "significantly better than it"]  # fmt: skip
    return _markdown(head, rows).replace("|---:|---:|---:|---:|", "|---|---|---|---:|")


def _gap(cell: ScoreCell) -> str:
    """Difference to the best method with its interval."""
    low, high = cell.text(cell.to_best_low), cell.text(cell.to_best_high)
    return f"{cell.text(cell.to_best)} [{low}, {high}]"


def correlation(table: ResultsTable) -> str:
    """Spearman's rank correlation between scores over methods, without controls, signed so that higher is better."""
    names = [name for name, cell in table.column(CORRELATED[0]).items() if not cell.control]
    ranks = [_ranks([cells[m].sign * cells[m].value for m in names]) for cells in map(table.column, CORRELATED)]
    matrix = np.corrcoef(np.array(ranks))
    rows = [[one.title, *(f"{x:.2f}".replace("-", "−") if j < i else "" for j, x in enumerate(matrix[i][:-1]))]
            for i, one in enumerate(CORRELATED)][1:]  # fmt: skip
    return _markdown(["", *(column.title for column in CORRELATED[:-1])], rows)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = np.sort(values)
    return [float(np.flatnonzero(ordered == value).mean()) for value in values]


def targets(table: ResultsTable) -> str:
    """Maps of the label minus maps of the predicted class, for scores that measure the same quantity on both."""
    rows = []
    for method, cell in table.column(SRG_BLACK).items():
        own = [table.column(column, "label")[method] for column in BOTH_TARGETS]
        if not all(math.isnan(one.to_predicted) for one in own):  # all NaN for class-agnostic methods
            differences = [one.text(one.to_predicted, "+") for one in own]
            marks = ["" if one.p_to_predicted < ALPHA else "=" for one in own]
            rows.append([_method_name(cell), *map("".join, zip(differences, marks, strict=True))])
    return _markdown(["method", *map(table.heading, BOTH_TARGETS)], rows)


def draw(table: ResultsTable, path: Path) -> None:
    """Draw four scores of all methods with intervals, sorted by SRG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    order = [*reversed(table.column(SRG_BLACK))]
    labels = [name if len(name) <= 32 else f"{name[:31]}…" for name in order]
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 0.8 + 0.36 * len(order)), sharey=True, layout="constrained")
    for axis, (column, title) in zip(axes.flat, DRAWN.items(), strict=True):
        cells = table.column(column)
        strongest = next(cell.value for cell in cells.values() if cell.control)
        axis.axvline(strongest, color="0.45", linestyle="--", linewidth=1)
        for y, method in enumerate(order):
            cell = cells[method]
            colour = "0.45" if cell.control else "#3b4cc0" if cell.beats_controls else "#d9541e"
            axis.plot([cell.low, cell.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
            axis.plot(cell.value, y, "s" if cell.control else "o", color=colour, markersize=4)
        axis.set_title(title, fontsize=11)
        axis.set_yticks(range(len(order)), labels, fontsize=8.5)
        axis.tick_params(axis="x", labelsize=9)
        axis.grid(axis="both", color="0.9", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_ylim(-0.7, len(order) - 0.3)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=110, facecolor="white")
    plt.close(figure)
    # A palette of 64 colours makes the file a third as large without visible loss.
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def replace_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with the text between ``<!-- name -->`` and ``<!-- /name -->`` replaced for each table."""
    for name, text in tables.items():
        before, found, rest = page.partition(f"<!-- {name} -->")
        _, ended, after = rest.partition(f"<!-- /{name} -->")
        if not found or not ended:
            raise ValueError(f"the page has no <!-- {name} --> … <!-- /{name} -->: add the two marks")
        page = f"{before}{found}\n\n{text}\n\n{ended}{after}"
    return page


def updated(page: str, table: ResultsTable) -> str:
    """The page with its tables replaced."""
    tables = {
        "methods": methods(table), "perturbation": main_table(table, PERTURBATION, SRG_BLACK),
        "localisation": main_table(table, LOCALISATION, MIOU), "leaders": leaders(table),
        "correlation": correlation(table), "targets": targets(table),
    }  # fmt: skip
    return replace_tables(page, tables)


def update(folder: Path, page: Path) -> None:
    """Update the tables and the figure of a page from the CSV in a folder."""
    table = ResultsTable(folder / f"{NAME}.csv")
    page.write_text(updated(page.read_text(encoding="utf-8"), table), encoding="utf-8")
    draw(table, page.parent / FIGURE)


if __name__ == "__main__":
    update(HERE, PAGE)
