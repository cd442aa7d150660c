"""Run several methods on a batch of inputs by a pass that was recorded on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from vitrail import fast
from vitrail.capture.attention_storage import some_weight
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits, output_count
from vitrail.capture.recorded_forward import as_the_model_is, worth_recording
from vitrail.inputs.targets import resolve_target, top_count
from vitrail.pipeline.shared_pass import BatchJob, ComputedBatch, ResultFlags, compute_batch

#: Families of methods whose passes are recorded.
_RECORDED = ("attention", "gradient", "relevance")


def recorded_batch(job: BatchJob) -> ComputedBatch | None:
    """Run all methods by a recorded pass, see `vitrail.fast.recordings`; None where it is not recorded."""
    prepared, target, settings = job.prepared, job.target, job.settings
    module, inputs, structure = prepared.module, prepared.inputs, prepared.structure
    tensors = inputs.tensors
    if not fast.recordable(module, tensors):
        return None
    reason = _reason_not_recorded(job)
    if reason is not None:
        fast.log_reason(reason)
        return None
    named = target is not None and not top_count(target)
    if named:
        # Classes are an input of the recording, which serves all of them.
        rows = _class_rows(job, output_count(module) or 0)
        if rows is None:
            fast.log_reason("a target is a group of classes")
            return None
        tensors = [*tensors, torch.tensor(rows, device=tensors[0].device)]
    others = [value for value in (*inputs.args, *inputs.kwargs.values()) if not isinstance(value, Tensor)]
    methods = tuple((one.label, one.method.compute, repr(one.options)) for one in job.methods)
    asked = target if not named else "classes"
    read = (prepared.scores, inputs.signature)
    key = (id(structure), asked, settings.max_batch, methods, tuple(inputs.kwargs), repr(others), read)

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ModelStructure]]:
        swapped, evaluated = inputs, list[int]()
        for old, new in zip(inputs.tensors, given, strict=not named):
            swapped = swapped.swap(old, new)
        quiet = replace(settings, advance=evaluated.append)
        batch = compute_batch(
            replace(job, prepared=prepared.with_inputs(swapped), settings=quiet), given[-1] if named else None
        )
        assert batch.classes is not None and batch.logits is not None  # noqa: PT018
        values = ResultFlags.of(batch.logits, [constant for *_, constant in batch.maps])
        # A copy, since the classes may be the input, which others use.
        results = [batch.classes.clone(), batch.logits, values, *chain.from_iterable(batch.maps)]
        return results, (sum(evaluated), structure)  # keeps the structure alive so that its id is not reused

    confirm = as_the_model_is(module, inputs, partial(class_logits, module), index=1)
    results, (evaluated, _) = fast.run_recorded(module, key, tensors, compute, confirm)
    classes, logits, values, *maps = results
    flags = ResultFlags(module, logits, values)
    if settings.flags is None:
        flags.wait()
    else:
        settings.flags.append(flags)
    if evaluated:
        settings.advance(evaluated)
    labels = [one.label for one in job.methods]
    triples = list(zip(maps[::3], maps[1::3], maps[2::3], strict=True))
    return ComputedBatch(triples, classes, (), logits, dict.fromkeys(labels, 0.0), {label: [] for label in labels})


def _reason_not_recorded(job: BatchJob) -> str | None:
    """Why the pass of a batch is not recorded, or None."""
    if not all(one.method.family in _RECORDED and one.method.takes == "trace" for one in job.methods):
        return "a method runs the model itself"
    if job.settings.keep:
        return "intermediate results are kept"
    if job.prepared.window_positions is not None:
        return "attention of windows is stitched"
    if callable(job.target):
        return "the target is a function"
    if job.prepared.structure.order_by_image:
        return "the order of the tokens depends on the image"
    if job.prepared.inputs.reading.output is not None:
        return "a part of the output is chosen"
    dtype = some_weight(job.prepared.module).dtype
    if not worth_recording(job.prepared.structure, job.prepared.inputs.batch, dtype):
        return "computing takes much longer than launching"
    if output_count(job.prepared.module) is None:
        return "the number of classes is unknown"
    return None


def _class_rows(job: BatchJob, count: int) -> tuple[tuple[int, ...], ...] | None:
    """The classes of each input, or None where there are groups of them."""
    target, batch = job.target, job.prepared.inputs.batch
    if type(target) is int and 0 <= target < count:
        return ((target,),) * batch
    resolved = resolve_target(target, torch.empty(batch, count), batch, job.prepared.loaded.classes)
    return None if resolved.groups or resolved.classes is None else tuple(map(tuple, resolved.classes.tolist()))
