"""Run several methods on changed copies of each image and average what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.finite import check_finite
from vitrail.capture.forward import forward_only
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.errors import NotApplicableError
from vitrail.inputs.targets import ResolvedTarget, Target, resolve_target
from vitrail.methods.postprocess import to_maps
from vitrail.pipeline.batches import explain_batch, split_inputs
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.method_job import MethodJob
from vitrail.pipeline.prepared_model import PreparedModel
from vitrail.pipeline.shared_pass import BatchJob
from vitrail.pipeline.smoothing import ImageCopy, Smoothing, copy_batches, image_copies, images_to_smooth
from vitrail.targets.bound_targets import BoundTargets
from vitrail.targets.named_target import NamedTarget


def explain_smoothed(job: BatchJob, smoothing: Smoothing, batch_size: int | None) -> dict[str, Explanation]:
    """Explain all copies of each image and average their relevance before it is scaled.

    The classes are those of the unchanged images, for all copies.
    """
    prepared, target = job.prepared, pinned_target(job, batch_size)
    model_inputs = prepared.inputs
    images = images_to_smooth(model_inputs)
    shown = prepared.shown_structure
    copies = list(image_copies(smoothing, images, shown.layout))
    resolved = _resolve(prepared, target, batch_size)
    rows = None if resolved.classes is None else resolved.rows()
    totals: dict[str, Tensor] = {}
    pieces: dict[str, list[Explanation]] = {one.label: [] for one in job.methods}
    for group in copy_batches(len(images), copies, batch_size):
        owner = torch.cat([torch.arange(where.start, where.stop) for _, where in group]).to(images.device)
        changed = torch.cat([copies[copy].change(images[where]) for copy, where in group]).to(images.dtype)
        if isinstance(target, BoundTargets):
            same: Target = target.select(owner.tolist())
        else:
            same = target if rows is None else [rows[i] for i in owner.tolist()]
        found = explain_batch(
            replace(job, prepared=prepared.with_inputs(model_inputs.pick(owner, changed)), target=same)
        )
        for label, explanation in found.items():
            if explanation.grid.dim() != 4:
                raise NotApplicableError(
                    f"smooth={smoothing.kind!r} does not apply to {label} on {shown.model}: its tokens do not lie "
                    "on a grid"
                )
            total = totals.setdefault(label, explanation.grid.new_zeros(len(images), *explanation.grid.shape[1:]))
            _add(total, explanation.grid, group, copies)
            pieces[label].append(explanation)
    return {
        one.label: _mean(
            one, pieces[one.label], totals[one.label] / len(copies), shown, model_inputs, resolved, smoothing
        )
        for one in job.methods
    }


def _resolve(prepared: PreparedModel, target: Target, batch_size: int | None) -> ResolvedTarget:
    """The targets of the unchanged images, with their logits."""
    pieces = split_inputs(prepared.inputs, target, batch_size)
    outputs = [forward_only(prepared.module, piece, prepared.structure) for piece, _ in pieces]
    logits = None
    if all(one.logits is not None for one in outputs):
        logits = torch.cat([one.logits for one in outputs if one.logits is not None])
    check_finite(prepared.module, logits)
    if callable(target):
        return ResolvedTarget(None, None, logits)
    batch, names = prepared.inputs.batch, prepared.loaded.classes
    return resolve_target(target, logits, batch, names, outputs[0].output, prepared.scores)


def pinned_target(job: BatchJob, batch_size: int | None) -> Target:
    """The target, where named targets are pinned on the unchanged images."""
    target = job.target
    if not isinstance(target, BoundTargets):
        return target
    rows: list[tuple[NamedTarget, ...]] = []
    for piece, own in split_inputs(job.prepared.inputs, target, batch_size):
        assert isinstance(own, BoundTargets)
        rows += own.pinned(forward_only(job.prepared.module, piece, job.prepared.structure).output).rows
    return replace(target, rows=tuple(rows), geometries=())


def _add(total: Tensor, grid: Tensor, group: Sequence[tuple[int, slice]], copies: Sequence[ImageCopy]) -> None:
    """Add the relevance of some copies to that of their images, each brought back to its place."""
    start = 0
    for copy, where in group:
        count = where.stop - where.start
        total[where] += copies[copy].restore(grid[start : start + count])
        start += count


def _mean(
    job: MethodJob,
    pieces: list[Explanation],
    grid: Tensor,
    structure: ModelStructure,
    model_inputs: ModelInputs,
    resolved: ResolvedTarget,
    smoothing: Smoothing,
) -> Explanation:
    """The explanation with the mean relevance of all copies."""
    maps, grids, constant = to_maps(grid[None], job.method.is_signed(job.options), structure, model_inputs)
    common: dict[str, Any] = {"targets": resolved.classes, "groups": resolved.groups, "logits": resolved.logits}
    return replace(
        pieces[0], maps=maps[0], grid=grids[0], constant=constant[0], images=model_inputs.image,
        seconds=sum(piece.seconds for piece in pieces), smoothing=smoothing, **common,
    )  # fmt: skip
