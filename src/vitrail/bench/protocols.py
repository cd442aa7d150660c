"""The protocols by name: what each needs of a data set, and its scores for a batch of maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ProtocolScores, ScoreBatch
from vitrail.bench.memory import shrink_batch_to_fit
from vitrail.bench.text_protocols import TEXT_PROTOCOLS
from vitrail.capture.outputs import class_logits
from vitrail.class_group import ClassGroup
from vitrail.data.voc import VOC_CLASSES, VOC_TO_IMAGENET
from vitrail.errors import DataError, ModelError, OptionError
from vitrail.methods import find
from vitrail.scores.complexity import score_complexity
from vitrail.scores.perturbation import RecordedCurve
from vitrail.scores.pointing import score_box_pointing, score_pointing
from vitrail.scores.presets import Curve, MapTarget, Preset, find_presets
from vitrail.scores.registry import REGISTERED_SCORES, RegisteredScore, ScoreInputs, find_score
from vitrail.scores.sanity import parameter_randomisation
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    RegionCounts,
    count_confusions,
    score_segmentation,
)
from vitrail.scores.selectivity import score_selectivity
from vitrail.scores.sensitivity import score_sensitivity
from vitrail.scores.wsol import score_wsol

#: Value of the column ``target`` for protocols that explain every object of an image. Part of the file format.
OBJECTS = "things"
#: The protocols that explain every class of an image; the second compares at the resolution of the file.
MULTICLASS, MULTICLASS_ORIGINAL = "multiclass", "multiclass_original"
#: Values by score, and reasons for missing values by position in the batch.
ScoresAndReasons = tuple[dict[str, Tensor], dict[int, str]]


# -- perturbation presets ----------------------------------------------------------------------------------------------


def score_perturbation(
    batch: ScoreBatch,
    presets: tuple[Preset, ...],
    targets: tuple[str, ...],
) -> Iterator[ProtocolScores]:
    """Compute the scores of every preset and method with one call of the evaluator, which shares forward passes."""
    start = perf_counter()
    methods = list(batch.explanations)
    maps = {m: batch.maps(m, "predicted") for m in methods} if "predicted" in targets else {}
    label_maps: dict[str, Tensor] = {}
    if "label" in targets:
        class_agnostic = {m for m in methods if not find(m)[1].class_specific}
        label_maps = {m: maps[m] if m in class_agnostic and m in maps else batch.maps(m, "label") for m in methods}
    if not maps and not label_maps:
        return
    context, model = batch.explainer.context, batch.explainer.model
    records = shrink_batch_to_fit(
        context,
        lambda size: context.evaluator(model, presets, size)(
            batch.images, maps, labels=batch.labels, label_maps=label_maps, ids=batch.ids, predicted=batch.predicted
        ),
    )
    count = len(batch.ids) * len(methods)
    seconds, forwards = (perf_counter() - start) / count, records.forwards.total / count
    for preset in presets:
        for target in preset.explains:
            for method in (maps if target == "predicted" else label_maps) if target in targets else ():
                values = records.scores(preset, method, target)
                curves = {
                    c.score_name: _levels(records.curves, preset, c, method, target, batch.ids) for c in preset.curves
                }
                order = _order(records.curves, preset, method, target, batch.ids)
                ordered = {name: value[order] for name, value in values.items()}
                missing = batch.missing_maps(method, target)
                yield ProtocolScores(preset.name, method, target, ordered, missing, seconds, forwards, curves)


def _order(
    curves: Mapping[Any, RecordedCurve], preset: Preset, method: str, target: MapTarget, ids: tuple[str, ...]
) -> Tensor:
    """Position of each image of the batch in the records, which are sorted by id."""
    curve = preset.curves[0]
    at = {name: i for i, name in enumerate(curves[method, target, curve.order, curve.fill].ids)}
    return torch.tensor([at[name] for name in ids])


def _levels(
    curves: Mapping[Any, RecordedCurve],
    preset: Preset,
    curve: Curve,
    method: str,
    target: MapTarget,
    ids: tuple[str, ...],
) -> tuple[tuple[int, ...], Tensor]:
    """Numbers of removed pixels and the model's outputs at each level of a curve, images in the order of the batch."""
    recorded = curves[(method, target, curve.order, curve.fill)]
    counts = curve.removed(recorded.units)
    return counts, recorded.at(counts)[_order(curves, preset, method, target, ids)]


