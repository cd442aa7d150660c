"""Values by image, and what they say about methods: intervals, paired differences, p-values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitrail.errors import InputError

Array = NDArray[np.float64]
#: From means over images of M columns, shape (…, M), to the score, shape (…).
Score = Callable[[Array], Array]
#: Draws held in memory at a time.
CHUNK = 1 << 22


@dataclass
class Tally:
    """Values of images, by name and image id; what every score collects into.

    Attributes:
        columns: Names of the values; empty until the first images are added.
        rows: For each image id its values, in the order of the columns.

    Example:
        >>> a, b = Tally(), Tally()
        >>> a.add(["cat", "dog"], {"hit": [1.0, 0.0]})
        >>> b.add(["owl"], {"hit": [1.0]})
        >>> (b + a).summary() == (a + b).summary() == {"images": 3, "hit": 2 / 3}
        True
    """

    columns: tuple[str, ...] = ()
    rows: dict[str, Array] = field(default_factory=dict)

    def add(self, ids: Sequence[str], values: Mapping[str, Tensor | ArrayLike]) -> None:
        """Take in what a score returned: by name, one value for each image, or a row of them, shape (images, M).

        Raises:
            InputError: If an image is counted twice, or the values are not the ones collected so far.
        """
        given = ((name, v.detach().cpu() if isinstance(v, Tensor) else v) for name, v in values.items())
        arrays = {name: np.asarray(v, dtype=np.float64) for name, v in given}
        if any(a.ndim not in (1, 2) or len(a) != len(ids) for a in arrays.values()):
            raise InputError(f"{len(ids)} images need as many of each value, not {[len(a) for a in arrays.values()]}")
        if len(set(ids)) < len(ids):
            raise InputError("an image id occurs more than once: give every map an id of its own")
        names = [[n] if a.ndim == 1 else [f"{n}/{j}" for j in range(a.shape[1])] for n, a in arrays.items()]
        rows = np.column_stack(list(arrays.values()))
        _take(self, tuple(name for some in names for name in some), dict(zip(ids, rows, strict=True)))

    def merge(self, other: Self) -> Self:
        """A tally of the images of both."""
        joined = type(self)(self.columns, dict(self.rows))
        _take(joined, other.columns, other.rows)
        return joined

    def __add__(self, other: Self) -> Self:
        return self.merge(other)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[str]:
        """Image ids in order of name, which is the order of ``column`` and ``table``."""
        return sorted(self.rows)

    def table(self) -> Array:
        """All values, shape (images, columns); the order in which images came in leaves no trace."""
        return np.stack([self.rows[i] for i in self.ids]) if self.rows else np.empty((0, len(self.columns)))

    def column(self, name: str) -> Array:
        """One value of every image, shape (images,), or a row of them, shape (images, M)."""
        table = self.table()
        if name in self.columns:
            return np.asarray(table[:, self.columns.index(name)])
        return np.asarray(table[:, [i for i, c in enumerate(self.columns) if c.rpartition("/")[0] == name]])

    def mean(self, name: str, groups: Mapping[str, Any] | None = None) -> float:
        """Mean over images of one value, undefined ones (NaN) left out.

        With a group for each image id, such as its class, the mean over groups of their means.
        """
        values = self.column(name)
        if groups is None:
            return _mean(values)
        kinds = np.array([str(groups[i]) for i in self.ids])
        return _mean(np.array([_mean(values[kinds == kind]) for kind in sorted(set(kinds))]))

    def summary(self) -> dict[str, Any]:
        """Number of images and the mean of each value; of ``flat``, the number."""
        means = {name: self.mean(name) for name in self.columns if name != "flat"}
        flat = {"flat": int(self.column("flat").sum())} if "flat" in self.columns else {}
        return {"images": len(self), **flat, **means}


class Interval(NamedTuple):
    """A score and where it lies with the given confidence."""

    value: float
    low: float
    high: float


class ComparedPair(NamedTuple):
    """One method in a comparison; differences are this method minus the best one, on the same images."""

    name: str
    mean: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float
    p: float
    p_holm: float


def first(means: Array) -> Array:
    """The mean of the only column: the score of values that are averaged over images."""
    return np.asarray(means[..., 0])


def mean_ratio(means: Array) -> Array:
    """Ratios of sums, then their mean: the first half of the columns over the second half.

    With intersections and unions of each class as columns this is the mean IoU of a data set. Ratios without a
    denominator are left out.

    Example:
        >>> mean_ratio(np.array([1.0, 3.0, 2.0, 4.0]))
        array(0.625)
    """
    half = means.shape[-1] // 2
    over = means[..., half:]
    ratios = np.divide(means[..., :half], over, out=np.zeros_like(over), where=over > 0)
    return np.asarray(ratios.sum(-1) / np.maximum((over > 0).sum(-1), 1))


def interval(
    values: ArrayLike, score: Score = first, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap over images.

    Args:
        values: One value for each image, shape (n,), or M of them, shape (n, M).
        score: What is made of the means of the columns; `mean_ratio` for ratios of sums.
        level: Confidence.
        resamples: How often n images are drawn anew, with replacement.
        seed: The same seed and the same n draw the same images.

    Example:
        >>> interval([0.0, 1.0] * 50)
        Interval(value=0.5, low=0.4..., high=0.6)
    """
    table = _table(values)
    drawn = score(_resampled(table, resamples, seed))
    return Interval(float(score(table.mean(0))), *_ends(drawn, level))


