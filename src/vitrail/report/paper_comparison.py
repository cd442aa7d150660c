"""A paper's table beside ours: every published number with the one of the run it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from vitrail.methods import find
from vitrail.papers import PaperNumber, PaperTable, find_table
from vitrail.report.differs import Match, match_data, match_models, protocol_of, set_up
from vitrail.report.metric import MetricInfo, measure
from vitrail.report.ranking import RankedMethod
from vitrail.report.run import Run
from vitrail.report.section import Column, ReportSection
from vitrail.scores.agreement import spearman
from vitrail.scores.statistics import Interval


@dataclass(frozen=True)
class Cell:
    """A published number beside ours; both in the paper's units.

    Attributes:
        number: The paper's.
        measure: Our score, or None where there is none.
        ours: With its interval, or None.
        paper_place: 1 or 2 where the paper's number is best or second best of its column.
        place: The same of ours, among the methods of the paper.
        reason: Why there is no number of ours, or "".
    """

    number: PaperNumber | None
    measure: MetricInfo | None = None
    ours: Interval | None = None
    paper_place: int = 0
    place: int = 0
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.number is None or self.number.value is None:
            return None
        return self.ours.value - self.number.value

    @property
    def within(self) -> bool | None:
        """Whether the paper's number lies in our interval."""
        if self.difference is None or self.ours is None or self.number is None or self.number.value is None:
            return None
        return self.ours.low <= self.number.value <= self.ours.high


@dataclass(frozen=True)
class ComparisonRow:
    """A method: the paper's name, ours ("" where there is none), and its cells by metric."""

    name: str
    method: str
    control: bool
    cells: Mapping[str, Cell] = field(repr=False)


@dataclass(frozen=True)
class ComparisonPart:
    """One model and data set of a paper's table.

    Attributes:
        model: The paper's.
        dataset: The paper's.
        ours: Titles of our model and data set, "" where the run has none.
        like: Whether both are the paper's, so that a difference means something.
        metrics: The paper's, with the way to better.
        rows: The paper's methods, then controls.
        order: By metric, Spearman's rank correlation between the paper's order of methods and ours, and of how many.
    """

    model: str
    dataset: str
    ours: tuple[str, str]
    like: bool
    metrics: Mapping[str, str]
    rows: tuple[ComparisonRow, ...]
    order: Mapping[str, tuple[float, int]]


@dataclass(frozen=True)
class PaperComparison:
    """A paper's table beside a run.

    Attributes:
        table: The paper's.
        differs: What the plan does otherwise than the paper.
        parts: By model and data set.
    """

    table: PaperTable
    differs: tuple[str, ...]
    parts: tuple[ComparisonPart, ...]


def beside(run: Run, blocks: Sequence[ReportSection]) -> PaperComparison | None:
    """The table the run's plan repeats; None where it repeats none."""
    if run.paper is None:
        return None
    table, plan = find_table(run.paper), run.plan
    models = match_models(table, plan)
    data = match_data(table, plan, run.manifest["images"])
    differs = [m.remark for m in (*models.values(), *data.values()) if m.remark] + set_up(table, plan, data)
    parts = []
    for model, dataset in dict.fromkeys((n.model, n.dataset) for n in table.numbers):
        numbers = [n for n in table.numbers if (n.model, n.dataset) == (model, dataset)]
        parts.append(_part(run, blocks, table, numbers, models.get(model), data.get(dataset)))
    differs += _options(parts, table)
    differs += _presets(parts, table)
    open_points = [f"{name}: {source.note}." for name, source in table.models.items() if source.note]
    return PaperComparison(
        replace(table, notes=(*open_points, *table.notes)), tuple(dict.fromkeys(differs)), tuple(parts)
    )


def places(values: Mapping[str, float], direction: str) -> dict[str, int]:
    """Best and second best, 1 and 2, of some values; equal ones share a place.

    Example:
        >>> places({"a": 0.2, "b": 0.1, "c": 0.2, "d": 0.3}, "down")
        {'a': 2, 'b': 1, 'c': 2}
    """
    if direction not in ("up", "down"):
        return {}
    ranked = sorted(set(values.values()), reverse=direction == "up")[:2]
    return {name: ranked.index(value) + 1 for name, value in values.items() if value in ranked}


def _spec(table: PaperTable, name: str, specs: Sequence[str]) -> str:
    """The plan's method for one of the paper's: the same options if it is there, else the only one of its name."""
    wanted = [find(spec)[1:] for spec in table.methods[name]]
    for method, options in wanted:
        for spec in specs:
            if find(spec)[1].name == method.name and find(spec)[2] == options:
                return spec
    bases = [_base(own[0]) for own in table.methods.values() if own]
    if not wanted or bases.count(wanted[0][0].name) > 1:  # an ablation: other options are another row
        return ""
    same = [spec for spec in specs if _base(spec) == wanted[0][0].name]
    return same[0] if len(same) == 1 else ""


def _base(spec: str) -> str:
    return spec.partition(":")[0]


