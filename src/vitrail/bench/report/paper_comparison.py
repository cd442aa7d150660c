"""Compare a run with a paper's table: each published number with our counterpart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from vitrail.bench.papers import PaperNumber, PaperTable, find_table
from vitrail.bench.report.mask_counts import MASKS, MASKS_STD, count_masks, mask_statistic
from vitrail.bench.report.metric import MetricInfo, metric_info
from vitrail.bench.report.paper_match import (
    PaperMatch,
    match_datasets,
    match_method,
    match_models,
    match_protocol,
    setup_differences,
)
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import ReportSection
from vitrail.methods import find
from vitrail.scores.agreement import spearman
from vitrail.scores.comparison import RankedMethod
from vitrail.scores.statistics import Interval

#: Warning above a table whose model or data set is not the paper's.
SUBSTITUTE_WARNING = (
    "Our model or data set is not the paper's: compare the order of the methods, not the numbers. Differences are "
    "therefore printed faintly."
)


@dataclass(frozen=True)
class ComparisonCell:
    """A published number and ours, both in the paper's units.

    Attributes:
        published: The paper's number; None for controls, which no paper has.
        metric: Our score, or None.
        ours: Our value with its interval, or None.
        paper_rank: 1 or 2 if the paper's number is best or second best of its column.
        rank: The same for our value, among the paper's methods.
        reason: Reason why we have no value, or "".
    """

    published: PaperNumber | None
    metric: MetricInfo | None = None
    ours: Interval | None = None
    paper_rank: int = 0
    rank: int = 0
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Our value minus the paper's."""
        if self.ours is None or self.published is None or self.published.value is None:
            return None
        return self.ours.value - self.published.value

    @property
    def in_interval(self) -> bool | None:
        """Whether the paper's number lies in our interval."""
        if self.ours is None or self.published is None or self.published.value is None:
            return None
        return self.ours.low <= self.published.value <= self.ours.high

    def format(self, value: float) -> str:
        """Format a value in the paper's units, with as many digits as our score is printed with."""
        digits = self.metric.digits if self.metric else 2 if abs(value) >= 10 else 3
        return f"{value:.{digits}f}"

    @property
    def published_text(self) -> str:
        """The paper's number, "–" without one."""
        missing = self.published is None or self.published.value is None
        return "–" if missing else self.format(self.published.value)  # type: ignore[union-attr, arg-type]

    @property
    def difference_text(self) -> str:
        """The difference with its sign, "" without one."""
        if self.difference is None:
            return ""
        text = self.format(self.difference)
        return text if text.startswith("-") else f"+{text}"


@dataclass(frozen=True)
class ComparisonRow:
    """A method: the paper's name, our spec ("" where there is none), and its cells by metric."""

    name: str
    method: str
    control: bool
    cells: Mapping[str, ComparisonCell] = field(repr=False)


@dataclass(frozen=True)
class ComparisonTable:
    """One model and data set of a paper's table.

    Attributes:
        model: The paper's model.
        dataset: The paper's data set.
        our_model: Title of our model, "" where the run has none.
        our_dataset: Title of our data set, "" where the run has none.
        same_setup: Whether model and data set are the paper's.
        directions: By metric of the paper, the direction of better values.
        rows: The paper's methods, then controls.
        rank_correlation: By metric, Spearman's ρ between the paper's and our order of methods, and their number.
    """

    model: str
    dataset: str
    our_model: str
    our_dataset: str
    same_setup: bool
    directions: Mapping[str, str]
    rows: tuple[ComparisonRow, ...]
    rank_correlation: Mapping[str, tuple[float, int]]

    @property
    def in_run(self) -> bool:
        """Whether the run has a counterpart of model and data set."""
        return bool(self.our_model and self.our_dataset)

    def metric_labels(self) -> list[tuple[str, str]]:
        """Each metric of the paper with the description of our score; several where rows are scored differently."""
        labels = [(name, cell.metric.label) for row in self.rows for name, cell in row.cells.items() if cell.metric]
        order = list(self.directions)
        return sorted(dict.fromkeys(labels), key=lambda pair: order.index(pair[0]))


