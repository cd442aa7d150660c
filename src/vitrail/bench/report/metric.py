"""Metrics as a report prints them: name, direction, units, and the settings that a number depends on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vitrail.errors import OptionError
from vitrail.scores.curves import find_area
from vitrail.scores.presets import EXTRAS, QUANTITIES, Preset, find_presets
from vitrail.scores.rationale import TOP_WORDS
from vitrail.scores.registry import find_score

MEAN_THRESHOLD = "threshold: the map's mean"
BEST_THRESHOLD = "threshold: best of ten by mIoU on these images"
OWN_THRESHOLD = "threshold: best of ten by pixel accuracy on these images"
BOX_THRESHOLD = "threshold: best of twenty on these images"
TWO_FOLD_BOX_THRESHOLD = "threshold: best of twenty on the other half of the images"
TWO_FOLD_THRESHOLD = "threshold: best of ten by mIoU on the other half of the images"
NO_THRESHOLD = "no threshold"
#: By protocol and score: short name, direction of better values, description, and how a map becomes the number.
PROTOCOL_METRICS: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "segmentation": {
        "pixel_accuracy": ("Pixel acc.", "up", "share of pixels labelled correctly", MEAN_THRESHOLD),
        "miou": ("mIoU", "up", "mean IoU of object and background over all images", MEAN_THRESHOLD),
        "map": ("mAP", "up", "average precision of object and background jointly", NO_THRESHOLD),
        "best_pixel_accuracy": ("Pixel acc., best of 10", "up", "share of pixels labelled correctly", BEST_THRESHOLD),
        "best_miou": ("mIoU, best of 10", "up", "mean IoU of object and background over all images", BEST_THRESHOLD),
        "own_best_pixel_accuracy": ("Pixel acc., own best of 10", "up", "share of pixels labelled correctly",
                                    OWN_THRESHOLD),
        "two_fold_miou": ("mIoU, two-fold", "up", "mean IoU of object and background over all images",
                          TWO_FOLD_THRESHOLD),
        "ap_foreground": ("AP of the object", "up", "average precision of the object", NO_THRESHOLD),
        "auroc": ("AUROC", "up", "probability that an object pixel ranks above a background pixel", NO_THRESHOLD),
    },
    "pointing": {
        "hit@0": ("Pointing game", "up", "maximum of the map on the object", "tolerance 0 px"),
        "hit@15": ("Pointing game, 15 px", "up", "maximum of the map within 15 px of the object", "tolerance 15 px"),
        "energy": ("Energy PG", "up", "energy-based pointing game: share of positive relevance on the object",
                   NO_THRESHOLD),
        "rank": ("Rank acc.", "up", "relevance rank accuracy: share of the n highest pixels on the object of n pixels",
                 NO_THRESHOLD),
        "auroc": ("AUROC", "up", "probability that an object pixel ranks above a background pixel", NO_THRESHOLD),
    },
    "box_pointing": {
        "accuracy": ("Pointing game, per box", "up",
                     "share of pairs of map and box in which the maximum of the map is in the box", "tolerance 0 px"),
        "hit_share": ("Pointing game, mean over images", "up", "share of an image's boxes that contain the maximum",
                      "tolerance 0 px"),
    },
    "wsol": {
        "max_box_acc": ("MaxBoxAcc", "up", "share of images whose box has an IoU of at least 0.5", BOX_THRESHOLD),
        "two_fold_box_acc": ("Box acc., two-fold", "up", "share of images whose box has an IoU of at least 0.5",
                             TWO_FOLD_BOX_THRESHOLD),
        "max_box_acc_v2": ("MaxBoxAccV2", "up", "mean of MaxBoxAcc at IoU 0.3, 0.5 and 0.7", BOX_THRESHOLD),
        "top1_loc": ("Top-1 Loc", "up",
                     "share of images with a correct prediction and a box with an IoU of at least 0.5", BOX_THRESHOLD),
    },
    "selectivity": {
        "share": ("Discr. acc.", "up",
                  "class-discrimination accuracy: more relevance per pixel on the target object than on the other",
                  NO_THRESHOLD),
        "both": ("Both correct", "up", "class discrimination correct for both objects of an image", NO_THRESHOLD),
        "mass": ("Relevance mass", "up", "share of positive relevance on the target object", NO_THRESHOLD),
        "mass_between": ("Mass, two objects", "up",
                         "share of positive relevance on the target object, of that on both objects", NO_THRESHOLD),
    },
    "discrimination": {
        "share": ("Discr. acc.", "up",
                  "discrimination accuracy: more relevance per element on the target than on the other", NO_THRESHOLD),
        "both": ("Both correct", "up", "discrimination correct for both targets of an example", NO_THRESHOLD),
        "mass": ("Relevance mass", "up", "share of positive relevance on the target", NO_THRESHOLD),
        "mass_between": ("Mass, of both", "up", "share of positive relevance on the target, of that on both",
                         NO_THRESHOLD),
        "hit": ("Pointing game", "up", "maximum of the map on the target", "tolerance 0 px"),
    },
    "top_word": {
        "top": ("Top word", "up", "the word with the highest score names the object", NO_THRESHOLD),
        "word_mass": ("Word mass", "up", "share of positive relevance on that word", NO_THRESHOLD),
    },
    "source": {
        "source": ("Source found", "up", "the word with the highest score is a source of the answer", NO_THRESHOLD),
        "sentence": ("Sentence found", "up", "the sentence with the highest sum holds a source", NO_THRESHOLD),
        "source_mass": ("Source mass", "up", "share of positive relevance on the sources", NO_THRESHOLD),
    },
    "continuation": {
        "comprehensiveness": ("Comprehensiveness", "up",
                              "decrease of the answer's log-probability without the most relevant words", NO_THRESHOLD),
        "sufficiency": ("Sufficiency", "down",
                        "decrease of the answer's log-probability with the most relevant words alone", NO_THRESHOLD),
    },
    "marked_removal": {
        "better": ("Better than random", "up",
                   "share of random removals that leave a higher value than removal of what the map marks",
                   NO_THRESHOLD),
        "drop": ("Lower than random", "up", "value after random removals minus that after removal of what is marked",
                 NO_THRESHOLD),
    },
    "event": {
        "less_before": ("Less before", "up", "less relevance in a frame before the movement than in one of it",
                        NO_THRESHOLD),
        "event_share": ("Event share", "up", "share of positive relevance in the frames of the movement", NO_THRESHOLD),
    },
    "right_object": {
        "first": ("Object first", "up", "the object with the most positive relevance decides the answer", NO_THRESHOLD),
        "maximum": ("Maximum", "up", "maximum of the map on an object that decides the answer", "tolerance 0 px"),
        "chance": ("Chance", "none", "share of the objects that decide the answer", NO_THRESHOLD),
    },
    "grid_pointing": {
        "cell_share": ("Grid share", "up", "share of positive relevance in the cell of the class", NO_THRESHOLD),
        "cell_peak": ("Grid maximum", "up", "maximum of the map in the cell of the class", NO_THRESHOLD),
        "corners": ("Corners", "none", "share of positive relevance in the four corners", NO_THRESHOLD),
    },
    "difull": {
        "difull": ("DiFull", "up", "share of positive relevance in the only cell that the output depends on",
                   NO_THRESHOLD),
    },
    "dipart": {
        "dipart": ("DiPart", "up", "share of positive relevance in the cell of the class, cells without influence",
                   NO_THRESHOLD),
    },
    "road": {
        "road": ("ROAD", "up", "(LeRF − MoRF) / 2 of the class probability, mean of 20, 40, 60 and 80 % imputed",
                 NO_THRESHOLD),
        "road_morf": ("ROAD, MoRF", "down", "class probability with the most relevant pixels imputed", NO_THRESHOLD),
        "road_lerf": ("ROAD, LeRF", "up", "class probability with the least relevant pixels imputed", NO_THRESHOLD),
    },
    "saco": {
        "saco": ("SaCo", "up", "agreement of relevance and effect of ten groups of pixels, from −1 to 1", NO_THRESHOLD),
    },
    "monotonicity": {
        "rising": ("Rising steps", "up", "share of steps that add pixels without a fall of the class probability",
                   NO_THRESHOLD),
        "monotone": ("Monotone", "up", "share of images with no fall at any step", NO_THRESHOLD),
    },
    "infidelity": {
        "infidelity_scaled": ("Infidelity, scaled", "down",
                              "share of the effects of patches that the map, optimally scaled, does not predict",
                              NO_THRESHOLD),
        "infidelity": ("Infidelity", "down", "squared error of the map as a prediction of the effects of patches",
                       NO_THRESHOLD),
    },
    "complexity": {
        "gini": ("Gini", "none", "Gini index of the patch grid", NO_THRESHOLD),
        "entropy": ("Entropy", "none", "entropy of the patch grid, natural logarithm", NO_THRESHOLD),
        "used": ("Used patches", "none", "share of patches that carry relevance", NO_THRESHOLD),
    },
    "sensitivity": {
        "max_over_map": ("Max. change", "down", "largest change of the map under small noise, relative to the map",
                         NO_THRESHOLD),
        "mean_over_map": ("Mean change", "down", "mean change of the map under small noise, relative to the map",
                          NO_THRESHOLD),
        "ratio": ("Ratio", "down", "relative change of the map divided by that of the image", NO_THRESHOLD),
    },
    "explain": {
        "masks": ("Masks", "none", "number of masks of an image, counted by the images evaluated; mean over images",
                  NO_THRESHOLD),
        "masks_std": ("Masks, std", "none", "standard deviation of the number of masks over images", NO_THRESHOLD),
    },
    "rationale": {
        "f1": ("Token-F1", "up", "F1 of the top words against the marked words, mean over k = 10 to 80", NO_THRESHOLD),
        **{f"f1@{k}": (f"k = {k}", "up", f"F1 of the top {k} words against the marked words", NO_THRESHOLD)
           for k in TOP_WORDS},
        **{f"micro@{k}": (f"Micro, k = {k}", "up", f"F1 of the top {k} words, counts of all texts together",
                          NO_THRESHOLD) for k in TOP_WORDS},
        "auprc": ("AUPRC", "up", "area under the precision-recall curve of all words", NO_THRESHOLD),
    },
    "eraser": {
        "comprehensiveness": ("Compr.", "up", "drop of the probability without the top words, mean over five shares",
                              NO_THRESHOLD),
        "sufficiency": ("Suff.", "down", "drop of the probability with the top words only, mean over five shares",
                        NO_THRESHOLD),
    },
    "multiclass": {
        "best_pixel_accuracy": ("Pixel acc., best of 10", "up", "share of pixels labelled correctly",
                                BEST_THRESHOLD),
        "best_miou": ("mIoU, best of 10", "up", "mean IoU of all classes over all images", BEST_THRESHOLD),
        "own_best_pixel_accuracy": ("Pixel acc., own best of 10", "up", "share of pixels labelled correctly",
                                    OWN_THRESHOLD),
    },
}  # fmt: skip
PROTOCOL_METRICS["multiclass_original"] = PROTOCOL_METRICS["multiclass"]
#: Protocols whose scores are printed in percent.
PERCENT_PROTOCOLS = (
    "segmentation", "pointing", "box_pointing", "wsol", "selectivity", "multiclass", "multiclass_original",
    "grid_pointing", "difull", "dipart", "road", "discrimination", "top_word", "event", "right_object", "source",
)  # fmt: skip
#: The protocol whose scores are named after a model's layers, and the similarity of it that is printed.
SANITY, SANITY_SIMILARITY = "sanity", "spearman"
#: Explained classes in words.
TARGET_NAMES = {
    "predicted": "maps of the predicted class",
    "label": "maps of the label",
    "things": "a map for each class of an image",
}


@dataclass(frozen=True)
class MetricInfo:
    """A score of a protocol.

    Attributes:
        protocol: Name of a preset or protocol.
        target: Explained class.
        score: Name of the score in results.
        direction: "up" if higher is better, "down" if lower is better, "none" if neither.
        short: Column heading, with units.
        quantity: What is measured.
        fill: Fill of removed pixels, "" where nothing is removed.
        rule: How a curve or map becomes a number: area rule or threshold.
        factor: Factor from stored to printed values.
        digits: Decimal places.
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
        """Full description: protocol, score, fill, quantity, rule and explained class.

        Example:
            >>> metric_info("chefer21", "predicted", "positive(black)").label
            'chefer21 positive, fill black, top-1 accuracy against the label, trapezoid over the levels, ×100;
            maps of the predicted class'
        """
        fill = f", fill {self.fill}" if self.fill else ""
        rule = f", {self.rule}" if self.rule != NO_THRESHOLD else ""
        target = TARGET_NAMES.get(self.target, self.target)
        return f"{self.protocol} {self.name}{fill}, {self.quantity}{rule}; {target}"

    @property
    def name(self) -> str:
        """The score without its fill."""
        return self.score.partition("(")[0]

    @property
    def arrow(self) -> str:
        """Direction of better values."""
        return {"up": "↑", "down": "↓"}.get(self.direction, "")

    @property
    def percent(self) -> bool:
        """Whether printed values are percentages."""
        return self.factor == 100 or "×100" in self.rule

    def format(self, value: float) -> str:
        """Format a stored value for print, in this metric's units.

        Example:
            >>> metric_info("segmentation", "predicted", "miou").format(0.6195)
            '61.95'
        """
        return f"{value * self.factor:.{self.digits}f}"


