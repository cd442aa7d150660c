"""Run a request: all methods on all inputs, in batches or on smoothed copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vitrail.inputs.targets import target_count
from vitrail.pipeline.batches import explain_batch, join_batches, split_inputs
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.method_job import MethodJob
from vitrail.pipeline.prepared_model import PreparedModel
from vitrail.pipeline.progress import evaluation_progress, expected_evaluations
from vitrail.pipeline.request import Request
from vitrail.pipeline.shared_pass import BatchJob, PassSettings, ResultFlags, default_max_batch
from vitrail.pipeline.smoothed_pass import explain_smoothed


def run_methods(
    prepared: PreparedModel, jobs: Sequence[MethodJob], request: Request
) -> tuple[dict[str, Explanation], list[ResultFlags]]:
    """Run all methods on all inputs: explanations by method, and flags of recorded passes that are to be waited for."""
    inputs, smoothing = prepared.inputs, request.smoothing
    copies = inputs.batch * (1 if smoothing is None else smoothing.copies)
    total = expected_evaluations(jobs, prepared.structure, copies, target_count(request.target))
    flags: list[ResultFlags] = []
    with evaluation_progress(request.progress, total, request.advance) as advance:
        max_batch = request.batch_size or default_max_batch(prepared.structure, inputs.tensors[0].device)
        settings = PassSettings(max_batch, request.keep, advance, flags if smoothing is None else None)
        job = BatchJob(prepared, request.target, jobs, settings)
        if smoothing is not None:
            return explain_smoothed(job, smoothing, request.batch_size), []
        pieces = [
            explain_batch(replace(job, prepared=prepared.with_inputs(piece), target=target))
            for piece, target in split_inputs(inputs, request.target, request.batch_size)
        ]
    return {one.label: join_batches([piece[one.label] for piece in pieces]) for one in jobs}, flags
