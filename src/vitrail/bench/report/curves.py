"""Mean curves: model output against the share of pixels removed, and token-F1 against the number of top words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from vitrail.bench.report.metric import MetricInfo, metric_info
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import ReportSection
from vitrail.scores.fills import TOKENS
from vitrail.scores.presets import QUANTITIES, Curve, Preset, find_presets
from vitrail.scores.rationale import TOP_WORDS
from vitrail.scores.statistics import Array


@dataclass(frozen=True, eq=False)
class MeanCurves:
    """One curve of a preset, for all methods.

    Attributes:
        model: Title of the model.
        dataset: Title of the data set.
        metric: The score that is the area under this curve.
        x: Share of pixels removed or inserted at each level.
        y: By method the mean over images at each level.
        patches: Whether patches are removed instead of pixels.
    """

    model: str
    dataset: str
    metric: MetricInfo
    x: tuple[float, ...]
    y: dict[str, tuple[float, ...]] = field(repr=False)
    patches: bool = False

    @property
    def x_label(self) -> str:
        """Label of the horizontal axis."""
        unit = "patches" if self.patches else "pixels"
        most_relevant_first = self.metric.name in ("insertion", "positive", "deletion")
        order = "most relevant first" if most_relevant_first else "least relevant first"
        return f"share of {unit} {'inserted' if self.metric.name == 'insertion' else 'removed'}, {order}"

    @property
    def y_label(self) -> str:
        """Label of the vertical axis."""
        return QUANTITIES[find_presets(self.metric.protocol)[0].quantity]


@dataclass(frozen=True, eq=False)
class WordCurves:
    """Token-F1 against the number of top words, for all methods, as in Figure 6 of GradToken.

    Attributes:
        model: Title of the model.
        dataset: Title of the data set.
        metric: The mean of the curve.
        x: Numbers of top words.
        y: By method the mean over texts at each number.
    """

    model: str
    dataset: str
    metric: MetricInfo
    x: tuple[float, ...]
    y: dict[str, tuple[float, ...]] = field(repr=False)
    x_label = "k, number of top words"
    y_label = "token-F1, mean over texts"


def word_curves(sections: Iterable[ReportSection]) -> Iterator[WordCurves]:
    """Return the token-F1 curve of each section that has one."""
    for section in sections:
        columns = {k: section.column(f"f1@{k}") for k in TOP_WORDS} if section.protocol == "rationale" else {}
        known = {k: column for k, column in columns.items() if column is not None}
        if known:
            methods = next(iter(known.values())).ranking
            means = {name: tuple(column.ranking[name].value.value for column in known.values()) for name in methods}
            metric = metric_info(section.protocol, section.target, "f1")
            yield WordCurves(section.model, section.dataset, metric, tuple(map(float, known)), means)


def mean_curves(run: Run) -> Iterator[MeanCurves]:
    """Compute every curve of every preset of a run."""
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
                            means = {
                                str(method): _mean(method_rows, preset, target)
                                for (method,), method_rows in rows.group_by("method", maintain_order=True)
                            }
                            y = {spec: means[spec] for spec in run.plan.specs() if means.get(spec)}
                            x = _levels(curve, rows["removed"][0].to_list())
                            metric = metric_info(preset.name, target, curve.score_name)
                            yield MeanCurves(network.title, data.title, metric, x, y, curve.fill == TOKENS)


def curve_values(quantity: str, target: str, predicted: Array, label: Array, first: Array) -> Array:
    """Compute a quantity at every level of every image from log-probabilities, all of shape (images, levels).

    A class is predicted where its log-probability equals the largest. NaN where there is no label.

    Args:
        quantity: A key of ``QUANTITIES``.
        target: Explained class.
        predicted: Log-probability of the class predicted on the unperturbed image.
        label: Log-probability of the label.
        first: Largest log-probability.

    Example:
        >>> log = np.log
        >>> curve_values("accuracy", "predicted", log([[0.9, 0.2]]), log([[0.9, 0.2]]), log([[0.9, 0.7]])).tolist()
        [[1.0, 0.0]]
    """
    if quantity == "accuracy":
        return np.where(np.isnan(label), np.nan, (label >= first).astype(np.float64))
    if quantity == "agreement":
        return np.asarray(predicted >= first, dtype=np.float64)
    of_label = quantity == "label" or (quantity == "explained" and target == "label")
    return np.asarray(np.exp(label if of_label else predicted), dtype=np.float64)


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
    """Mean over images, without those that lack a needed label; empty if none is left."""
    columns = ("logp_predicted", "logp_label", "logp_first")
    logs = [np.array(rows[name].to_list(), dtype=np.float64) for name in columns]  # type: ignore[index]
    values = curve_values(preset.quantity, target, *logs)
    known = np.isfinite(values).all(1)
    return tuple(values[known].mean(0).tolist()) if known.any() else ()