def metric_info(protocol: str, target: str, score: str) -> MetricInfo:
    """Describe one score of a protocol or preset.

    Raises:
        OptionError: The protocol has no such score.
    """
    if protocol == SANITY:
        layer, _, similarity = score.partition("|")
        quantity = f"{similarity} similarity to the original map after randomising the weights down to {layer}"
        return MetricInfo(protocol, target, score, "none", f"{layer}, {similarity}", quantity, "", NO_THRESHOLD)
    if protocol in PROTOCOL_METRICS:
        if score not in PROTOCOL_METRICS[protocol]:
            raise OptionError(f"{protocol} has no score {score!r}: it has {', '.join(PROTOCOL_METRICS[protocol])}")
        short, direction, quantity, rule = PROTOCOL_METRICS[protocol][score]
        if protocol in PERCENT_PROTOCOLS:
            return MetricInfo(protocol, target, score, direction, f"{short}, %", quantity, "", rule, 100.0, 2)
        digits = 1 if protocol == "explain" else 3
        return MetricInfo(protocol, target, score, direction, short, quantity, "", rule, digits=digits)
    registered = find_score(protocol)
    if registered is not None:
        factor, digits = (100.0, 2) if registered.percent else (1.0, 3)
        short = f"{registered.title}, %" if registered.percent else registered.title
        quantity = registered.description or registered.title
        return MetricInfo(
            protocol, target, score, registered.direction, short, quantity, "", NO_THRESHOLD, factor, digits
        )
    preset = find_presets(protocol)[0]
    if score not in preset.scores:
        raise OptionError(f"{protocol} has no score {score!r}: it has {', '.join(preset.scores)}")
    return _preset_metric(preset, target, score)


