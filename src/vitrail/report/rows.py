"""The report as one table of rows, for other programs: every number with all that it depends on."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any

from vitrail.report.paper_comparison import PaperComparison
from vitrail.report.ranking import RankedMethod
from vitrail.report.section import Column, ReportSection
from vitrail.report.summary import ReportSummary

#: Columns; values of ours are in the units of the column ``unit``, those beside a paper's in the paper's.
COLUMNS = (
    "model", "dataset", "protocol", "target", "score", "direction", "quantity", "fill", "rule", "unit", "method",
    "control", "images", "value", "low", "high", "place", "to_best", "p_to_best", "to_control", "p_to_control", "table",
    "paper_model", "paper_dataset", "paper_method", "paper_metric", "paper_value", "difference", "in_interval",
    "like_for_like", "reason",
)  # fmt: skip


def rows(sheet: ReportSummary) -> Iterator[dict[str, Any]]:
    """Every score of every method, then every published number with ours."""
    for block in sheet.blocks:
        for column in block.columns:
            for one in column.standings.values():
                yield _score(block, column, one)
    if sheet.beside:
        yield from _published(sheet.beside)


def as_csv(sheet: ReportSummary) -> str:
    """The rows as CSV; what does not apply is left empty."""
    held = StringIO()
    writer = csv.DictWriter(held, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows(sheet):
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return held.getvalue()


def _score(block: ReportSection, column: Column, one: RankedMethod) -> dict[str, Any]:
    own = column.measure
    factor = own.factor
    return {
        "model": block.model, "dataset": block.dataset, **_of(own), "method": one.method, "control": one.control,
        "images": one.images, "value": one.value.value * factor, "low": one.value.low * factor,
        "high": one.value.high * factor, "place": one.place or None,
        "to_best": one.behind.value * factor if one.behind else None, "p_to_best": one.p,
        "to_control": one.ahead.value * factor if one.ahead else None, "p_to_control": one.p_control,
    }  # fmt: skip


def _of(own: Any) -> dict[str, Any]:
    unit = "percent" if own.factor == 100 or "×100" in own.rule else "as is"
    return {"protocol": own.protocol, "target": own.target, "score": own.score, "direction": own.direction,
            "quantity": own.quantity, "fill": own.fill, "rule": own.rule, "unit": unit}  # fmt: skip


def _published(found: PaperComparison) -> Iterator[dict[str, Any]]:
    for part in found.parts:
        for row in part.rows:
            for name, cell in row.cells.items():
                if row.control:  # they stand among the scores; no paper has them
                    continue
                ours = cell.ours
                yield {
                    "table": found.table.key, "model": part.ours[0], "dataset": part.ours[1],
                    **(_of(cell.measure) if cell.measure else {}), "method": row.method, "control": False,
                    "value": ours.value if ours else None, "low": ours.low if ours else None,
                    "high": ours.high if ours else None, "place": cell.place or None, "paper_model": part.model,
                    "paper_dataset": part.dataset, "paper_method": row.name, "paper_metric": name,
                    "paper_value": cell.number.value if cell.number else None, "difference": cell.difference,
                    "in_interval": cell.within, "like_for_like": part.like, "reason": cell.reason,
                }  # fmt: skip
