"""The perturbation presets: scores of every preset and method for a batch of maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from vitrail.bench.batch import ProtocolScores, ScoreBatch
from vitrail.methods import find
from vitrail.pipeline.memory import shrink_batch_to_fit
from vitrail.scores.perturbation import RecordedCurve
from vitrail.scores.presets import Curve, MapTarget, Preset


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