@dataclass(frozen=True)
class PaperComparison:
    """Comparison of a run with a paper's table.

    Attributes:
        table: The paper's table.
        differences: How the plan differs from the paper.
        tables: By model and data set.
    """

    table: PaperTable
    differences: tuple[str, ...]
    tables: tuple[ComparisonTable, ...]


def compare_with_paper(run: Run, sections: Sequence[ReportSection]) -> PaperComparison | None:
    """Compare a run with the table that its plan reproduces; None if it reproduces none."""
    if run.paper is None:
        return None
    table, plan = find_table(run.paper), run.plan
    models = match_models(table, plan)
    datasets = match_datasets(table, plan, run.manifest["images"])
    differences = [m.difference for m in (*models.values(), *datasets.values()) if m.difference]
    differences += setup_differences(table, plan, datasets)
    tables = []
    for model, dataset in dict.fromkeys((n.model, n.dataset) for n in table.numbers):
        numbers = [n for n in table.numbers if (n.model, n.dataset) == (model, dataset)]
        tables.append(_compare_table(run, sections, table, numbers, models.get(model), datasets.get(dataset)))
    differences += _option_differences(tables, table)
    differences += _fill_differences(tables, table)
    unspecified = [f"{name}: {source.note}." for name, source in table.models.items() if source.note]
    return PaperComparison(
        replace(table, notes=(*unspecified, *table.notes)), tuple(dict.fromkeys(differences)), tuple(tables)
    )


def best_two(values: Mapping[str, float], direction: str) -> dict[str, int]:
    """Ranks 1 and 2 of the best and second best values; equal values share a rank.

    Example:
        >>> best_two({"a": 0.2, "b": 0.1, "c": 0.2, "d": 0.3}, "down")
        {'a': 2, 'b': 1, 'c': 2}
    """
    if direction not in ("up", "down"):
        return {}
    best = sorted(set(values.values()), reverse=direction == "up")[:2]
    return {name: best.index(value) + 1 for name, value in values.items() if value in best}


def _option_differences(tables: Iterable[ComparisonTable], table: PaperTable) -> list[str]:
    """Methods that were run with other options than the paper's."""
    rows = [(t.model, row.name, row.method) for t in tables for row in t.rows if row.method and not row.control]
    return [
        f"{name} on {model} was run as `{spec}`, not as `{table.methods[name][0]}`."
        for model, name, spec in dict.fromkeys(rows)
        if find(table.methods[name][0])[1:] != find(spec)[1:]
    ]


def _fill_differences(tables: Iterable[ComparisonTable], table: PaperTable) -> list[str]:
    """Presets that were run with another fill."""
    cells = [(name, cell) for t in tables for row in t.rows if not row.control for name, cell in row.cells.items()]
    used = [(cell.metric.protocol, table.metrics[name].protocol) for name, cell in cells if cell.metric]
    pairs = [(used_name, wanted) for used_name, wanted in dict.fromkeys(used) if used_name.startswith(f"{wanted}-")]
    return [f"Pixels are removed as in {used_name} instead of {wanted}: another fill." for used_name, wanted in pairs]


