"""Comparison of methods by one score: ranking, intervals, and paired tests against the best method and controls.

A paired test uses the samples that both methods have. P-values are corrected by Holm for the number of methods, once
for the tests against the best method and once for those against the strongest control.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vitrail.errors import InputError
from vitrail.scores.statistics import (
    Array,
    Interval,
    ScoreFunction,
    as_table,
    difference,
    holm,
    interval,
    p_value,
    single_mean,
)

#: Corrected p-value below which a difference is significant.
ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class MethodValues:
    """Values of one method for each sample, and the score that is computed from them.

    Attributes:
        ids: Ids of the samples that have a value, sorted.
        table: Shape (samples, M).
        score: From means of the columns to the score.
    """

    ids: tuple[str, ...]
    table: Array
    score: ScoreFunction = single_mean

    def per_sample(self) -> dict[str, float]:
        """ScoreFunction of each sample by itself."""
        return dict(zip(self.ids, self.score(self.table).tolist(), strict=True))

    def rows(self, ids: Sequence[str]) -> Array:
        """Rows of some samples."""
        index = {name: i for i, name in enumerate(self.ids)}
        return self.table[[index[name] for name in ids]]


class PairedTest(NamedTuple):
    """Difference of a method to a reference method on shared samples, with its p-value before and after correction."""

    difference: Interval
    p: float
    p_holm: float

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below ``ALPHA``."""
        return self.p_holm < ALPHA


@dataclass(frozen=True)
class RankedMethod:
    """A method in a ranking by one score.

    Attributes:
        method: Name of the method.
        control: Whether it is a control.
        images: Number of samples with a value.
        value: The score with its interval, in the score's own units.
        rank: 1 for the best score, 2 for the second best, 0 for others, for controls, and without a direction.
        to_best: This method minus the best; None for the best, for controls, and with fewer than two shared samples.
        to_control: This method minus the strongest control; None likewise.
    """

    method: str
    control: bool
    images: int
    value: Interval
    rank: int = 0
    to_best: PairedTest | None = None
    to_control: PairedTest | None = None

    @property
    def tied_with_best(self) -> bool:
        """Whether it is the best or not significantly different from the best."""
        return self.rank == 1 or (self.to_best is not None and not self.to_best.significant)

    def better_than_control(self, direction: str) -> bool | None:
        """Whether it is significantly better than the strongest control; None without one."""
        if self.to_control is None:
            return None
        gap = self.to_control.difference.value
        return (gap > 0 if direction == "up" else gap < 0) and self.to_control.significant


class ComparedMethod(NamedTuple):
    """A method in a comparison; differences are this method minus the best one, on the same images."""

    name: str
    mean: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    p_holm: float


def rank_methods(
    values: Mapping[str, MethodValues],
    direction: str,
    controls: Collection[str] = (),
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    min_shared: int = 2,
) -> dict[str, RankedMethod]:
    """Rank methods by one score, best first, followed by the controls, best first.

    Args:
        values: By method.
        direction: "up" if higher is better, "down" if lower is better, "none" for no ranking and no tests.
        controls: Methods that are controls.
        level: Confidence of the intervals, which are not corrected for their number.
        resamples: Random draws for intervals and p-values.
        seed: Seed of both.
        min_shared: Fewest samples that two methods must share to be tested.

    Example:
        >>> ids = tuple("abcdefghijkl")
        >>> tables = {"good": np.full((12, 1), 3.0), "bad": np.full((12, 1), 1.0)}
        >>> ranking = rank_methods({name: MethodValues(ids, table) for name, table in tables.items()}, "up")
        >>> [(m.method, m.rank, m.tied_with_best) for m in ranking.values()]
        [('good', 1, True), ('bad', 2, False)]
    """
    ranked = {}
    for name, method_values in values.items():
        value = interval(method_values.table, method_values.score, level=level, resamples=resamples, seed=seed)
        ranked[name] = RankedMethod(name, name in controls, len(method_values.ids), value)
    sign = {"up": -1, "down": 1}.get(direction, 0)
    order = sorted(ranked, key=lambda name: (ranked[name].control, sign * ranked[name].value.value))
    methods = [name for name in order if not ranked[name].control]
    if not sign or not methods:
        return {name: ranked[name] for name in order}
    strongest = next((name for name in order if ranked[name].control), None)

    def tests(reference: str, names: Sequence[str]) -> dict[str, PairedTest]:
        pairs = {name: _shared_rows(values[name], values[reference]) for name in names}
        large = {name: pair for name, pair in pairs.items() if len(pair[0]) >= min_shared}
        return paired_tests(large, values[reference].score, level=level, resamples=resamples, seed=seed)

    to_best = tests(methods[0], methods[1:])
    to_control = tests(strongest, methods) if strongest else {}
    scores = list(dict.fromkeys(ranked[name].value.value for name in methods))
    for name in methods:
        rank = scores.index(ranked[name].value.value) + 1
        ranked[name] = replace(
            ranked[name], rank=rank if rank <= 2 else 0, to_best=to_best.get(name), to_control=to_control.get(name)
        )
    return {name: ranked[name] for name in order}


