"""Sections of a report: the scores of one model, data set, protocol and target, with methods as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vitrail.bench.report.metric import TARGET_NAMES, MetricInfo, protocol_metrics
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.values import chosen_threshold, method_scores, metric_values
from vitrail.scores.comparison import ALPHA, MethodValues, RankedMethod, rank_methods
from vitrail.scores.presets import find_presets
from vitrail.scores.registry import find_score
from vitrail.scores.segmentation import MultiClassSegmentationScores, SegmentationScores
from vitrail.scores.statistics import Array

#: Mark of a method that is not significantly different from the best.
TIED = "="
#: Mark of a method that is not significantly better than the strongest control.
WEAK = "○"
#: How to read the tables.
LEGEND = tuple(
    f"""
Best in bold, second best underlined; equal values share a rank. Controls are listed below the methods and not ranked.
`{TIED}` not significantly different from the best; `{WEAK}` not significantly better than the strongest control.
Brackets: 95 % intervals, percentile bootstrap over images, 2,000 resamples. For "best of 10" the threshold is chosen \
once on all images; the interval does not include the uncertainty of this choice.
Tests: paired over the images that two methods share (random swaps of the two methods, 2,000 draws), corrected by Holm \
for the number of methods in the column; significant below {ALPHA}.
""".strip().splitlines()
)
#: Descriptions of the protocols that are not perturbation presets.
DESCRIPTIONS = {
    "segmentation": "Maps, binarised by a threshold, against the object's mask.",
    "pointing": "Position of the map's maximum, and share of relevance on the object.",
    "box_pointing": "Pointing game with one test for each pair of map and box.",
    "wsol": "Weakly supervised object localisation: box of the largest connected component of the thresholded map.",
    "selectivity": "Images with two objects of different classes: does the map of a class highlight its object? "
    "A class-agnostic method is correct half the time.",
    "discrimination": "Two objects, movements or tones in one input: does the map of one highlight it and not the "
    "other? A method that ignores the target is correct half the time.",
    "top_word": "A prompt in which one word names the object: does this word have the highest score?",
    "right_object": "A question about one of several objects: does the object that decides the answer get the most "
    "relevance?",
    "marked_removal": "The tenth of the input's cells that the map marks most is replaced by the mean of the input, or "
    "the leading word of a prompt is left out, and compared with random removals of as much.",
    "event": "Videos in which a movement starts after some frames: do the frames before it get less relevance?",
    "source": "Texts whose next word comes from known words: do these have the highest score?",
    "continuation": "Log-probability of the right next word when the words with the highest scores are removed or kept "
    "alone, mean over 5, 10, 20 and 50 % of the words.",
    "grid_pointing": "Grids of images of different classes: share of the relevance for a class in its own cell. A "
    "class-agnostic method has 1/n² on average.",
    "difull": "Grids whose cells cannot influence each other, and the output reads one cell: relevance in any other "
    "cell is wrong.",
    "dipart": "Grids whose cells cannot influence each other, and the output reads all of them: share of the relevance "
    "for a class in its own cell.",
    "road": "Class probability after pixels are replaced by noisy linear imputation, which hides the removed shape.",
    "saco": "Whether groups of pixels with more relevance have more effect when removed; uses the map's values.",
    "monotonicity": "Pixels are added to an empty image, least relevant first, in 20 steps.",
    "infidelity": "The map as a linear prediction of how the class probability changes when a patch is removed.",
    "complexity": "Number of patches that carry the relevance. A property of maps alone: neither direction is better.",
    "sensitivity": "Change of the map under small changes of the image.",
    "sanity": "Similarity of a map to the original while the weights are randomised from the head down, cumulatively. "
    "A map that does not change does not depend on those weights. Neither direction is better by itself.",
    "rationale": "Words with the highest scores against the words that annotators marked.",
    "eraser": "Probability of the explained class when the words with the highest scores are removed or kept alone.",
    "multiclass": "Maps of all classes of an image, combined into one label map, against the mask.",
    "multiclass_original": "The same at the resolution of the files, to which the maps are resized.",
}


@dataclass(frozen=True, eq=False)
class MetricColumn:
    """One score of all methods.

    Attributes:
        metric: The score.
        values: By method, the values of each image.
        ranking: By method, best first, controls last.
    """

    metric: MetricInfo
    values: dict[str, MethodValues] = field(repr=False)
    ranking: dict[str, RankedMethod] = field(repr=False)

    @property
    def strongest_control(self) -> RankedMethod | None:
        """The control with the best score."""
        return next((ranked for ranked in self.ranking.values() if ranked.control), None)


@dataclass(frozen=True, eq=False)
class ReportSection:
    """The scores of one model, data set, protocol and target.

    Attributes:
        model: Title of the model.
        dataset: Title of the data set.
        protocol: Name of a preset or protocol.
        target: Explained class.
        columns: The scores that the run has.
        thresholds: By method, the threshold of the scores "best of 10"; for segmentation only.
    """

    model: str
    dataset: str
    protocol: str
    target: str
    columns: tuple[MetricColumn, ...]
    thresholds: dict[str, float] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """All methods, best by the first score first, then the controls."""
        names = dict.fromkeys(name for column in self.columns for name in column.ranking)
        return sorted(names, key=lambda name: name in self.controls)

    @property
    def controls(self) -> dict[str, None]:
        """Controls, in the order of ``methods``."""
        ranked = [one for column in self.columns for one in column.ranking.values()]
        return dict.fromkeys(one.method for one in ranked if one.control)

    @property
    def images(self) -> int:
        """Largest number of images that a method has values for."""
        return max(ranked.images for column in self.columns for ranked in column.ranking.values())

    @property
    def title(self) -> str:
        """Protocol and explained class."""
        return f"{self.protocol}, {TARGET_NAMES.get(self.target, self.target)}"

    @property
    def description(self) -> str:
        """What the protocol does."""
        if self.protocol in DESCRIPTIONS:
            return DESCRIPTIONS[self.protocol]
        registered = find_score(self.protocol)
        if registered is not None:
            return f"A score of {registered.compute.__module__}: {registered.description or registered.title}."
        preset = find_presets(self.protocol)[0]
        levels = "; ".join(dict.fromkeys(str(curve.grid) for curve in preset.curves))
        return f"Pixels are removed in order of relevance. After {preset.source}; levels {levels}."

    def column(self, score: str) -> MetricColumn | None:
        """Column of a score, if the run has it."""
        return next((column for column in self.columns if column.metric.score == score), None)


def report_sections(run: Run) -> Iterator[ReportSection]:
    """Compute all sections of a run in the plan's order; sections without values are left out."""
    import polars as pl

    from vitrail.bench.protocols import protocol_targets

    plan = run.plan
    rows = run.scores().select("model", "dataset", "image", "method", "target", "protocol", "score", "value", "error")
    for network in plan.models:
        for data in plan.dataset:
            for protocol, target in protocol_targets(plan.protocols_of(data), plan.targets):
                keys = {"model": network.title, "dataset": data.title, "protocol": protocol, "target": target}
                selected = rows.filter(*(pl.col(name) == value for name, value in keys.items())).collect()
                section = _section(selected, keys, run)
                if section.columns:
                    yield section


