"""Scores by sample id, and statistics on them: bootstrap intervals, paired differences, p-values, Holm's correction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitrail.errors import InputError

Array = NDArray[np.float64]
#: From means over images of M columns, shape (…, M), to a score, shape (…).
ScoreFunction = Callable[[Array], Array]
#: From a generator, a number of resamples and a number of images to a random table of that shape.
Draw = Callable[[np.random.Generator, int, int], Array]
#: Most random draws held in memory at a time.
MAX_DRAWS = 1 << 22


@dataclass
class SampleScores:
    """Scores of samples (images or texts) by name and sample id; the accumulator of every protocol.

    Accumulators of several workers are joined with ``+``, in any order and with the same result.

    Attributes:
        columns: Names of the scores; empty until the first samples are added.
        rows: For each sample id its values, in the order of the columns.

    Example:
        >>> a, b = SampleScores(), SampleScores()
        >>> a.add(["cat", "dog"], {"hit": [1.0, 0.0]})
        >>> b.add(["owl"], {"hit": [1.0]})
        >>> (b + a).summary() == (a + b).summary() == {"images": 3, "hit": 2 / 3}
        True
    """

    columns: tuple[str, ...] = ()
    rows: dict[str, Array] = field(default_factory=dict)

    def add(self, ids: Sequence[str], values: Mapping[str, Tensor | ArrayLike]) -> None:
        """Add the scores of samples: by name, one value per sample, or a row of them, shape (samples, M).

        Raises:
            InputError: If a sample is added twice, or the names differ from those added before.
        """
        given = ((name, v.detach().cpu() if isinstance(v, Tensor) else v) for name, v in values.items())
        arrays = {name: np.asarray(v, dtype=np.float64) for name, v in given}
        if any(a.ndim not in (1, 2) or len(a) != len(ids) for a in arrays.values()):
            lengths = [len(a) for a in arrays.values()]
            raise InputError(f"expected one value of each score per id, got {lengths} values for {len(ids)} ids")
        if len(set(ids)) < len(ids):
            raise InputError("an id occurs more than once: give every map a unique id")
        names = [[n] if a.ndim == 1 else [f"{n}/{j}" for j in range(a.shape[1])] for n, a in arrays.items()]
        rows = np.column_stack(list(arrays.values()))
        _add_rows(self, tuple(name for some in names for name in some), dict(zip(ids, rows, strict=True)))

    def merge(self, other: Self) -> Self:
        """Join with the samples of another accumulator; neither is changed."""
        joined = type(self)(self.columns, dict(self.rows))
        _add_rows(joined, other.columns, other.rows)
        return joined

    def __add__(self, other: Self) -> Self:
        return self.merge(other)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[str]:
        """Sample ids, sorted; the order of ``column`` and ``table``."""
        return sorted(self.rows)

    def table(self) -> Array:
        """All values, shape (samples, columns), whatever the order in which samples were added."""
        return np.stack([self.rows[i] for i in self.ids]) if self.rows else np.empty((0, len(self.columns)))

    def column(self, name: str) -> Array:
        """One score of every sample, shape (samples,), or a row of them, shape (samples, M)."""
        table = self.table()
        if name in self.columns:
            return np.asarray(table[:, self.columns.index(name)])
        return np.asarray(table[:, [i for i, c in enumerate(self.columns) if c.rpartition("/")[0] == name]])

    def mean(self, name: str, groups: Mapping[str, Any] | None = None) -> float:
        """Mean of a score over samples, without undefined values (NaN).

        With a group for each sample id, such as its class, the mean over groups of the group means.
        """
        values = self.column(name)
        if groups is None:
            return _mean(values)
        kinds = np.array([str(groups[i]) for i in self.ids])
        return _mean(np.array([_mean(values[kinds == kind]) for kind in sorted(set(kinds))]))

    def summary(self) -> dict[str, Any]:
        """Number of samples and the mean of each score; of ``flat``, the sum."""
        means = {name: self.mean(name) for name in self.columns if name != "flat"}
        flat = {"flat": int(self.column("flat").sum())} if "flat" in self.columns else {}
        return {"images": len(self), **flat, **means}


class Interval(NamedTuple):
    """A score with its confidence interval."""

    value: float
    low: float
    high: float


def single_mean(means: Array) -> Array:
    """Score of a single column: its mean."""
    return np.asarray(means[..., 0])


def mean_ratio(means: Array) -> Array:
    """Mean of ratios of sums: the first half of the columns divided by the second half.

    With the intersections and unions of each class as columns this is the mIoU of a data set. Ratios with a zero
    denominator are excluded.

    Example:
        >>> mean_ratio(np.array([1.0, 3.0, 2.0, 4.0]))
        array(0.625)
    """
    half = means.shape[-1] // 2
    over = means[..., half:]
    ratios = np.divide(means[..., :half], over, out=np.zeros_like(over), where=over > 0)
    return np.asarray(ratios.sum(-1) / np.maximum((over > 0).sum(-1), 1))


def interval(
    values: ArrayLike, score: ScoreFunction = single_mean, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval over images.

    Args:
        values: One value per image, shape (n,), or M of them, shape (n, M).
        score: From the means of the columns to the score; `mean_ratio` for ratios of sums.
        level: Confidence level.
        resamples: Number of bootstrap samples of n images, drawn with replacement.
        seed: Seed of the draws; the same seed and the same n draw the same images.

    Example:
        >>> interval([0.0, 1.0] * 50)
        Interval(value=0.5, low=0.4..., high=0.6)
    """
    table = as_table(values)
    drawn = score(_resampled(table, resamples, seed))
    return Interval(float(score(table.mean(0))), *_percentiles(drawn, level))


