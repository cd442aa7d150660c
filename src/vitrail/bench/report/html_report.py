"""HTML report: one page that opens from disk and loads nothing from the network.

The templates are in ``vitrail/viz/templates``; this module prepares what they print.
"""

from __future__ import annotations

import base64
from itertools import groupby
from math import ceil
from typing import Any

from markupsafe import Markup

from vitrail.bench.report.charts import ChartInterval, ChartLine, interval_chart, line_chart, line_styles
from vitrail.bench.report.curves import MeanCurves, WordCurves
from vitrail.bench.report.metric import NO_THRESHOLD, MetricInfo
from vitrail.bench.report.paper_comparison import SUBSTITUTE_WARNING, ComparisonTable, PaperComparison
from vitrail.bench.report.section import LEGEND, WEAK, MetricColumn, ReportSection, significance_marks
from vitrail.bench.report.summary import ReportSummary
from vitrail.scores.comparison import RankedMethod
from vitrail.viz.templating import render

#: Most metrics side by side in a table of the paper comparison, which fit on the page.
METRICS_PER_TABLE = 3


def render_html(summary: ReportSummary) -> str:
    """Render the whole page."""
    order = list(summary.manifest["weights"])
    return render(
        "report.html",
        summary=summary,
        facts=_facts(summary),
        links=_links(summary),
        overview=_overview(summary),
        legend=LEGEND,
        weak_mark=WEAK,
        score_groups=_by_model_and_data(summary.sections),
        curve_groups=_by_model_and_data([_curve_figure(summary, one) for one in summary.curves]),
        example_groups=_by_model_and_data(summary.examples),
        costs=sorted(summary.costs, key=lambda cost: (order.index(cost.model), cost.seconds)),
        tested=any(cost.test_forwards is not None for cost in summary.costs),
        details=_run_details(summary),
        paper_tables=_paper_tables(summary.paper_comparison) if summary.paper_comparison else [],
        substitute_warning=SUBSTITUTE_WARNING,
        column_title=_column_title,
        column_note=_column_note,
        significance_marks=significance_marks,
        test_results=_test_results,
        rank_correlations=lambda table: _rank_correlations(summary, table),
        samples=_samples(summary),
        base64=lambda data: base64.b64encode(data).decode(),
    )


def _by_model_and_data(items: Any) -> list[tuple[tuple[str, str], list[Any]]]:
    """Group consecutive items of one model and data set."""

    def key(item: Any) -> tuple[str, str]:
        owner = item[0] if isinstance(item, tuple) else getattr(item, "example", item)
        return owner.model, owner.dataset

    return [(name, list(group)) for name, group in groupby(items, key=key)]


def _samples(summary: ReportSummary) -> str:
    """What the samples of a run are called."""
    from vitrail.bench.plan import TEXT_DATASETS

    datasets = summary.manifest["plan"]["dataset"]
    return "texts" if any(data["name"] in TEXT_DATASETS for data in datasets) else "images"


def _facts(summary: ReportSummary) -> list[tuple[int, str]]:
    manifest, samples = summary.manifest, _samples(summary)
    controls = {name for section in summary.sections for name in section.controls}
    counts = {
        "models": len(manifest["plan"]["models"]), "data sets": len(manifest["images"]),
        samples: sum(manifest["images"].values()), "methods": len(set(manifest["methods"]) - controls),
        "controls": len(controls), "chunks": manifest["parts"] - summary.missing_chunks,
    }  # fmt: skip
    return [(count, noun.removesuffix("s") if count == 1 else noun) for noun, count in counts.items()]


def _links(summary: ReportSummary) -> list[tuple[str, str]]:
    titles = {
        "paper": "Comparison with the paper" if summary.paper_comparison else "", "overview": "Overview",
        "scores": "Scores", "curves": "Curves" if summary.curves else "",
        "examples": "Example images" if summary.examples else "", "costs": "Costs",
        "failed": "Not applicable and failed", "details": "Run details",
    }  # fmt: skip
    return [(key, title) for key, title in titles.items() if title]


# -- scores ------------------------------------------------------------------------------------------------------------


def _overview(summary: ReportSummary) -> list[tuple[ReportSection, MetricInfo, Markup]]:
    """Chart of the first score of each model, data set and protocol; of two explained classes, of the first."""
    charts: dict[tuple[str, str, str], tuple[ReportSection, MetricInfo, Markup]] = {}
    for section in summary.sections:
        column = next((c for c in section.columns if c.metric.direction != "none"), None)
        key = (section.model, section.dataset, section.protocol)
        if column is not None and key not in charts:
            charts[key] = section, column.metric, _ranking_chart(section, column)
    return list(charts.values())


def _ranking_chart(section: ReportSection, column: MetricColumn) -> Markup:
    metric, factor = column.metric, column.metric.factor
    rows = []
    for ranked in column.ranking.values():
        style = "control" if ranked.control else "lead" if ranked.rank == 1 else "plain"
        value, low, high = (v * factor for v in ranked.value)
        rows.append(ChartInterval(ranked.method, value, low, high, style))
    control = column.strongest_control
    title = f"{section.model}, {section.dataset}: {metric.short} {metric.arrow}"
    return interval_chart(rows, title, metric.digits, control.value.value * factor if control else None)


