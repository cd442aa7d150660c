"""Run several methods on a batch of inputs by a pass that was recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from vitrail.capture import cuda_graphs
from vitrail.capture.forward import check_finite
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import output_count
from vitrail.capture.recorded_forward import pays
from vitrail.capture.row_choice import some_weight
from vitrail.shared_pass import BatchJob, ComputedBatch, compute_batch
from vitrail.targets import resolve_target, top_count

#: Families of methods whose passes are recorded.
_RECORDED = ("attention", "gradient", "relevance")


def recorded_batch(job: BatchJob) -> ComputedBatch | None:
    """Run all methods by a recorded pass, see `vitrail.capture.cuda_graphs`; None where it is not to be recorded."""
    about, model_inputs, target, structure = job.about, job.model_inputs, job.target, job.structure
    run = job.settings
    tensors = model_inputs.tensors
    fixed = all(one.method.family in _RECORDED and one.method.takes == "trace" for one in job.methods)
    if (
        not fixed
        or run.keep
        or run.places is not None
        or callable(target)
        or not cuda_graphs.recordable(about.module, tensors)
    ):
        return None
    if not pays(structure, model_inputs.batch, some_weight(about.module).dtype):
        return None
    named = target is not None and not top_count(target)
    count = output_count(about.module)
    if named and count is not None:
        # Classes are an input of the recording, which serves all of them.
        empty = torch.empty(model_inputs.batch, count)
        aimed = resolve_target(target, empty, model_inputs.batch, about.classes)
        if aimed.groups or aimed.classes is None:
            return None
        tensors = [*tensors, aimed.classes.contiguous().to(tensors[0].device)]
    elif named:
        return None
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
        # The structure is kept with the recording, lest another one come to have its id.
        return [found.classes, found.logits, *chain.from_iterable(found.maps)], (sum(evaluated), structure)

    (classes, logits, *maps), (evaluated, _) = cuda_graphs.run(about.module, key, tensors, compute)
    check_finite(about.module, logits)
    if evaluated:
        run.advance(evaluated)
    labels = [one.label for one in job.methods]
    triples = list(zip(maps[::3], maps[1::3], maps[2::3], strict=True))
    return ComputedBatch(triples, classes, (), logits, dict.fromkeys(labels, 0.0), {label: [] for label in labels})