def difference(
    a: ArrayLike,
    b: ArrayLike,
    score: ScoreFunction = single_mean,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a paired difference: score of a minus score of b; see `interval`.

    Example:
        >>> difference([1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.5])
        Interval(value=0.5, low=0.5, high=0.5)
    """
    one, two = _pair(a, b)
    left, right = np.split(_resampled(np.concatenate([one, two], 1), resamples, seed), 2, 1)
    drawn = score(left) - score(right)
    return Interval(float(score(one.mean(0)) - score(two.mean(0))), *_percentiles(drawn, level))


def p_value(
    a: ArrayLike, b: ArrayLike, score: ScoreFunction = single_mean, *, resamples: int = 2000, seed: int = 0
) -> float:
    """Two-sided p-value of a paired permutation test, which swaps the two methods on random images.

    For a mean this is the sign-flip test. The observed assignment counts as one draw, so p is at least
    1 / (resamples + 1). Values and score are as in `interval`; a and b are of the same images.

    Example:
        >>> p_value([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
        1.0
    """
    one, two = _pair(a, b)
    centre, half = (one + two).mean(0) / 2, (one - two) / 2
    observed = abs(float(score(one.mean(0)) - score(two.mean(0))))
    extreme = 0
    for signs in _draws(_signs, resamples, len(one), seed):
        shift = signs @ half / len(one)
        # Swaps that give the same difference up to rounding count as reaching it.
        extreme += int((np.abs(score(centre + shift) - score(centre - shift)) >= observed * (1 - 1e-9)).sum())
    return (extreme + 1) / (resamples + 1)


def holm(p: ArrayLike) -> Array:
    """Holm's step-down correction of p-values for multiple tests.

    The k-th smallest of m p-values is multiplied by m − k + 1; the results are made monotonic and are at most 1.

    Example:
        >>> holm([0.01, 0.04, 0.03, 0.005]).round(3).tolist()
        [0.03, 0.06, 0.06, 0.02]
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def _add_rows(scores: SampleScores, columns: tuple[str, ...], rows: Mapping[str, Array]) -> None:
    twice = sorted(scores.rows.keys() & rows.keys())
    if twice:
        raise InputError(f"samples added twice: {', '.join(map(repr, twice[:3]))}")
    if scores.columns and columns and columns != scores.columns:
        differing = sorted(set(columns) ^ set(scores.columns)) or ["their order"]
        raise InputError(
            f"scores differ from those added before in {', '.join(differing[:3])}: "
            "use one accumulator for each protocol and setting"
        )
    scores.columns = scores.columns or columns
    scores.rows.update(rows)


def as_table(values: ArrayLike, finite: bool = True) -> Array:
    """Convert values to a table with one row per image; with ``finite``, raise an error for NaN."""
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not len(table):
        raise InputError(f"values must have shape (images,) or (images, M) with at least one image, got {table.shape}")
    if finite and not np.isfinite(table).all():
        raise InputError("values contain NaN: exclude images without a value, for all methods")
    return table


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    one, two = as_table(a), as_table(b)
    if one.shape != two.shape:
        raise InputError(f"a paired test needs values of the same images, got {len(one)} and {len(two)}")
    return one, two


def _draws(draw: Draw, resamples: int, images: int, seed: int) -> Iterator[Array]:
    """Random tables of shape (some resamples, images), in parts to bound memory; those of one part are kept.

    Many tests of a comparison have the same number of images and the same seed, and so the same draws.
    """
    if resamples * images <= MAX_DRAWS:
        yield _kept_draws(draw, resamples, images, seed)
        return
    rng, most = np.random.default_rng(seed), max(1, MAX_DRAWS // images)
    for done in range(0, resamples, most):
        yield draw(rng, min(most, resamples - done), images)


@lru_cache(maxsize=4)
def _kept_draws(draw: Draw, resamples: int, images: int, seed: int) -> Array:
    return draw(np.random.default_rng(seed), resamples, images)


def _signs(rng: np.random.Generator, count: int, images: int) -> Array:
    """Signs of a permutation test."""
    return rng.integers(0, 2, (count, images), dtype=np.int8).astype(np.float64) * 2 - 1


def _times(rng: np.random.Generator, count: int, images: int) -> Array:
    """How often each image is in each bootstrap sample."""
    drawn = rng.integers(0, images, (count, images)) + np.arange(count)[:, None] * images
    return np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images).astype(np.float64)


def _resampled(table: Array, resamples: int, seed: int) -> Array:
    """Column means of bootstrap samples, shape (resamples, M)."""
    drawn = _draws(_times, resamples, len(table), seed)
    return np.concatenate([times @ table / len(table) for times in drawn])


def _percentiles(drawn: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
