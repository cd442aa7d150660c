"""The protocols by name: what each needs of a data set, and its scores for a batch of maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from vitrail.bench import reexplain as again
from vitrail.bench.batch import Batch, Found, Protocol
from vitrail.bench.context import method_of
from vitrail.bench.explainer import within_memory
from vitrail.scores.complexity import score_complexity
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import RecordedCurve
from vitrail.scores.pointing import score_pointing
from vitrail.scores.presets import Curve, MapTarget, Preset, find_presets
from vitrail.scores.segmentation import score_segmentation
from vitrail.scores.selectivity import score_selectivity

__all__ = ["PROTOCOLS", "Batch", "Found", "Protocol", "pairs", "perturbation"]


def perturbation(
    batch: Batch, presets: tuple[Preset, ...], targets: tuple[str, ...], *, precision: torch.dtype | None, seed: int
) -> Iterator[Found]:
    """Scores of every preset and method, from one call of the evaluator, which shares what can be shared."""
    began = perf_counter()
    maps = {m: batch.maps(m, "predicted") for m in batch.made} if "predicted" in targets else {}
    label_maps: dict[str, Tensor] = {}
    if "label" in targets:
        blind = {m for m in batch.made if not method_of(m).class_specific}
        label_maps = {m: maps[m] if m in blind and m in maps else batch.maps(m, "label") for m in batch.made}
    if not maps and not label_maps:
        return
    explainer = batch.explainer
    records = within_memory(
        explainer.stage,
        lambda size: Evaluator(
            explainer.model.about, presets, batch=size, precision=precision, seed=seed, preprocess=explainer.model.view
        )(batch.images, maps, labels=batch.labels, label_maps=label_maps, ids=batch.ids, predicted=batch.predicted),
    )
    share = len(batch.ids) * len(batch.made)
    seconds, forwards = (perf_counter() - began) / share, records.forwards.total / share
    for preset in presets:
        for target in preset.explains:
            for method in (maps if target == "predicted" else label_maps) if target in targets else ():
                values = records.scores(preset, method, target)
                curves = {
                    c.score_name: _levels(records.curves, preset, c, method, target, batch.ids) for c in preset.curves
                }
                order = _order(records.curves, preset, method, target, batch.ids)
                ordered = {name: value[order] for name, value in values.items()}
                missing = batch.without(method, target)
                yield Found(preset.name, method, target, ordered, missing, seconds, forwards, curves)


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


def _against(batch: Batch, method: str, target: str, masks: list[Tensor | None], score: Any, what: str) -> Any:
    """Maps against masks; pictures without a mask are left out and said."""
    maps = batch.maps(method, target)
    empty = torch.zeros(maps.shape[1:], dtype=torch.uint8)
    values = score(maps, torch.stack([empty if mask is None else mask for mask in masks]).to(maps.device))
    lost = {row: f"the picture has no {what}" for row, mask in enumerate(masks) if mask is None}
    return values, lost | batch.without(method, target)


def _segmentation(batch: Batch, method: str, target: str) -> tuple[dict[str, Tensor], dict[int, str]]:
    masks = [t.mask_of(k) for t, k in zip(batch.truths, batch.explained(target), strict=True)]
    return _against(batch, method, target, masks, score_segmentation, "mask")  # type: ignore[no-any-return]


def _pointing(batch: Batch, method: str, target: str) -> tuple[dict[str, Tensor], dict[int, str]]:
    masks = [t.box_of(k) for t, k in zip(batch.truths, batch.explained(target), strict=True)]
    return _against(batch, method, target, masks, score_pointing, "box of its class")  # type: ignore[no-any-return]


def _selectivity(batch: Batch, method: str, target: str) -> tuple[dict[str, Tensor], dict[int, str]]:
    del target
    maps = torch.stack([batch.maps(method, name) for name in ("first", "second")], 1)
    masks, lost = torch.zeros(maps.shape, dtype=torch.uint8), {}
    for row, truth in enumerate(batch.truths):
        if batch.columns["second"][row] is None:
            lost[row] = f"the picture has {len(truth.things)} classes, not two"
            continue
        for k, kind in enumerate(sorted(truth.things)):
            masks[row, k] = truth.things[kind] == 1
    bad = {row: why for (name, row), why in batch.bad.items() if name == method}
    return score_selectivity(maps, masks.to(maps.device)), bad | lost


def _complexity(batch: Batch, method: str, target: str) -> tuple[dict[str, Tensor], dict[int, str]]:
    grid = batch.made[method].grid
    own = grid[torch.arange(len(grid), device=grid.device), batch.at(target).to(grid.device)]
    return score_complexity(own), batch.without(method, target)


def pairs(names: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    """Which targets each of some protocols and presets is run for.

    Example:
        >>> pairs(["selectivity", "rise"], ["predicted", "label"])
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


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("segmentation", ("mask",), _segmentation),
        Protocol("pointing", ("boxes",), _pointing),
        Protocol("selectivity", ("things",), _selectivity, targets=("things",)),
        Protocol("complexity", (), _complexity),
        Protocol("sensitivity", (), again.sensitivity),
        Protocol("sanity", (), again.sanity),
        Protocol("multiclass", ("classes",), again.multiclass, targets=("things",), sparse=True),
    )
}
"""The protocols that are not perturbation presets, by name."""
