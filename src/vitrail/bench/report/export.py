"""Write a report to disk: HTML page, Markdown tables and CSV rows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from vitrail.bench.parts import write_file
from vitrail.bench.report.html_report import render_html
from vitrail.bench.report.markdown_report import render_markdown
from vitrail.bench.report.metric import MetricInfo
from vitrail.bench.report.paper_comparison import PaperComparison
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import MetricColumn, ReportSection
from vitrail.bench.report.summary import ReportSummary, summarise
from vitrail.scores.comparison import RankedMethod

#: Columns of the CSV file. Values are in the units of the column ``unit``; in rows of a paper's table, in the paper's.
COLUMNS = (
    "model", "dataset", "protocol", "target", "score", "direction", "quantity", "fill", "rule", "unit", "method",
    "control", "images", "value", "low", "high", "place", "to_best", "p_to_best", "to_control", "p_to_control", "table",
    "paper_model", "paper_dataset", "paper_method", "paper_metric", "paper_value", "difference", "in_interval",
    "like_for_like", "reason",
)  # fmt: skip


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    examples: int = 1,
    device: str = "cpu",
    advance: Callable[[], None] = lambda: None,
) -> Path:
    """Write report.html, report.md and report.csv of a run, finished or not.

    Args:
        folder: The run's folder.
        out: Output folder; by default the run's folder.
        examples: Number of best, of worst and of disagreement images for each model and data set; with 0 no data are
            read and no model is loaded.
        device: Device of the maps that are computed again for examples.
        advance: Called after each section and each example.

    Returns:
        Path of the HTML page.

    Raises:
        DataError: It is not a run's folder, or none of its chunks is done.
    """
    summary = summarise(Run(folder), examples, device, advance)
    texts = {".md": render_markdown(summary), ".csv": render_csv(summary), ".html": render_html(summary)}
    return write_texts(Path(out or folder), "report", texts)


def write_texts(folder: Path, name: str, texts: Mapping[str, str]) -> Path:
    """Write texts to files of one name by suffix, and return the path of the last."""
    for suffix, text in texts.items():
        data = text.encode()
        path = write_file(folder / f"{name}{suffix}", lambda file, data=data: file.write(data))  # type: ignore[misc]
    return path


def report_rows(summary: ReportSummary) -> Iterator[dict[str, Any]]:
    """Rows of the CSV file: every score of every method, then every published number with ours."""
    for section in summary.sections:
        for column in section.columns:
            for ranked in column.ranking.values():
                yield _score_row(section, column, ranked)
    if summary.paper_comparison:
        yield from _paper_rows(summary.paper_comparison)


def render_csv(summary: ReportSummary) -> str:
    """Render the rows as CSV; fields that do not apply are empty."""
    buffer = StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in report_rows(summary):
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return buffer.getvalue()


def _score_row(section: ReportSection, column: MetricColumn, ranked: RankedMethod) -> dict[str, Any]:
    factor, to_best, to_control = column.metric.factor, ranked.to_best, ranked.to_control
    return {
        "model": section.model, "dataset": section.dataset, **_metric_fields(column.metric), "method": ranked.method,
        "control": ranked.control, "images": ranked.images, "value": ranked.value.value * factor,
        "low": ranked.value.low * factor, "high": ranked.value.high * factor, "place": ranked.rank or None,
        "to_best": to_best.difference.value * factor if to_best else None,
        "p_to_best": to_best.p_holm if to_best else None,
        "to_control": to_control.difference.value * factor if to_control else None,
        "p_to_control": to_control.p_holm if to_control else None,
    }  # fmt: skip


def _metric_fields(metric: MetricInfo) -> dict[str, Any]:
    return {
        "protocol": metric.protocol, "target": metric.target, "score": metric.score, "direction": metric.direction,
        "quantity": metric.quantity, "fill": metric.fill, "rule": metric.rule,
        "unit": "percent" if metric.percent else "as is",
    }  # fmt: skip


def _paper_rows(comparison: PaperComparison) -> Iterator[dict[str, Any]]:
    for table in comparison.tables:
        for row in table.rows:
            for name, cell in row.cells.items():
                if row.control:  # among the scores already; no paper has controls
                    continue
                ours = cell.ours
                yield {
                    "table": comparison.table.key, "model": table.our_model, "dataset": table.our_dataset,
                    **(_metric_fields(cell.metric) if cell.metric else {}), "method": row.method, "control": False,
                    "value": ours.value if ours else None, "low": ours.low if ours else None,
                    "high": ours.high if ours else None, "place": cell.rank or None, "paper_model": table.model,
                    "paper_dataset": table.dataset, "paper_method": row.name, "paper_metric": name,
                    "paper_value": cell.published.value if cell.published else None, "difference": cell.difference,
                    "in_interval": cell.in_interval, "like_for_like": table.same_setup, "reason": cell.reason,
                }  # fmt: skip
