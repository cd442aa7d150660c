"""Run a request in batches: split the inputs, explain each batch, and join the explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import OptionError, StructureDiffersError
from vitrail.inputs.map_axis import MapAxis
from vitrail.inputs.targets import Target, target_labels
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explanation import Explanation, number_groups_alike
from vitrail.pipeline.prepared_model import measured_again
from vitrail.pipeline.recorded_batch import recorded_batch
from vitrail.pipeline.shared_pass import BatchJob, ComputedBatch, compute_batch
from vitrail.targets.bound_targets import BoundTargets


def split_inputs(model_inputs: ModelInputs, target: Target, size: int | None) -> list[tuple[ModelInputs, Target]]:
    """The inputs in pieces, each with its targets."""
    batch = model_inputs.batch
    if size is None or size >= batch:
        return [(model_inputs, target)]
    if size < 1:
        raise OptionError(f"batch_size={size} must be at least 1")
    if isinstance(target, BoundTargets):
        pieces = [slice(i, min(i + size, batch)) for i in range(0, batch, size)]
        return [(model_inputs.select(piece), target.select(piece)) for piece in pieces]
    several = isinstance(target, Sequence) or (isinstance(target, Tensor | np.ndarray) and target.ndim > 0)
    each = several and not isinstance(target, str) and len(target) == batch  # type: ignore[arg-type]
    return [
        (model_inputs.select(slice(i, i + size)), target[i : i + size] if each else target)  # type: ignore[index]
        for i in range(0, batch, size)
    ]


def explain_batch(job: BatchJob) -> dict[str, Explanation]:
    """Run all methods on one batch; on a GPU by a recorded pass where there is one."""
    started = perf_counter()
    try:
        job, computed = _confirmed(job)
    except StructureDiffersError:
        # What differs between the inputs of a batch is found for each of them alone.
        separable = isinstance(job.target, BoundTargets) or not callable(job.target)
        if job.prepared.inputs.batch == 1 or not separable:
            raise
        pieces = [
            explain_batch(replace(job, prepared=job.prepared.with_inputs(piece), target=target))
            for piece, target in split_inputs(job.prepared.inputs, job.target, 1)
        ]
        if any(len({piece[one.label].grid.shape for piece in pieces}) > 1 for one in job.methods):
            raise
        return {one.label: join_batches([piece[one.label] for piece in pieces]) for one in job.methods}
    spent = perf_counter() - started - sum(computed.method_seconds.values())
    prepared = job.prepared
    common: dict[str, Any] = {
        "targets": computed.classes, "groups": computed.groups, "logits": computed.logits,
        "scores": prepared.scores,
        "target_labels": target_labels(job.target), "named_targets": computed.records,
        "model": prepared.loaded.name, "classes": prepared.loaded.classes,
        "images": prepared.inputs.image, "axes": map_axes(prepared.inputs),
        "signal": None if prepared.inputs.image is not None else prepared.inputs.canvas,
        "structure": dict(prepared.shown_structure.rows()),
        "preprocess": prepared.loaded.preprocess if isinstance(prepared.loaded.preprocess, Preprocess) else None,
    }  # fmt: skip
    return {
        one.label: Explanation(
            method=one.label, title=one.method.title, maps=maps, grid=grid, constant=constant, options=one.options,
            signed=one.method.is_signed(one.options), seconds=spent + computed.method_seconds[one.label],
            intermediates=_merge(computed.intermediates[one.label]), **common,
        )
        for one, (maps, grid, constant) in zip(job.methods, computed.maps, strict=True)
    }  # fmt: skip


def _confirmed(job: BatchJob) -> tuple[BatchJob, ComputedBatch]:
    """The results, with the job whose structure they confirm: where the known one does not hold, it is measured again.

    Raises:
        StructureDiffersError: The structure that was just measured does not hold for the whole batch.
    """
    try:
        return job, recorded_batch(job) or compute_batch(job)
    except StructureDiffersError:
        stitch = job.prepared.window_positions is not None
        again = replace(job, prepared=measured_again(job.prepared, job.target, job.methods, stitch))
        return again, compute_batch(again)


def join_batches(pieces: list[Explanation]) -> Explanation:
    """Explanations of consecutive inputs as one."""
    if len(pieces) == 1:
        return pieces[0]

    def cat(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else torch.cat(parts)

    pieces = number_groups_alike(pieces)
    joined = {name: cat(name) for name in ("maps", "grid", "targets", "logits", "constant", "images", "signal")}
    names = pieces[0].intermediates
    records = [piece.named_targets for piece in pieces if piece.named_targets is not None]
    named = tuple(row for rows in records for row in rows) if records else None
    kept = {name: [values for piece in pieces for values in piece.intermediates[name]] for name in names}
    seconds = sum(p.seconds for p in pieces)
    return replace(pieces[0], **joined, intermediates=kept, named_targets=named, seconds=seconds)


def map_axes(model_inputs: ModelInputs) -> tuple[MapAxis, ...]:
    """The axes of the maps of a call, with the units that are known; empty for texts."""
    if model_inputs.axes is None:
        return ()
    known = {axis.name: axis for axis in model_inputs.units}
    return tuple(known.get(name, MapAxis(name)) for name in model_inputs.axes.names)


def _merge(notes: list[dict[str, list[Any]]]) -> dict[str, list[list[Any]]]:
    """What was noted for each target, as name → target → notes in order."""
    return {name: [note[name] for note in notes] for name in (notes[0] if notes else ())}