# -- scores of the maps a batch has ------------------------------------------------------------------------------------


def _score_with_masks(
    batch: ScoreBatch,
    method: str,
    target: str,
    masks: list[Tensor | None],
    score: Callable[[Tensor, Tensor], dict[str, Tensor]],
    missing: str,
) -> ScoresAndReasons:
    """Score maps against masks; an image without a mask gets the reason ``missing``."""
    maps = batch.maps(method, target)
    empty = torch.zeros(maps.shape[1:], dtype=torch.uint8)
    values = score(maps, torch.stack([empty if mask is None else mask for mask in masks]).to(maps.device))
    reasons = {row: missing for row, mask in enumerate(masks) if mask is None}
    return values, reasons | batch.missing_maps(method, target)


def _score_segmentation(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    masks = [t.mask_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    return _score_with_masks(batch, method, target, masks, score_segmentation, "the image has no mask")


def _score_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    masks = [t.box_mask_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    return _score_with_masks(batch, method, target, masks, score_pointing, "the image has no box of its class")


def _boxes(batch: ScoreBatch, method: str, target: str) -> tuple[list[Tensor], dict[int, str]]:
    """Return the boxes of each image's explained class, and the reasons for missing values."""
    found = [t.boxes_of(k) for t, k in zip(batch.truths, batch.target_classes(target), strict=True)]
    boxes = [torch.zeros(0, 4) if own is None else own for own in found]
    reasons = {row: "the image has no box of its class" for row, own in enumerate(boxes) if not len(own)}
    return boxes, reasons | batch.missing_maps(method, target)


def _score_box_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    boxes, reasons = _boxes(batch, method, target)
    return score_box_pointing(batch.maps(method, target), boxes), reasons


def _score_wsol(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    boxes, reasons = _boxes(batch, method, target)
    top1 = torch.where(batch.labels >= 0, (batch.predicted == batch.labels).double(), torch.nan)
    return {**score_wsol(batch.maps(method, target), boxes), "top1": top1}, reasons


def _score_selectivity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    del target
    maps = torch.stack([batch.maps(method, name) for name in ("first", "second")], 1)
    masks, reasons = torch.zeros(maps.shape, dtype=torch.uint8), {}
    for row, truth in enumerate(batch.truths):
        if batch.columns["second"][row] is None:
            reasons[row] = f"the image has {len(truth.objects)} classes, expected two"
            continue
        for k, label in enumerate(sorted(truth.objects)):
            masks[row, k] = truth.objects[label] == 1
    failures = {row: why for (name, row), why in batch.failures.items() if name == method}
    return score_selectivity(maps, masks.to(maps.device)), failures | reasons


def _score_complexity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    grid = batch.explanations[method].grid
    own = grid[torch.arange(len(grid), device=grid.device), batch.target_columns(target).to(grid.device)]
    return score_complexity(own), batch.missing_maps(method, target)


def _score_registered(score: RegisteredScore, batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Compute a score of another package on the images that have what it needs."""
    explained = batch.target_classes(target)
    masks = [t.mask_of(k) for t, k in zip(batch.truths, explained, strict=True)]
    boxes = [t.boxes_of(k) for t, k in zip(batch.truths, explained, strict=True)]
    reasons: dict[int, str] = {}
    for row in range(len(batch.ids)):
        own_boxes = boxes[row]
        present = {"mask": masks[row] is not None, "boxes": own_boxes is not None and len(own_boxes) > 0,
                   "label": int(batch.labels[row]) >= 0}  # fmt: skip
        lacking = [need for need in score.needs if not present[need]]
        if lacking:
            reasons[row] = f"the image has no {' and no '.join(lacking)}"
    reasons |= batch.missing_maps(method, target)
    values = torch.full((len(batch.ids),), torch.nan, dtype=torch.float64)
    rows = [row for row in range(len(batch.ids)) if row not in reasons]
    if rows:
        at = torch.tensor(rows, device=batch.images.device)
        inputs = ScoreInputs(
            batch.maps(method, target)[at], batch.explanations[method].signed, batch.images[at],
            torch.tensor([explained[row] for row in rows]), batch.labels[at.to(batch.labels.device)],
            tuple(masks[row] for row in rows), tuple(boxes[row] for row in rows),
            batch.explainer.model.loaded.module,
        )  # fmt: skip
        found = torch.as_tensor(score.compute(inputs))
        if found.shape != (len(rows),):
            raise OptionError(
                f"the score {score.name} returned shape {tuple(found.shape)} for {len(rows)} images: it must return "
                f"one number per image, shape ({len(rows)},)"
            )
        values[rows] = found.detach().double().cpu()
    return {score.name: values}, reasons


# -- scores that need further maps -------------------------------------------------------------------------------------


def _score_sensitivity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Explain each image ten more times under small noise."""
    explain, reasons = _make_reexplain(batch, method, target)

    module = batch.explainer.model.loaded.module

    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits = class_logits(module, module(images))
        assert logits is not None
        return logits.argmax(1)

    seed = batch.explainer.context.plan.seed
    return score_sensitivity(explain, batch.images, seed=seed, predict=predict), reasons


def _score_sanity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Compare maps while weights are randomised from the head down, each step on top of the steps before."""
    explain, reasons = _make_reexplain(batch, method, target)
    model, seed = batch.explainer.model, batch.explainer.context.plan.seed
    values = parameter_randomisation(
        model.loaded.module, lambda: explain(batch.images), model.randomisation_steps, seed=seed
    )
    return values, reasons


def _make_reexplain(batch: ScoreBatch, method: str, target: str) -> tuple[Callable[[Tensor], Tensor], dict[int, str]]:
    """Return a function that explains the same classes of other images, and reasons, which it extends at each call."""
    classes = batch.classes.gather(1, batch.target_columns(target)[:, None])
    reasons = batch.missing_maps(method, target)

    def explain(images: Tensor) -> Tensor:
        explanations, failures = batch.explainer(batch.ids, images, classes, [method])
        reasons.update({row: why for (_, row), why in failures.items()})
        return explanations[method].maps[:, 0] if explanations else batch.maps(method, target)

    return explain, reasons


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
    reasons = {row: "the image has no class" for row, own in enumerate(labels) if not own}
    maps: dict[tuple[int, int], Tensor] = {}
    for label in sorted({label for own in labels for label in own}):
        rows = [row for row, own in enumerate(labels) if label in own]
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

    At every pixel the class with the highest relevance wins, each map scaled to [0, 1], if it exceeds the threshold;
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
    for row, own in enumerate(labels):
        if row in reasons:
            continue
        truth = batch.truths[row].original_labels if original else batch.truths[row].pixel_labels
        assert truth is not None
        stack = torch.stack([maps[row, label] for label in own])[None]
        if original:
            stack = F.interpolate(stack, size=tuple(truth.shape), mode="bilinear", align_corners=False)
        for name, value in _count_pixels(stack, own, truth, count).items():
            column = values.setdefault(name, torch.full((len(labels), *value.shape), torch.nan, dtype=torch.float64))
            column[row] = value
    return values, reasons


def _count_pixels(maps: Tensor, labels: list[int], truth: Tensor, count: int) -> dict[str, Tensor]:
    """Count intersections and unions of one image for each of its classes and the background, at every threshold."""
    found = count_confusions(maps, torch.tensor([labels]), truth[None], count)
    pixels = found["confusion"].reshape(len(THRESHOLDS), count, count).double().cpu()
    common = pixels.diagonal(dim1=1, dim2=2)
    union = pixels.sum(1) + pixels.sum(2) - common
    counts: dict[str, Tensor] = {}
    for label in (0, *labels):
        counts |= {f"common:{label}": common[:, label], f"union:{label}": union[:, label]}
    return counts | {"labelled": pixels[0].sum(), "flat": found["flat"][0].double().cpu()}


def class_outputs(classes: Sequence[str] | None, count: int | None) -> dict[int, tuple[int, ...]]:
    """Return, for each pixel label from 1 up, the model's outputs that stand for it.

    Args:
        classes: Class names of the data set.
        count: Number of outputs of the model: VOC's 20 or 21 classes; ImageNet's 1,000, of which several stand for a
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


# -- the table ---------------------------------------------------------------------------------------------------------

_OWN_PROTOCOLS: dict[str, BenchProtocol] = {
    protocol.name: protocol
    for protocol in (
        BenchProtocol("segmentation", ("mask",), _score_segmentation),
        BenchProtocol("pointing", ("boxes",), _score_pointing),
        BenchProtocol("box_pointing", ("boxes",), _score_box_pointing),
        BenchProtocol("wsol", ("boxes",), _score_wsol),
        BenchProtocol("selectivity", ("two classes",), _score_selectivity, targets=(OBJECTS,)),
        BenchProtocol("complexity", (), _score_complexity),
        BenchProtocol("sensitivity", (), _score_sensitivity),
        BenchProtocol("sanity", (), _score_sanity),
        BenchProtocol(MULTICLASS, ("class masks",), _score_multiclass, targets=(OBJECTS,), sparse=True),
        BenchProtocol(
            MULTICLASS_ORIGINAL,
            ("class masks",),
            partial(_score_multiclass, original=True),
            targets=(OBJECTS,),
            sparse=True,
        ),
        *TEXT_PROTOCOLS,
    )
}


class ProtocolTable(Mapping[str, BenchProtocol]):
    """The package's protocols and the registered scores, by name."""

    def __getitem__(self, name: str) -> BenchProtocol:
        if name in _OWN_PROTOCOLS:
            return _OWN_PROTOCOLS[name]
        score = find_score(name)
        if score is None:
            raise KeyError(name)
        return BenchProtocol(name, score.needs, partial(_score_registered, score))

    def __iter__(self) -> Iterator[str]:
        yield from _OWN_PROTOCOLS
        yield from REGISTERED_SCORES

    def __len__(self) -> int:
        return len(_OWN_PROTOCOLS) + len(REGISTERED_SCORES)


PROTOCOLS = ProtocolTable()
"""The protocols that are not perturbation presets, by name."""


def needs_objects(names: Sequence[str]) -> bool:
    """Whether protocols use masks or boxes; a score of another package may, whatever it says it needs.

    Args:
        names: Protocols and presets.

    Example:
        >>> needs_objects(["chefer21", "complexity"]), needs_objects(["chefer21", "pointing"])
        (False, True)
    """
    return any(name not in _OWN_PROTOCOLS or _OWN_PROTOCOLS[name].needs for name in names if name in PROTOCOLS)


def protocol_targets(names: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of protocol and target that are run.

    Args:
        names: Protocols and presets.
        targets: The plan's targets.

    Example:
        >>> protocol_targets(["selectivity", "rise"], ["predicted", "label"])
        [('selectivity', 'things'), ('rise', 'predicted')]
    """
    found = []
    for name in names:
        if name in PROTOCOLS:
            own: Sequence[str] = PROTOCOLS[name].targets or targets
        else:
            own = [target for target in find_presets(name)[0].explains if target in targets]
        found += [(name, target) for target in own]
    return found
