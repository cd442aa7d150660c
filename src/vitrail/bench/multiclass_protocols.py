"""The protocols that explain every class of an image: segmentation into several classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ScoreBatch, ScoresAndReasons
from vitrail.data.voc import VOC_CLASSES, VOC_TO_IMAGENET
from vitrail.errors import DataError, ModelError
from vitrail.models.class_group import ClassGroup
from vitrail.scores.segmentation import THRESHOLDS, MultiClassSegmentationScores, RegionCounts, count_confusions

#: Value of the column ``target`` for protocols that explain every object of an image. Part of the file format.
OBJECTS = "things"
#: The protocols that explain every class of an image; the second compares at the resolution of the file.
MULTICLASS, MULTICLASS_ORIGINAL = "multiclass", "multiclass_original"


def _explain_objects(
    batch: ScoreBatch, method: str
) -> tuple[list[list[int]], dict[tuple[int, int], Tensor], dict[int, str]]:
    """Explain every class of each image; return its pixel labels, the maps by image and label, and reasons."""
    dataset = batch.explainer.context.images(batch.dataset).dataset
    outputs = class_outputs(dataset.classes, batch.explainer.model.classes)
    labels = [
        [] if t.pixel_labels is None else sorted(set(t.pixel_labels.flatten().tolist()) - {0, 255})
        for t in batch.truths
    ]
    reasons = {row: "the image has no class" for row, present in enumerate(labels) if not present}
    maps: dict[tuple[int, int], Tensor] = {}
    for label in sorted({label for present in labels for label in present}):
        rows = [row for row, present in enumerate(labels) if label in present]
        at = torch.tensor(rows)
        ids, images = [batch.ids[row] for row in rows], batch.images[at.to(batch.images.device)]
        members = outputs[label]
        explained = members[0] if len(members) == 1 else ClassGroup(members)
        explanations, failures = batch.explainer(ids, images, [[explained]] * len(rows), [method])
        reasons |= {rows[position]: why for (_, position), why in failures.items()}
        if explanations:
            maps |= {(row, label): explanations[method].maps[position, 0] for position, row in enumerate(rows)}
    return labels, maps, reasons


def _score_multiclass(batch: ScoreBatch, method: str, target: str, original: bool = False) -> ScoresAndReasons:
    """Explain every class of an image, join the maps into one label map, and compare it with the label of each pixel.

    A pixel is assigned to the class with the highest relevance (maps scaled to [0, 1]) if it exceeds the threshold;
    otherwise the pixel is background. Compared at the resolution of the model's input, or with ``original`` at that of
    the file, to which the maps are resized by bilinear interpolation.
    """
    del target
    dataset = batch.explainer.context.images(batch.dataset).dataset
    if method not in batch.object_maps:
        batch.object_maps[method] = _explain_objects(batch, method)
    labels, maps, reasons = batch.object_maps[method]
    count = max(class_outputs(dataset.classes, batch.explainer.model.classes)) + 1
    values: dict[str, Tensor] = {}
    for row, present in enumerate(labels):
        if row in reasons:
            continue
        truth = batch.truths[row].original_labels if original else batch.truths[row].pixel_labels
        assert truth is not None
        stack = torch.stack([maps[row, label] for label in present])[None]
        if original:
            stack = F.interpolate(stack, size=tuple(truth.shape), mode="bilinear", align_corners=False)
        for name, value in _count_pixels(stack, present, truth, count).items():
            column = values.setdefault(name, torch.full((len(labels), *value.shape), torch.nan, dtype=torch.float64))
            column[row] = value
    return values, reasons


def _count_pixels(maps: Tensor, labels: list[int], truth: Tensor, count: int) -> dict[str, Tensor]:
    """Count intersections and unions of one image for each of its classes and the background, at every threshold."""
    counted = count_confusions(maps, torch.tensor([labels]), truth[None], count)
    pixels = counted["confusion"].reshape(len(THRESHOLDS), count, count).double().cpu()
    common = pixels.diagonal(dim1=1, dim2=2)
    union = pixels.sum(1) + pixels.sum(2) - common
    counts: dict[str, Tensor] = {}
    for label in (0, *labels):
        counts |= {f"common:{label}": common[:, label], f"union:{label}": union[:, label]}
    return counts | {"labelled": pixels[0].sum(), "flat": counted["flat"][0].double().cpu()}


def class_outputs(classes: Sequence[str] | None, count: int | None) -> dict[int, tuple[int, ...]]:
    """Return, for each pixel label from 1 up, the model's outputs that stand for it.

    Args:
        classes: Class names of the data set.
        count: Number of outputs of the model: VOC's 20 or 21 classes; ImageNet's 1,000, several of which map to a
            class of VOC; or the number of classes of any other data set.

    Raises:
        DataError: The data set has no class names.
        ModelError: The model's outputs do not match the classes.

    Example:
        >>> class_outputs(("cat", "dog"), 2), class_outputs(VOC_CLASSES, 1000)[8]
        ({1: (0,), 2: (1,)}, (281, 282, 283, 284, 285))
    """
    if classes is None:
        raise DataError("the data set does not name the classes of its pixels")
    voc = tuple(classes) == VOC_CLASSES
    if voc and count == 1000:
        return {VOC_CLASSES.index(name): outputs for name, outputs in VOC_TO_IMAGENET.items()}
    if voc and count in (20, 21):
        return {label: (label - (count == 20),) for label in range(1, 21)}
    if not voc and count == len(classes):
        return {label + 1: (label,) for label in range(len(classes))}
    raise ModelError(f"the model has {count} classes and the data set {len(classes)}")


@dataclass
class PresentClassScores(MultiClassSegmentationScores):
    """Accumulator of the protocols ``multiclass``, in which every image has scores of the classes it contains only."""

    def regions(self) -> RegionCounts:
        """Return counts for each of the ten thresholds and each class that occurs, background included."""
        labels = sorted({int(name.split(":")[1].split("/")[0]) for name in self.columns if name.startswith("common:")})
        common, union = (
            np.stack([np.nan_to_num(self.column(f"{name}:{label}")) for label in labels], 2)
            for name in ("common", "union")
        )  # fmt: skip
        return RegionCounts(common, union, self.column("labelled"))


MULTICLASS_PROTOCOLS = (
    BenchProtocol(MULTICLASS, ("class masks",), _score_multiclass, targets=(OBJECTS,), sparse=True),
    BenchProtocol(
        MULTICLASS_ORIGINAL,
        ("class masks",),
        partial(_score_multiclass, original=True),
        targets=(OBJECTS,),
        sparse=True,
    ),
)
