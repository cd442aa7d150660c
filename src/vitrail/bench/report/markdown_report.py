"""Markdown report: the tables of the HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from vitrail.bench.report.paper_comparison import SUBSTITUTE_WARNING, ComparisonCell, ComparisonTable, PaperComparison
from vitrail.bench.report.section import LEGEND, MetricColumn, ReportSection, significance_marks
from vitrail.bench.report.summary import ReportSummary
from vitrail.scores.comparison import RankedMethod


def render_markdown(summary: ReportSummary) -> str:
    """Render the whole report."""
    return "\n".join([*_report(summary), ""])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table; the first column is left-aligned, the others right-aligned.

    Example:
        >>> print(markdown_table(["a", "b"], [["x", "1"]]))
        | a | b |
        |---|---:|
        | x | 1 |
    """
    lines = [list(head), *map(list, rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([text[0], "|---" + "|---:" * (len(head) - 1) + "|", *text[1:]])


def _report(summary: ReportSummary) -> Iterator[str]:
    yield f"# {summary.name}\n"
    if summary.missing_chunks:
        yield f"**{summary.unfinished_warning}**\n"
    if summary.paper_comparison:
        yield from _paper_comparison(summary.paper_comparison)
    yield "## Scores\n"
    yield _list(LEGEND).replace("underlined", "in italics") + "\n"
    for (model, dataset), sections in groupby(summary.sections, key=lambda s: (s.model, s.dataset)):
        yield f"### {model} on {dataset}\n"
        for section in sections:
            yield f"#### {section.title}\n\n{section.description} {section.images:,} images.\n"
            yield _section_table(section) + "\n"
            yield _list(f"**{c.metric.short}**: {c.metric.label}" for c in section.columns) + "\n"
    yield from _costs_and_failures(summary)
    yield from _run_details(summary)


def _paper_comparison(comparison: PaperComparison) -> Iterator[str]:
    paper = comparison.table
    yield f"## Comparison with {paper.paper}, {paper.title}\n\n{paper.about}.\n"
    if comparison.differences:
        yield f"Differences from the paper's setup:\n\n{_list(comparison.differences)}\n"
    if paper.notes:
        yield f"Not specified in the paper, and known disagreements:\n\n{_list(paper.notes)}\n"
    for table in comparison.tables:
        yield f"### {table.model} on {table.dataset}\n"
        if not table.in_run:
            yield "Not in this plan.\n"
            continue
        warning = "" if table.same_setup else f" {SUBSTITUTE_WARNING}"
        yield f"Ours: `{table.our_model}` on `{table.our_dataset}`.{warning}\n"
        yield _comparison_table(comparison, table) + "\n"
        yield _list(f"**{paper.short(name)}**: {label}" for name, label in table.metric_labels()) + "\n"


def _comparison_table(comparison: PaperComparison, table: ComparisonTable) -> str:
    metrics = [name for name in table.directions if not comparison.table.metrics[name].reason]
    arrows = {"up": "↑", "down": "↓"}
    head = ["method"]
    for name in metrics:
        title = f"{comparison.table.short(name)} {arrows.get(table.directions[name], '')}"
        head += [f"{title} paper", "ours", "difference"]
    rows = []
    for row in table.rows:
        title = f"*{row.name}* (control)" if row.control else f"{row.name} (`{row.method}`)" if row.method else row.name
        rows.append([title, *(text for name in metrics for text in _comparison_cells(row.cells.get(name)))])
    return markdown_table(head, rows)


def _comparison_cells(cell: ComparisonCell | None) -> tuple[str, str, str]:
    if cell is None:
        return "", "", ""
    published = _emphasise(cell.published_text, cell.paper_rank)
    if cell.ours is None:
        return published, cell.reason, ""
    bounds = f"[{cell.format(cell.ours.low)}, {cell.format(cell.ours.high)}]"
    return published, f"{_emphasise(cell.format(cell.ours.value), cell.rank)} {bounds}", cell.difference_text


def _section_table(section: ReportSection) -> str:
    head = ["method", *(f"{c.metric.short} {c.metric.arrow}".strip() for c in section.columns)]
    rows = []
    for method in section.methods:
        title = f"*{method}* (control)" if method in section.controls else f"`{method}`"
        rows.append([title, *(_value(column, column.ranking.get(method)) for column in section.columns)])
    return markdown_table(head, rows)


def _value(column: MetricColumn, ranked: RankedMethod | None) -> str:
    if ranked is None:
        return "–"
    metric, value = column.metric, ranked.value
    marks = significance_marks(ranked, metric.direction)
    bounds = f"[{metric.format(value.low)}, {metric.format(value.high)}]"
    return f"{_emphasise(metric.format(value.value), ranked.rank)}{marks} {bounds}"


def _emphasise(text: str, rank: int) -> str:
    return {1: f"**{text}**", 2: f"*{text}*"}.get(rank, text)


def _costs_and_failures(summary: ReportSummary) -> Iterator[str]:
    yield "## Costs\n"
    yield markdown_table(
        ["method", "model", "seconds per image", "extra forward passes", "memory", "maps without relevance"],
        [
            [f"`{c.method}`", c.model, f"{c.seconds:.3f}", f"{c.forwards:.1f}", c.memory_text, f"{c.constant_maps:,}"]
            for c in summary.costs
        ],
    )
    yield "\n## Not applicable and failed\n"
    if summary.not_applicable:
        rows = [[f"`{r.method}`", r.model, r.reason] for r in summary.not_applicable]
        yield markdown_table(["method", "model", "reason"], rows) + "\n"
    if summary.failures:
        rows = [[f"`{f.method}`", f.model, f.dataset, f.protocol, f"{f.images:,}", f.reason] for f in summary.failures]
        yield markdown_table(["method", "model", "data set", "protocol", "images", "reason"], rows) + "\n"
    if not summary.not_applicable and not summary.failures:
        yield "Every method applies to every model, and nothing failed.\n"


def _run_details(summary: ReportSummary) -> Iterator[str]:
    manifest = summary.manifest
    yield "## Run details\n"
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    device = f"{manifest['accelerator'] or manifest['device']}, {manifest['machine']}"
    yield _list([f"run `{manifest['key']}`", versions, device])
    yield _list(f"weights of {name}: SHA-256 `{digest}`" for name, digest in manifest["weights"].items())
    yield _list(f"images of {name}: {count:,}" for name, count in manifest["images"].items())


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)