def compare(
    values: Mapping[str, ArrayLike],
    score: ScoreFunction = single_mean,
    *,
    higher: bool = True,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[ComparedMethod]:
    """Compare methods: intervals, and paired differences to the best method with Holm-corrected p-values.

    Images for which any method has no value (NaN) are excluded for all methods.

    Args:
        values: For each method its values, shape (n,) or (n, M), the images in the same order.
        score: See `interval`.
        higher: Whether higher is better.
        level: Confidence level of the intervals, which are not corrected for their number.
        resamples: Number of draws for intervals and p-values.
        seed: Seed of the draws.

    Returns:
        One row per method, best first. The best has no p-value (NaN).

    Example:
        >>> rows = compare({"a": [1.0, 2.0, 3.0, 4.0] * 9, "b": [0.5, 1.0, 2.5, 3.5] * 9})
        >>> [(r.name, r.mean, round(r.difference, 3), r.p < 0.01) for r in rows]
        [('a', 2.5, 0.0, False), ('b', 1.875, -0.625, True)]
    """
    tables = {name: as_table(v, finite=False) for name, v in values.items()}
    if len({table.shape for table in tables.values()}) != 1:
        shapes = {name: table.shape for name, table in tables.items()}
        raise InputError(f"methods must be compared on the same images, but their values have the shapes {shapes}")
    complete = np.isfinite(np.stack(list(tables.values()))).all((0, 2))
    ids = tuple(f"{i:09d}" for i in np.flatnonzero(complete))  # sorted by id as given
    given = {name: MethodValues(ids, table[complete], score) for name, table in tables.items()}
    direction = "up" if higher else "down"
    ranking = rank_methods(given, direction, level=level, resamples=resamples, seed=seed, min_shared=1)
    best = PairedTest(Interval(0.0, 0.0, 0.0), np.nan, np.nan)
    return [
        ComparedMethod(name, *one.value, *test.difference, test.p, test.p_holm)
        for name, one in ranking.items()
        for test in [one.to_best or best]
    ]


def paired_tests(
    pairs: Mapping[str, tuple[Array, Array]],
    score: ScoreFunction = single_mean,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, PairedTest]:
    """Test methods against a reference, with p-values corrected by Holm for the number of methods.

    Args:
        pairs: For each method its values and those of the reference on the same samples, each of shape (n, M).
        score: See `interval`.
        level: Confidence of the intervals of the differences.
        resamples: Random draws for intervals and p-values.
        seed: Seed of both.
    """
    gaps = [difference(a, b, score, level=level, resamples=resamples, seed=seed) for a, b in pairs.values()]
    p = [p_value(a, b, score, resamples=resamples, seed=seed) for a, b in pairs.values()]
    tests = zip(gaps, p, holm(p), strict=True)
    return {name: PairedTest(gap, raw, float(q)) for name, (gap, raw, q) in zip(pairs, tests, strict=True)}


def _shared_rows(a: MethodValues, b: MethodValues) -> tuple[Array, Array]:
    shared = sorted(set(a.ids) & set(b.ids))
    return a.rows(shared), b.rows(shared)