def _column_title(metric: MetricInfo) -> str:
    """Short name and arrow, kept together by non-breaking spaces."""
    title = f"{metric.short} {metric.arrow}".strip()
    return title.replace(" %", "\u00a0%").replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓")


def _column_note(metric: MetricInfo) -> str:
    """Fill and rule below a column's title, "" if there is no rule."""
    if metric.rule == NO_THRESHOLD:
        return ""
    return f"fill {metric.fill}, {metric.rule}" if metric.fill else metric.rule


def _test_results(ranked: RankedMethod, column: MetricColumn) -> str:
    """Paired differences of a method, for its tooltip."""
    metric, texts = column.metric, []
    if ranked.to_best is not None:
        texts.append(f"to the best {metric.format(ranked.to_best.difference.value)}, p = {ranked.to_best.p_holm:.3g}")
    if ranked.to_control is not None and column.strongest_control is not None:
        gap = metric.format(ranked.to_control.difference.value)
        texts.append(f"to {column.strongest_control.method} {gap}, p = {ranked.to_control.p_holm:.3g}")
    return "; ".join(texts) or f"{ranked.images:,} images"


# -- curves ------------------------------------------------------------------------------------------------------------


def _curve_figure(
    summary: ReportSummary, curves: MeanCurves | WordCurves
) -> tuple[MeanCurves | WordCurves, str, Markup]:
    metric = curves.metric
    keys = (curves.model, curves.dataset, metric.protocol, metric.target)
    section = next(s for s in summary.sections if (s.model, s.dataset, s.protocol, s.target) == keys)
    column = section.column(metric.score)
    ranking = column.ranking if column else {}
    style = line_styles(list(curves.y), list(ranking), [name for name, ranked in ranking.items() if ranked.control])
    # Coloured lines are drawn on top of dashed ones, and these on top of grey ones.
    order = sorted(curves.y, key=lambda method: (style[method] != "rest", style[method] != "control", style[method]))
    lines = [ChartLine(method, curves.y[method], style[method]) for method in order]
    title = f"{metric.protocol} {metric.name} {metric.arrow}, {metric.target} class: {curves.y_label}"
    return curves, title, line_chart(curves.x, lines, curves.x_label, curves.y_label, title)


# -- comparison with a paper -------------------------------------------------------------------------------------------


def _paper_tables(
    comparison: PaperComparison,
) -> list[tuple[ComparisonTable, list[list[str]], list[tuple[str, str]], Markup | None]]:
    """For each table: metrics in groups, metrics without a score of ours with the reason, and a chart of the first."""
    shown = []
    for table in comparison.tables:
        reasons = {name: comparison.table.metrics[name].reason for name in table.directions}
        scored = [name for name, reason in reasons.items() if not reason]
        size = ceil(len(scored) / max(1, ceil(len(scored) / METRICS_PER_TABLE))) or 1
        groups = [scored[start : start + size] for start in range(0, len(scored), size)]
        unscored = {reason: name for name, reason in reasons.items() if reason}
        chart = _paper_chart(comparison, table, scored[0]) if scored else None
        shown.append((table, groups, [(name, reason) for reason, name in unscored.items()], chart))
    return shown


def _paper_chart(comparison: PaperComparison, table: ComparisonTable, metric: str) -> Markup | None:
    rows, digits = [], 2
    for row in table.rows:
        cell = row.cells.get(metric)
        if cell is not None and cell.ours is not None and cell.metric is not None:
            published = cell.published.value if cell.published is not None else None
            style = "control" if row.control else "lead" if cell.rank == 1 else "plain"
            rows.append(ChartInterval(row.name, *cell.ours, style, published))
            digits = cell.metric.digits
    if not rows:
        return None
    title = f"{comparison.table.short(metric)}: ours with its interval, the paper's number as a diamond"
    return interval_chart(rows, title, digits)


def _rank_correlations(summary: ReportSummary, table: ComparisonTable) -> str:
    assert summary.paper_comparison is not None
    short = summary.paper_comparison.table.short
    texts = [f"{short(name)} {rho:+.2f}" for name, (rho, _) in table.rank_correlation.items() if rho == rho]
    return "; ".join(texts) or "undefined"


# -- provenance --------------------------------------------------------------------------------------------------------


def _run_details(summary: ReportSummary) -> dict[str, str]:
    manifest = summary.manifest
    plan = manifest["plan"]
    return {
        "run": manifest["key"],
        "versions": ", ".join(f"{library} {version}" for library, version in manifest["versions"].items()),
        "device": f"{manifest['device']}, {manifest['accelerator'] or 'no accelerator'}, {manifest['machine']}",
        **{f"weights of {model}": f"SHA-256 {digest}" for model, digest in manifest["weights"].items()},
        **{f"images of {data}": f"{count:,}" for data, count in manifest["images"].items()},
        "methods": ", ".join(manifest["methods"]),
        **{key: str(plan[key]) for key in plan if key in ("precision", "view", "seed", "batch")},
    }
