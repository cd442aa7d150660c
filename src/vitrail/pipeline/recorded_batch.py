"""Run several methods on a batch of inputs by a pass that was recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from vitrail.capture.attention_storage import some_weight
from vitrail.capture.early_replay import class_tensor
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import output_count
from vitrail.capture.recorded_forward import pays
from vitrail.fast import recordings
from vitrail.inputs.targets import resolve_target, top_count
from vitrail.pipeline.shared_pass import BatchJob, ComputedBatch, ResultFlags, compute_batch

#: Families of methods whose passes are recorded.
_RECORDED = ("attention", "gradient", "relevance")


def recorded_batch(job: BatchJob) -> ComputedBatch | None:
    """Run all methods by a recorded pass, see `vitrail.fast.recordings`; None where it is not to be recorded."""
    about, model_inputs, target, structure = job.about, job.model_inputs, job.target, job.structure
    run = job.settings
    tensors = model_inputs.tensors
    if not recordings.recordable(about.module, tensors):
        return None
    obstacle = _obstacle(job)
    if obstacle is not None:
        recordings.log_obstacle(obstacle)
        return None
    named = target is not None and not top_count(target)
    if named:
        # Classes are an input of the recording, which serves all of them.
        rows = _class_rows(job, output_count(about.module) or 0)
        if rows is None:
            recordings.log_obstacle("a target is a group of classes")
            return None
        tensors = [*tensors, class_tensor(rows, tensors[0].device)]
    rest = [value for value in (*model_inputs.args, *model_inputs.kwargs.values()) if not isinstance(value, Tensor)]
    methods = tuple((one.label, one.method.compute, repr(one.options)) for one in job.methods)
    key = (id(structure), target if not named else "classes", run.most, methods, tuple(model_inputs.kwargs), repr(rest))

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ModelStructure]]:
        own, evaluated = model_inputs, list[int]()
        for old, new in zip(model_inputs.tensors, given, strict=not named):
            own = own.swap(old, new)
        quiet = replace(job, model_inputs=own, settings=replace(run, advance=evaluated.append))
        found = compute_batch(quiet, given[-1] if named else None)
        assert found.classes is not None and found.logits is not None  # noqa: PT018
        values = ResultFlags.of(found.logits, [constant for *_, constant in found.maps])
        # A copy, since the classes may be the input, which others use.
        results = [found.classes.clone(), found.logits, values, *chain.from_iterable(found.maps)]
        # The structure is kept with the recording, lest another one come to have its id.
        return results, (sum(evaluated), structure)

    found, (evaluated, _) = recordings.run(about.module, key, tensors, compute, run.early)
    classes, logits, values, *maps = found
    flags = ResultFlags(about.module, logits, values)
    if run.flags is None:
        flags.wait()
    else:
        run.flags.append(flags)
    if evaluated:
        run.advance(evaluated)
    labels = [one.label for one in job.methods]
    triples = list(zip(maps[::3], maps[1::3], maps[2::3], strict=True))
    return ComputedBatch(triples, classes, (), logits, dict.fromkeys(labels, 0.0), {label: [] for label in labels})


def _obstacle(job: BatchJob) -> str | None:
    """Why the pass of a batch is not to be recorded, or None."""
    if not all(one.method.family in _RECORDED and one.method.takes == "trace" for one in job.methods):
        return "a method runs the model itself"
    if job.settings.keep:
        return "intermediate results are kept"
    if job.settings.places is not None:
        return "attention of windows is stitched"
    if callable(job.target):
        return "the target is a function"
    if not pays(job.structure, job.model_inputs.batch, some_weight(job.about.module).dtype):
        return "computing takes much longer than launching"
    if output_count(job.about.module) is None:
        return "the number of classes is unknown"
    return None


def _class_rows(job: BatchJob, count: int) -> tuple[tuple[int, ...], ...] | None:
    """The classes of each input, or None where there are groups of them."""
    target, batch = job.target, job.model_inputs.batch
    if type(target) is int and 0 <= target < count:
        return ((target,),) * batch
    aimed = resolve_target(target, torch.empty(batch, count), batch, job.about.classes)
    return None if aimed.groups or aimed.classes is None else tuple(map(tuple, aimed.classes.tolist()))