def _compare_table(
    run: Run,
    sections: Sequence[ReportSection],
    table: PaperTable,
    numbers: list[PaperNumber],
    model: PaperMatch | None,
    data: PaperMatch | None,
) -> ComparisonTable:
    metrics = dict.fromkeys(n.metric for n in numbers)
    directions = {name: next(n.direction for n in numbers if n.metric == name) for name in metrics}
    titles = (model.title, data.title) if model and data else ("", "")
    rows: list[ComparisonRow] = []
    for name in dict.fromkeys(n.method for n in numbers):
        spec = match_method(table, name, run.methods(titles[0])) or match_method(table, name, run.plan.specs())
        cells = {n.metric: _compare_number(run, sections, table, n, titles, spec) for n in numbers if n.method == name}
        rows.append(ComparisonRow(name, spec, False, cells))
    rows = _rank_cells(rows, directions)
    for spec in run.plan.specs():
        if spec in run.controls:
            # Controls are scored like the last row, which is the paper's own and not quoted from an earlier paper.
            last = {n.metric: n for n in numbers}
            cells = {name: _compare_number(run, sections, table, last[name], titles, spec) for name in metrics}
            known = {name: replace(cell, published=None) for name, cell in cells.items() if cell.ours is not None}
            if known:
                rows.append(ComparisonRow(spec, spec, True, known))
    correlation = {}
    for name in metrics:
        pairs = [(c.published.value, c.ours.value) for r in rows if (c := r.cells.get(name)) is not None
                 and c.published is not None and c.published.value is not None and c.ours is not None]  # fmt: skip
        if len(pairs) > 2:
            published, ours = torch.tensor(pairs, dtype=torch.float64).T[:, None]
            correlation[name] = float(spearman(published, ours)), len(pairs)
    same = bool(model and data and model.same and data.same)
    return ComparisonTable(numbers[0].model, numbers[0].dataset, *titles, same, directions, tuple(rows), correlation)


def _compare_number(
    run: Run,
    sections: Sequence[ReportSection],
    table: PaperTable,
    number: PaperNumber,
    titles: tuple[str, str],
    spec: str,
) -> ComparisonCell:
    paper_metric = table.metric(number)
    if paper_metric.reason:
        return ComparisonCell(number, reason=paper_metric.reason)
    if not all(titles):
        return ComparisonCell(number, reason="not in this plan")
    if not spec:
        return ComparisonCell(number, reason="method not in this plan")
    if paper_metric.score in (MASKS, MASKS_STD):
        metric = metric_info(paper_metric.protocol, paper_metric.target, paper_metric.score)
        counted = mask_statistic(count_masks(run, *titles, spec), paper_metric.score)
        return ComparisonCell(number, metric, counted, reason="" if counted else "it scores no masks")
    data = next(d for d in run.plan.dataset if d.title == titles[1])
    matched = match_protocol(paper_metric, run.plan.protocols_of(data))
    if matched is None:
        return ComparisonCell(number, reason=f"{paper_metric.protocol} is not run on {titles[1]}")
    metric = metric_info(matched[0], paper_metric.target, matched[1])
    if spec in run.manifest["refused"].get(titles[0], {}):
        return ComparisonCell(number, metric, reason="does not apply to the model")
    ranked = _find_ranked(sections, titles, metric, spec)
    if ranked is None:
        return ComparisonCell(number, metric, reason="no value")
    return ComparisonCell(number, metric, Interval(*(v * metric.factor for v in ranked.value)))


def _find_ranked(
    sections: Sequence[ReportSection], titles: tuple[str, str], metric: MetricInfo, spec: str
) -> RankedMethod | None:
    keys = (*titles, metric.protocol, metric.target)
    for section in sections:
        if (section.model, section.dataset, section.protocol, section.target) == keys:
            column = section.column(metric.score)
            return None if column is None else column.ranking.get(spec)
    return None


def _rank_cells(rows: list[ComparisonRow], directions: Mapping[str, str]) -> list[ComparisonRow]:
    """Rank the best and second best of each column, the paper's and ours."""
    paper: dict[str, dict[str, int]] = {}
    ours: dict[str, dict[str, int]] = {}
    for metric, direction in directions.items():
        cells = {row.name: row.cells[metric] for row in rows if metric in row.cells}
        numbers = {n: c.published.value for n, c in cells.items() if c.published and c.published.value is not None}
        paper[metric] = best_two(numbers, direction)
        ours[metric] = best_two({n: c.ours.value for n, c in cells.items() if c.ours is not None}, direction)
    return [
        replace(
            row,
            cells={
                metric: replace(cell, paper_rank=paper[metric].get(row.name, 0), rank=ours[metric].get(row.name, 0))
                for metric, cell in row.cells.items()
            },
        )
        for row in rows
    ]
