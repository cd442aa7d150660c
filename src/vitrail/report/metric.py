"""Scores as a report prints them: which way is better, in what units, and what must stand beside every number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vitrail.errors import OptionError
from vitrail.scores.curves import find_area
from vitrail.scores.presets import EXTRAS, QUANTITIES, Preset, find_presets

MEAN = "threshold: the map's mean"
BEST = "threshold: the best of ten for mIoU, chosen on these pictures"
FOLD = "threshold: the best of ten for mIoU on the other half of the pictures"
NONE = "no threshold"
#: By protocol, for each score: a short name, the way to better, what it is, and how a map becomes it.
PLAIN: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "segmentation": {
        "pixel_accuracy": ("Pixel acc.", "up", "pixels labelled rightly", MEAN),
        "miou": ("mIoU", "up", "mean IoU of object and ground over the whole set", MEAN),
        "map": ("mAP", "up", "average precision of both classes at once", NONE),
        "best_pixel_accuracy": ("Pixel acc., best of 10", "up", "pixels labelled rightly", BEST),
        "best_miou": ("mIoU, best of 10", "up", "mean IoU of object and ground over the whole set", BEST),
        "two_fold_miou": ("mIoU, two-fold", "up", "mean IoU of object and ground over the whole set", FOLD),
        "ap_foreground": ("AP of the object", "up", "average precision of the object alone, ranks only", NONE),
        "auroc": ("AUROC", "up", "chance that a pixel of the object ranks above one outside", NONE),
    },
    "pointing": {
        "hit@0": ("Hit", "up", "highest point on the object", "tolerance 0 px"),
        "hit@15": ("Hit, 15 px", "up", "highest point on the object or nearer than 15 px", "tolerance 15 px"),
        "energy": ("Energy", "up", "share of the positive relevance on the object", NONE),
        "rank": ("Rank acc.", "up", "share of the object among as many highest pixels", NONE),
        "auroc": ("AUROC", "up", "chance that a pixel inside ranks above one outside", NONE),
    },
    "selectivity": {
        "share": ("Right thing", "up", "the thing asked for gets more relevance a pixel than the other", NONE),
        "both": ("Both right", "up", "both of a picture's two questions answered rightly", NONE),
        "mass": ("Mass", "up", "share of the positive relevance on the thing asked for", NONE),
        "mass_between": ("Mass between", "up", "the same, of the relevance on the two things", NONE),
    },
    "complexity": {
        "gini": ("Gini", "none", "sparseness of the grid of patches", NONE),
        "entropy": ("Entropy", "none", "entropy of the grid of patches, natural log", NONE),
        "used": ("Used", "none", "share of the patches that carry relevance", NONE),
    },
    "sensitivity": {
        "max_over_map": ("Max. change", "down", "largest change of the map under small noise, over its size", NONE),
        "mean_over_map": ("Mean change", "down", "mean change of the map under small noise, over its size", NONE),
        "ratio": ("Ratio", "down", "relative change of the map over that of the picture", NONE),
    },
    "multiclass": {
        "best_pixel_accuracy": ("Pixel acc., best of 10", "up", "pixels given the right one of all classes", BEST),
        "best_miou": ("mIoU, best of 10", "up", "mean IoU of all classes over the whole set", BEST),
    },
}
#: Protocols whose scores are shares, printed in percent.
SHARES = ("segmentation", "pointing", "selectivity", "multiclass")
#: The protocol whose scores are named after a model's stages, and which of its likenesses is printed.
SANITY, ALIKE = "sanity", "spearman"
#: Targets in words.
WHOSE = {"predicted": "maps of the predicted class", "label": "maps of the label", "things": "two maps a picture"}


@dataclass(frozen=True)
class MetricInfo:
    """A score of a protocol.

    Attributes:
        protocol: A preset's or protocol's name.
        target: Whose class is explained.
        score: As tables and tallies name it.
        direction: "up", "down", or "none" where neither is better.
        short: For the head of a column, units included.
        quantity: What is read off.
        fill: What stands in removed places, "" where nothing is removed.
        rule: How a curve or map becomes a number: the area rule, or the threshold.
        factor: What values are multiplied by for print.
        digits: After the point.
    """

    protocol: str
    target: str
    score: str
    direction: str
    short: str
    quantity: str
    fill: str
    rule: str
    factor: float = 1.0
    digits: int = 3

    @property
    def label(self) -> str:
        """What must stand beside every number of this score.

        Example:
            >>> measure("chefer21", "predicted", "positive(black)").label
            'chefer21 positive, fill black, top-1 accuracy against the label, trapezoid over the levels,
            ×100; maps of the predicted class'
        """
        fill = f", fill {self.fill}" if self.fill else ""
        rule = f", {self.rule}" if self.rule != NONE else ""
        return f"{self.protocol} {self.name}{fill}, {self.quantity}{rule}; {WHOSE.get(self.target, self.target)}"

    @property
    def name(self) -> str:
        """The score without its fill."""
        return self.score.partition("(")[0]

    @property
    def arrow(self) -> str:
        """The way to better."""
        return {"up": "↑", "down": "↓"}.get(self.direction, "")

    def text(self, value: float) -> str:
        """A value as it is printed, in this score's units.

        Example:
            >>> measure("segmentation", "predicted", "miou").text(0.6195)
            '61.95'
        """
        return f"{value * self.factor:.{self.digits}f}"


def measure(protocol: str, target: str, score: str) -> MetricInfo:
    """One score by name.

    Raises:
        OptionError: The protocol has no such score.
    """
    if protocol == SANITY:
        stage, _, kind = score.partition("|")
        what = f"{kind} of the map with itself once the weights down to {stage} are random"
        return MetricInfo(protocol, target, score, "none", f"{stage}, {kind}", what, "", NONE)
    if protocol in PLAIN:
        if score not in PLAIN[protocol]:
            raise OptionError(f"{protocol} has no score {score!r}: it has {', '.join(PLAIN[protocol])}")
        short, direction, quantity, rule = PLAIN[protocol][score]
        if protocol in SHARES:
            return MetricInfo(protocol, target, score, direction, f"{short}, %", quantity, "", rule, 100.0, 2)
        return MetricInfo(protocol, target, score, direction, short, quantity, "", rule)
    preset = find_presets(protocol)[0]
    if score not in preset.scores:
        raise OptionError(f"{protocol} has no score {score!r}: it has {', '.join(preset.scores)}")
    return _of_preset(preset, target, score)


def measures(protocol: str, target: str, columns: Iterable[str] = ()) -> list[MetricInfo]:
    """All scores a protocol or preset gives.

    Args:
        protocol: Its name.
        target: Whose class is explained.
        columns: What a run has of it, for scores that are named after a model's stages.
    """
    if protocol == SANITY:
        names: Iterable[str] = [name for name in columns if name.endswith(f"|{ALIKE}")]
    else:
        names = PLAIN[protocol] if protocol in PLAIN else find_presets(protocol)[0].scores
    return [measure(protocol, target, name) for name in names]


def _of_preset(preset: Preset, target: str, score: str) -> MetricInfo:
    name, fill = score.removesuffix(")").split("(")
    rule, quantity = find_area(preset.area), QUANTITIES[preset.quantity]
    direction, percent = preset.scores[score], rule.factor == 100
    canvas = f" ({fill})" if len(preset.fills) > 1 else ""
    if name in ("aopc", "lodds"):
        title, _, quantity = EXTRAS[name]
        return MetricInfo(preset.name, target, score, direction, title, quantity, fill, "plain mean over the levels")
    if name in EXTRAS:
        quantity = f"{quantity}, {EXTRAS[name][2]}"
    short = (EXTRAS[name][0] if name in EXTRAS else name.capitalize()) + canvas + (", %" if percent else "")
    return MetricInfo(
        preset.name, target, score, direction, short, quantity, fill, rule.title, 1.0, 2 if percent else 3
    )