def _section(rows: object, keys: dict[str, str], run: Run) -> ReportSection:
    scores = method_scores(rows, keys["protocol"])  # type: ignore[arg-type]
    names = next(iter(scores.values())).columns if scores else ()
    columns = []
    for metric in protocol_metrics(keys["protocol"], keys["target"], names):
        values = {spec: metric_values(scores[spec], metric) for spec in run.plan.specs() if spec in scores}
        known = {spec: method_values for spec, method_values in values.items() if method_values is not None}
        if known:
            columns.append(MetricColumn(metric, known, rank_methods(known, metric.direction, run.controls)))
    thresholds = {
        spec: chosen_threshold(method_values)
        for spec, method_values in scores.items()
        if isinstance(method_values, SegmentationScores | MultiClassSegmentationScores) and len(method_values)
    }
    return ReportSection(**keys, columns=tuple(columns), thresholds=thresholds)


def significance_marks(ranked: RankedMethod, direction: str) -> str:
    """Marks after a number; `LEGEND` explains them."""
    tied = TIED if ranked.rank != 1 and ranked.tied_with_best else ""
    return tied + (WEAK if ranked.better_than_control(direction) is False else "")


def image_scores(column: MetricColumn, methods: list[str]) -> tuple[list[str], Array]:
    """Scores of the single images that all given methods have: ids, and values of shape (methods, images)."""
    scores = [column.values[name].per_sample() for name in methods]
    ids = sorted(set.intersection(*(set(by_image) for by_image in scores))) if scores else []
    return ids, np.array([[by_image[name] for name in ids] for by_image in scores]).reshape(len(scores), len(ids))
