"""Protocols that explain a picture again: under noise, with other weights, or for every class that is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.bench.batch import Batch
from vitrail.capture.inputs import logits_of
from vitrail.data.voc import VOC_CLASSES, VOC_TO_IMAGENET
from vitrail.errors import DataError, ModelError
from vitrail.scores.sanity import parameter_randomisation
from vitrail.scores.segmentation import THRESHOLDS, MultiClassSegmentationScores, RegionCounts, count_confusions
from vitrail.scores.sensitivity import score_sensitivity as under_noise

Scores = tuple[dict[str, Tensor], dict[int, str]]


def sensitivity(batch: Batch, method: str, target: str) -> Scores:
    """Ten more explanations of each picture under noise too small to matter."""
    explain, lost = _repeated(batch, method, target)

    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits = logits_of(batch.explainer.model.about.module(images))
        assert logits is not None
        return logits.argmax(1)

    seed = batch.explainer.stage.plan.seed
    return under_noise(explain, batch.images, seed=seed, predict=predict), lost


def sanity(batch: Batch, method: str, target: str) -> Scores:
    """How alike maps stay while the weights are randomised from the head down, each stage on top of those before."""
    explain, lost = _repeated(batch, method, target)
    model, seed = batch.explainer.model, batch.explainer.stage.plan.seed
    return parameter_randomisation(model.about.module, lambda: explain(batch.images), model.stages, seed=seed), lost


def _repeated(batch: Batch, method: str, target: str) -> tuple[Callable[[Tensor], Tensor], dict[int, str]]:
    """Explain the same classes anew, shape (B, height, width); and pictures without a map, which grow as it is used."""
    classes = batch.classes.gather(1, batch.at(target)[:, None])
    lost = batch.without(method, target)

    def explain(images: Tensor) -> Tensor:
        made, bad = batch.explainer(batch.ids, images, classes, [method])
        lost.update({row: why for (_, row), why in bad.items()})
        return made[method].maps[:, 0] if made else batch.maps(method, target)

    return explain, lost


# -- every class of a picture ------------------------------------------------------------------------------------------


def multiclass(batch: Batch, method: str, target: str) -> Scores:
    """A map for each class of a picture, joined into one map of labels, against the label of each pixel.

    At every pixel the class with the highest relevance wins, each map scaled to [0, 1], if it exceeds the threshold;
    else the ground does. Compared in the pixels the model sees.
    """
    del target
    outputs = outputs_of(batch)
    labels = [[] if t.labelled is None else sorted(set(t.labelled.flatten().tolist()) - {0, 255}) for t in batch.truths]
    lost = {row: "the picture has no class" for row, own in enumerate(labels) if not own}
    maps: dict[tuple[int, int], Tensor] = {}
    for kind in sorted({kind for own in labels for kind in own}):
        rows = [row for row, own in enumerate(labels) if kind in own]
        at = torch.tensor(rows)
        ids, images = [batch.ids[row] for row in rows], batch.images[at.to(batch.images.device)]
        classes = torch.full((len(rows), 1), outputs[kind][0])
        target_of = None if len(outputs[kind]) == 1 else _joined(outputs[kind])
        made, bad = batch.explainer(ids, images, classes, [method], target_of)
        lost |= {rows[place]: why for (_, place), why in bad.items()}
        if made:
            maps |= {(row, kind): made[method].maps[place, 0] for place, row in enumerate(rows)}
    count = max(outputs) + 1
    found: dict[str, Tensor] = {}
    for row, own in enumerate(labels):
        if row in lost:
            continue
        truth = batch.truths[row].labelled
        assert truth is not None
        stack = torch.stack([maps[row, kind] for kind in own])[None]
        values = count_confusions(stack, torch.tensor([own]), truth[None], count)
        pixels = values["confusion"].reshape(len(THRESHOLDS), count, count).double().cpu()
        common = pixels.diagonal(dim1=1, dim2=2)
        union = pixels.sum(1) + pixels.sum(2) - common
        counts = {f"{name}:{kind}": what[:, kind] for kind in (0, *own) for name, what in
                  (("common", common), ("union", union))}  # fmt: skip
        counts |= {"labelled": pixels[0].sum(), "flat": values["flat"][0].double().cpu()}
        for name, value in counts.items():
            column = found.setdefault(name, torch.full((len(labels), *value.shape), torch.nan, dtype=torch.float64))
            column[row] = value
    return found, lost


def outputs_of(batch: Batch) -> dict[int, tuple[int, ...]]:
    """For each label of a pixel, the model's outputs that stand for it; see `outputs_for`."""
    stage = batch.explainer.stage
    return outputs_for(stage.pictures(batch.data).dataset.classes, batch.explainer.model.classes)


def outputs_for(known: Sequence[str] | None, count: int | None) -> dict[int, tuple[int, ...]]:
    """For each label of a pixel, 1 and up, the model's outputs that stand for it.

    Args:
        known: The data set's classes.
        count: How many outputs the model has: VOC's 20 or 21 classes, ImageNet's thousand, of which several stand for
            a class of VOC, or as many as any other data set has classes.

    Raises:
        DataError: The data set's classes have no names.
        ModelError: The model does not know them.

    Example:
        >>> outputs_for(("cat", "dog"), 2), outputs_for(VOC_CLASSES, 1000)[8]
        ({1: (0,), 2: (1,)}, (281, 282, 283, 284, 285))
    """
    if known is None:
        raise DataError("the data set does not say which classes its pixels have")
    voc = tuple(known) == VOC_CLASSES
    if voc and count == 1000:
        return {VOC_CLASSES.index(name): kinds for name, kinds in VOC_TO_IMAGENET.items()}
    if voc and count in (20, 21):
        return {label: (label - (count == 20),) for label in range(1, 21)}
    if not voc and count == len(known):
        return {label + 1: (label,) for label in range(len(known))}
    raise ModelError(f"a model of {count} classes does not know the data set's {len(known)}")


def _joined(outputs: tuple[int, ...]) -> Callable[[Any], Tensor]:
    """Several outputs as one score, the logarithm of the sum of their exponentials: the likeliest counts most."""

    def target(output: Any) -> Tensor:
        logits = logits_of(output)
        assert logits is not None
        return logits[:, list(outputs)].logsumexp(1)

    return target


@dataclass
class Classes(MultiClassSegmentationScores):
    """Collects what `multiclass` finds, of which every picture has the classes that are in it and no others."""

    def regions(self) -> RegionCounts:
        """Counts for each of the ten thresholds and each class that was seen, the ground included."""
        kinds = sorted({int(name.split(":")[1].split("/")[0]) for name in self.columns if name.startswith("common:")})
        common, union = (
            np.stack([np.nan_to_num(self.column(f"{name}:{kind}")) for kind in kinds], 2)
            for name in ("common", "union")
        )  # fmt: skip
        return RegionCounts(common, union, self.column("labelled"))