def protocol_metrics(protocol: str, target: str, columns: Iterable[str] = ()) -> list[MetricInfo]:
    """Describe all scores of a protocol or preset.

    Args:
        protocol: Its name.
        target: Explained class.
        columns: Scores that a run has, for protocols whose scores are named after a model's layers.
    """
    if protocol == SANITY:
        names: Iterable[str] = [name for name in columns if name.endswith(f"|{SANITY_SIMILARITY}")]
    elif find_score(protocol) is not None:
        names = [protocol]
    else:
        names = PROTOCOL_METRICS[protocol] if protocol in PROTOCOL_METRICS else find_presets(protocol)[0].scores
    return [metric_info(protocol, target, name) for name in names]


def _preset_metric(preset: Preset, target: str, score: str) -> MetricInfo:
    name, fill = score.removesuffix(")").split("(")
    rule, quantity = find_area(preset.area), QUANTITIES[preset.quantity]
    direction, percent = preset.scores[score], rule.factor == 100
    if name in ("aopc", "lodds"):
        title, _, quantity = EXTRAS[name]
        return MetricInfo(preset.name, target, score, direction, title, quantity, fill, "plain mean over the levels")
    if name in EXTRAS:
        quantity = f"{quantity}, {EXTRAS[name][2]}"
    fill_suffix = f" ({fill})" if len(preset.fills) > 1 else ""
    short = (EXTRAS[name][0] if name in EXTRAS else name.capitalize()) + fill_suffix + (", %" if percent else "")
    return MetricInfo(
        preset.name, target, score, direction, short, quantity, fill, rule.title, 1.0, 2 if percent else 3
    )