def _options(parts: Iterable[ComparisonPart], table: PaperTable) -> list[str]:
    """Methods that were run with other options than the paper's row is taken to mean."""
    used = [(part.model, row.name, row.method) for part in parts for row in part.rows if row.method and not row.control]
    return [
        f"{name} on {model} was run as `{spec}`, not as `{table.methods[name][0]}`."
        for model, name, spec in dict.fromkeys(used)
        if find(table.methods[name][0])[1:] != find(spec)[1:]
    ]


def _presets(parts: Iterable[ComparisonPart], table: PaperTable) -> list[str]:
    """Presets that others, with another fill, stand for."""
    cells = [(name, cell) for part in parts for row in part.rows if not row.control for name, cell in row.cells.items()]
    used = [(cell.measure.protocol, table.metrics[name].protocol) for name, cell in cells if cell.measure]
    pairs = [(own, wanted) for own, wanted in dict.fromkeys(used) if own.startswith(f"{wanted}-")]
    return [f"Pixels are removed as in {own} in place of {wanted}: another fill." for own, wanted in pairs]


def _part(
    run: Run,
    blocks: Sequence[ReportSection],
    table: PaperTable,
    numbers: list[PaperNumber],
    model: Match | None,
    data: Match | None,
) -> ComparisonPart:
    metrics = dict.fromkeys(n.metric for n in numbers)
    directions = {name: next(n.direction for n in numbers if n.metric == name) for name in metrics}
    titles = (model.title, data.title) if model and data else ("", "")
    rows: list[ComparisonRow] = []
    for name in dict.fromkeys(n.method for n in numbers):
        spec = _spec(table, name, run.methods(titles[0])) or _spec(table, name, run.plan.specs())
        cells = {n.metric: _cell(run, blocks, table, n, titles, spec) for n in numbers if n.method == name}
        rows.append(ComparisonRow(name, spec, False, cells))
    rows = _marked(rows, directions)
    for spec in run.plan.specs():
        if spec in run.controls:
            # The last row is the paper's own, scored as the paper says, not as rows it quotes were.
            last = {n.metric: n for n in numbers}
            own = {name: _cell(run, blocks, table, last[name], titles, spec) for name in metrics}
            shown = {name: replace(cell, number=None) for name, cell in own.items() if cell.ours is not None}
            if shown:
                rows.append(ComparisonRow(spec, spec, True, shown))
    order = {}
    for name in metrics:
        pairs = [(c.number.value, c.ours.value) for r in rows if (c := r.cells.get(name)) is not None
                 and c.number is not None and c.number.value is not None and c.ours is not None]  # fmt: skip
        if len(pairs) > 2:
            said, found = torch.tensor(pairs, dtype=torch.float64).T[:, None]
            order[name] = float(spearman(said, found)), len(pairs)
    like = bool(model and data and model.same and data.same)
    return ComparisonPart(numbers[0].model, numbers[0].dataset, titles, like, directions, tuple(rows), order)


def _cell(
    run: Run,
    blocks: Sequence[ReportSection],
    table: PaperTable,
    number: PaperNumber,
    titles: tuple[str, str],
    spec: str,
) -> Cell:
    metric = table.metric(number)
    if metric.reason:
        return Cell(number, reason=metric.reason)
    if not all(titles):
        return Cell(number, reason="not part of this plan")
    if not spec:
        return Cell(number, reason="the method is not part of this plan")
    data = next(d for d in run.plan.dataset if d.title == titles[1])
    found = protocol_of(metric, run.plan.protocols_of(data))
    if found is None:
        return Cell(number, reason=f"{metric.protocol} is not run on {titles[1]}")
    own = measure(found[0], metric.target, found[1])
    refused = run.manifest["refused"].get(titles[0], {})
    if spec in refused:
        return Cell(number, own, reason="does not apply to the model")
    standing = _standing(_column(blocks, titles, own), spec)
    if standing is None:
        return Cell(number, own, reason="no value")
    ours = Interval(*(v * own.factor for v in standing.value))
    return Cell(number, own, ours)


def _column(blocks: Sequence[ReportSection], titles: tuple[str, str], own: MetricInfo) -> Column | None:
    where = (*titles, own.protocol, own.target)
    for block in blocks:
        if (block.model, block.dataset, block.protocol, block.target) == where:
            return block.column(own.score)
    return None


def _standing(column: Column | None, spec: str) -> RankedMethod | None:
    return None if column is None else column.standings.get(spec)


def _marked(rows: list[ComparisonRow], directions: Mapping[str, str]) -> list[ComparisonRow]:
    """Rows with the best and second best of each column marked, the paper's and ours."""
    paper: dict[str, dict[str, int]] = {}
    ours: dict[str, dict[str, int]] = {}
    for name, way in directions.items():
        cells = {row.name: row.cells[name] for row in rows if name in row.cells}
        said = {n: c.number.value for n, c in cells.items() if c.number is not None and c.number.value is not None}
        paper[name] = places(said, way)
        ours[name] = places({n: c.ours.value for n, c in cells.items() if c.ours is not None}, way)
    return [
        replace(row, cells={
            m: replace(c, paper_place=paper[m].get(row.name, 0), place=ours[m].get(row.name, 0))
            for m, c in row.cells.items()
        })
        for row in rows
    ]  # fmt: skip
