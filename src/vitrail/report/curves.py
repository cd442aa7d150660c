"""Mean curves of perturbation tests: what the model says as more and more is removed, or put back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vitrail.report.metric import MetricInfo, measure
from vitrail.report.run import Run
from vitrail.scores.fills import TOKENS
from vitrail.scores.presets import QUANTITIES, Curve, Preset, find_presets
from vitrail.scores.statistics import Array


@dataclass(frozen=True, eq=False)
class Curves:
    """One curve of a preset, for all methods.

    Attributes:
        model: Its title.
        dataset: Its title.
        measure: The score that is this curve's area.
        x: Share removed, or put back, at each level.
        y: By method the mean over images at each level.
    """

    model: str
    dataset: str
    measure: MetricInfo
    x: tuple[float, ...]
    y: dict[str, tuple[float, ...]] = field(repr=False)
    tokens: bool = False

    @property
    def across(self) -> str:
        """What the axis counts."""
        what = "patches" if self.tokens else "pixels"
        inserts = self.measure.name == "insertion"
        first = {"positive": "most relevant first", "deletion": "most relevant first"}
        order = "most relevant first" if inserts else first.get(self.measure.name, "least relevant first")
        return f"share of {what} {'put back' if inserts else 'removed'}, {order}"


def curves(run: Run) -> Iterator[Curves]:
    """Every curve of every preset of a run."""
    import polars as pl

    names = ("image", "method", "removed", "logp_predicted", "logp_label", "logp_first")
    for network in run.plan.models:
        for data in run.plan.dataset:
            for preset in _presets(run.plan.protocols_of(data)):
                for target in (t for t in preset.explains if t in run.plan.targets):
                    for curve in preset.curves:
                        rows = run.scores().filter(
                            pl.col("model") == network.title, pl.col("dataset") == data.title,
                            pl.col("target") == target, pl.col("protocol") == preset.name,
                            pl.col("score") == curve.score_name, pl.col("removed").is_not_null(),
                        ).select(names).collect()  # fmt: skip
                        if len(rows):
                            score = measure(preset.name, target, curve.score_name)
                            x = _levels(curve, rows["removed"][0].to_list())
                            means = {
                                str(method): _mean(own, preset, target)
                                for (method,), own in rows.group_by("method", maintain_order=True)
                            }
                            order = [spec for spec in run.plan.specs() if means.get(spec)]
                            y = {spec: means[spec] for spec in order}
                            yield Curves(network.title, data.title, score, x, y, curve.fill == TOKENS)


def read_curve(quantity: str, target: str, predicted: Array, label: Array, first: Array) -> Array:
    """A quantity at every level of every image, shape (images, levels), from log-probabilities of that shape.

    A class won where its log-probability is the largest. NaN where there is no label.

    Example:
        >>> log = np.log
        >>> read_curve("accuracy", "predicted", log([[0.9, 0.2]]), log([[0.9, 0.2]]), log([[0.9, 0.7]])).tolist()
        [[1.0, 0.0]]
    """
    if quantity == "accuracy":
        return np.where(np.isnan(label), np.nan, (label >= first).astype(np.float64))
    if quantity == "agreement":
        return np.asarray(predicted >= first, dtype=np.float64)
    by_label = quantity == "label" or (quantity == "explained" and target == "label")
    return np.asarray(np.exp(label if by_label else predicted), dtype=np.float64)


def _presets(names: tuple[str, ...]) -> tuple[Preset, ...]:
    from vitrail.bench.protocols import PROTOCOLS

    return find_presets([name for name in names if name not in PROTOCOLS])


def _levels(curve: Curve, removed: list[int]) -> tuple[float, ...]:
    if curve.grid.percents:
        return tuple(p / 100 for p in curve.grid.percents)
    units = max(removed) if curve.grid.ends else max(removed) + min(removed)
    shares = [k / units for k in removed]
    return tuple(1 - share if curve.name == "insertion" else share for share in shares)


def _mean(rows: object, preset: Preset, target: str) -> tuple[float, ...]:
    """Mean over images, those without a label left out where one is needed; empty where none is left."""
    wide = [np.array(rows[name].to_list(), dtype=np.float64) for name in ("logp_predicted", "logp_label", "logp_first")]  # type: ignore[index]
    values = read_curve(preset.quantity, target, *wide)
    known = np.isfinite(values).all(1)
    return tuple(values[known].mean(0).tolist()) if known.any() else ()


def quantity(preset: str) -> str:
    """What the curves of a preset show, in words."""
    return QUANTITIES[find_presets(preset)[0].quantity]