def difference(
    a: ArrayLike, b: ArrayLike, score: Score = first, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the score of a minus that of b, both on the same drawn images; see `interval`.

    Example:
        >>> difference([1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.5])
        Interval(value=0.5, low=0.5, high=0.5)
    """
    one, two = _pair(a, b)
    left, right = np.split(_resampled(np.concatenate([one, two], 1), resamples, seed), 2, 1)
    drawn = score(left) - score(right)
    return Interval(float(score(one.mean(0)) - score(two.mean(0))), *_ends(drawn, level))


def p_value(a: ArrayLike, b: ArrayLike, score: Score = first, *, resamples: int = 2000, seed: int = 0) -> float:
    """Two-sided p of a paired difference: how often swapping the two methods on random images does as much.

    Under the hypothesis that the methods are alike, which of the two an image's values belong to is chance. For a mean
    this is the sign-flip test. The observed labelling counts as one draw, so p is never below 1 / (resamples + 1).
    Values and score are as in `interval`, the images of a and b the same.

    Example:
        >>> p_value([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
        1.0
    """
    one, two = _pair(a, b)
    middle, half = (one + two).mean(0) / 2, (one - two) / 2
    observed = abs(float(score(one.mean(0)) - score(two.mean(0))))
    extreme = 0
    rng = np.random.default_rng(seed)
    for count in _pieces(resamples, len(one)):
        signs = rng.integers(0, 2, (count, len(one)), dtype=np.int8) * 2.0 - 1
        shift = signs @ half / len(one)
        # Other swaps may lead to the same difference but for rounding: those count as reaching it.
        extreme += int((np.abs(score(middle + shift) - score(middle - shift)) >= observed * (1 - 1e-9)).sum())
    return (extreme + 1) / (resamples + 1)


def holm(p: ArrayLike) -> Array:
    """Holm's step-down correction for testing several hypotheses.

    The k-th smallest of m p-values is multiplied by m − k + 1; none may end below a smaller one, nor above 1.

    Example:
        >>> holm([0.01, 0.04, 0.03, 0.005]).round(3).tolist()
        [0.03, 0.06, 0.06, 0.02]
    """
    given = np.asarray(p, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    out = np.empty_like(given)
    out[order] = np.minimum(stepped, 1.0)
    return out


def compare(
    values: Mapping[str, ArrayLike],
    score: Score = first,
    *,
    higher: bool = True,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[ComparedPair]:
    """Methods side by side, each with its interval and its paired difference to the best.

    Images for which any method has no value (NaN) are left out for all, so that every number is about the same images.

    Args:
        values: For each method its values, shape (n,) or (n, M), the images in the same order.
        score: See `interval`.
        higher: Whether more is better.
        level: Confidence of the intervals, which are not corrected for their number.
        resamples: Draws for intervals and for p-values.
        seed: For both.

    Returns:
        A row for each method, best first. The best has no p-value (NaN); the others' are corrected after Holm.

    Example:
        >>> rows = compare({"a": [1.0, 2.0, 3.0, 4.0] * 9, "b": [0.5, 1.0, 2.5, 3.5] * 9})
        >>> [(r.name, r.mean, round(r.difference, 3), r.p < 0.01) for r in rows]
        [('a', 2.5, 0.0, False), ('b', 1.875, -0.625, True)]
    """
    tables = {name: _table(v, finite=False) for name, v in values.items()}
    if len({t.shape for t in tables.values()}) != 1:
        raise InputError("methods can only be compared on the same images: values differ in number")
    whole = np.isfinite(np.stack(list(tables.values()))).all((0, 2))
    tables = {name: _table(t[whole]) for name, t in tables.items()}
    scores = {name: float(score(t.mean(0))) for name, t in tables.items()}
    ranked = sorted(scores, key=lambda name: -scores[name] if higher else scores[name])
    best = ranked[0]
    every = _resampled(np.concatenate(list(tables.values()), 1), resamples, seed)  # the same images for all
    drawn = {name: score(part) for name, part in zip(tables, np.split(every, len(tables), 1), strict=True)}
    p = [p_value(tables[n], tables[best], score, resamples=resamples, seed=seed) for n in ranked[1:]]
    corrected = dict(zip(ranked, zip([np.nan, *p], [np.nan, *holm(p)], strict=True), strict=True))
    return [
        ComparedPair(
            n,
            scores[n],
            *_ends(drawn[n], level),
            scores[n] - scores[best],
            *_ends(drawn[n] - drawn[best], level),
            *map(float, corrected[n]),
        )
        for n in ranked
    ]


def _take(tally: Tally, columns: tuple[str, ...], rows: Mapping[str, Array]) -> None:
    twice = sorted(tally.rows.keys() & rows.keys())
    if twice:
        raise InputError(f"counted twice: {', '.join(map(repr, twice[:3]))}")
    if tally.columns and columns and columns != tally.columns:
        raise InputError("values of another kind, or of other settings, do not belong into this tally")
    tally.columns = tally.columns or columns
    tally.rows.update(rows)


def _table(values: ArrayLike, finite: bool = True) -> Array:
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not len(table):
        raise InputError(f"values of shape {table.shape} are not one row for each image")
    if finite and not np.isfinite(table).all():
        raise InputError("values hold NaN: leave images without a value out, for all methods alike")
    return table


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    one, two = _table(a), _table(b)
    if one.shape != two.shape:
        raise InputError(f"a paired test needs the same images twice, not {len(one)} and {len(two)}")
    return one, two


def _pieces(resamples: int, images: int) -> Iterator[int]:
    """How many resamples to draw at a time, to bound memory."""
    most = max(1, CHUNK // images)
    return (min(most, resamples - done) for done in range(0, resamples, most))


def _resampled(table: Array, resamples: int, seed: int) -> Array:
    """Means of the columns over images drawn with replacement, shape (resamples, M)."""
    n, rng, means = len(table), np.random.default_rng(seed), []
    for count in _pieces(resamples, n):
        drawn = rng.integers(0, n, (count, n)) + np.arange(count)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)
        means.append(times @ table / n)
    return np.concatenate(means)


def _ends(drawn: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
