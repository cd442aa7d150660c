"""Run several methods on a batch of inputs: one forward pass, and backward passes that methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture import cuda_graphs
from vitrail.capture.cuda_graphs import recordable
from vitrail.capture.forward import ForwardPass, check_finite, forward_only, forward_pass, without_ends
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits, output_count
from vitrail.capture.probe import Probe, ProbedTrace, Scorer
from vitrail.capture.swin import Places, stitched_layout
from vitrail.capture.swin import stitch as join_windows
from vitrail.capture.trace import Needs, Trace
from vitrail.class_group import ClassGroup
from vitrail.errors import InputError, ModelError, OptionError
from vitrail.explanation import Explanation, number_groups_alike
from vitrail.method_jobs import MethodJob
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.postprocess import to_maps
from vitrail.targets import ResolvedTarget, Target, class_scores, resolve_target, target_labels, top_count

#: Images in one forward pass of methods that evaluate many, where the user sets no limit.
MOST = 32


@dataclass(frozen=True)
class PassSettings:
    """Settings of one call.

    Attributes:
        most: Images in one forward pass of methods that evaluate many.
        keep: Whether intermediate results are kept.
        advance: Called with the number of images a method has just evaluated.
        places: Where the windows of a model lie, if their attention is stitched.
    """

    most: int
    keep: bool
    advance: Callable[[int], None]
    places: Places | None

    def stitched(self, trace: Trace) -> Trace:
        """The pass, with window attention stitched where requested."""
        return trace if self.places is None else join_windows(trace, self.places)

    def shown(self, structure: ModelStructure) -> ModelStructure:
        """The structure whose layout the maps have: that of the stitched windows where requested."""
        return structure if self.places is None else replace(structure, layout=stitched_layout(self.places))


@dataclass(frozen=True)
class _Computed:
    """What was computed for one batch.

    Attributes:
        maps: For each method its maps, grids and which maps are constant.
        classes: Classes of the targets, shape (b, K), or None where the target is a function.
        groups: Groups of classes among the targets.
        logits: What the model said, shape (b, C), or None.
        own: Seconds of each method.
        parts: Notes of each method.
    """

    maps: list[tuple[Tensor, Tensor, Tensor]]
    classes: Tensor | None
    groups: tuple[ClassGroup, ...]
    logits: Tensor | None
    own: dict[str, float]
    parts: dict[str, list[dict[str, Any]]]


#: Families of methods whose passes are recorded.
_RECORDED = ("attention", "gradient", "relevance")


def split_inputs(model_inputs: ModelInputs, target: Target, size: int | None) -> list[tuple[ModelInputs, Target]]:
    """The inputs in pieces, each with its targets."""
    batch = model_inputs.batch
    if size is None or size >= batch:
        return [(model_inputs, target)]
    if size < 1:
        raise OptionError(f"batch_size={size} must be at least 1")
    several = isinstance(target, Sequence) or (isinstance(target, Tensor | np.ndarray) and target.ndim > 0)
    each = several and not isinstance(target, str) and len(target) == batch  # type: ignore[arg-type]
    return [
        (model_inputs.select(slice(i, i + size)), target[i : i + size] if each else target)  # type: ignore[index]
        for i in range(0, batch, size)
    ]


def explain_batch(
    about: LoadedModel,
    model_inputs: ModelInputs,
    target: Target,
    structure: ModelStructure,
    jobs: Sequence[MethodJob],
    run: PassSettings,
) -> dict[str, Explanation]:
    """Run all methods on one batch; on a GPU by a recorded pass where there is one."""
    started = perf_counter()
    computed = _recorded(about, model_inputs, target, structure, jobs, run)
    if computed is None:
        computed = _compute(about, model_inputs, target, structure, jobs, run)
    spent = perf_counter() - started - sum(computed.own.values())
    structure = run.shown(structure)
    common: dict[str, Any] = {
        "targets": computed.classes, "groups": computed.groups, "logits": computed.logits,
        "target_labels": target_labels(target),
        "model": about.name, "classes": about.classes,
        "images": model_inputs.image, "structure": dict(structure.rows()),
        "preprocess": about.preprocess if isinstance(about.preprocess, Preprocess) else None,
    }  # fmt: skip
    return {
        job.label: Explanation(
            method=job.label, title=job.method.title, maps=maps, grid=grid, constant=constant, options=job.options,
            signed=job.method.is_signed(job.options), seconds=spent + computed.own[job.label],
            intermediates=_merge(computed.parts[job.label]), **common,
        )
        for job, (maps, grid, constant) in zip(jobs, computed.maps, strict=True)
    }  # fmt: skip


def _recorded(
    about: LoadedModel,
    model_inputs: ModelInputs,
    target: Target,
    structure: ModelStructure,
    jobs: Sequence[MethodJob],
    run: PassSettings,
) -> _Computed | None:
    """Run all methods by a recorded pass, see `vitrail.capture.cuda_graphs`; None where it is not to be recorded."""
    tensors = model_inputs.tensors
    fixed = all(job.method.family in _RECORDED and job.method.takes == "trace" for job in jobs)
    if not fixed or run.keep or run.places is not None or callable(target) or not recordable(about.module, tensors):
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
    methods = tuple((job.label, job.method.compute, repr(job.options)) for job in jobs)
    key = (id(structure), target if not named else "classes", run.most, methods, tuple(model_inputs.kwargs), repr(rest))

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ModelStructure]]:
        own, evaluated = model_inputs, list[int]()
        for old, new in zip(model_inputs.tensors, given, strict=not named):
            own = own.swap(old, new)
        quiet = replace(run, advance=evaluated.append)
        found = _compute(about, own, target, structure, jobs, quiet, given[-1] if named else None)
        assert found.classes is not None and found.logits is not None  # noqa: PT018
        # The structure is kept with the recording, lest another one come to have its id.
        return [found.classes, found.logits, *chain.from_iterable(found.maps)], (sum(evaluated), structure)

    (classes, logits, *maps), (evaluated, _) = cuda_graphs.run(about.module, key, tensors, compute)
    check_finite(about.module, logits)
    if evaluated:
        run.advance(evaluated)
    labels = [job.label for job in jobs]
    triples = list(zip(maps[::3], maps[1::3], maps[2::3], strict=True))
    return _Computed(triples, classes, (), logits, dict.fromkeys(labels, 0.0), {label: [] for label in labels})


def _compute(
    about: LoadedModel,
    model_inputs: ModelInputs,
    target: Target,
    structure: ModelStructure,
    jobs: Sequence[MethodJob],
    run: PassSettings,
    classes: Tensor | None = None,
) -> _Computed:
    """Run all methods: one forward pass, and one backward pass for each target and kind of score.

    ``classes``, shape (b, K), are the classes of the target where they are known.
    """
    relevance: dict[str, list[Tensor]] = {job.label: [] for job in jobs}
    own: dict[str, float] = dict.fromkeys(relevance, 0.0)
    parts: dict[str, list[dict[str, Any]]] = {job.label: [] for job in jobs}
    by_trace = [job for job in jobs if job.method.takes == "trace"]
    needs = [job.method.needed(job.options) for job in jobs]
    # Methods that only need the model's output, or take passes of their own, need no capture; how the head of a model
    # of texts reads its tokens is measured in the pass.
    alone = not any(needs) and (not by_trace or (model_inputs.image is not None and bool(structure.layers)))
    with ExitStack() as stack:
        open_pass = forward_only if alone else partial(_forward, stack, needs)
        one = open_pass(about.module, model_inputs, structure)
        logits = class_logits(about.module, one.output)
        aimed = _aimed(target, classes, one.output, model_inputs.batch, about.classes, logits)
        # Perturbed inputs are evaluated in the model's own precision, so a pass under autocast is not reused. Neither
        # is one with a graph, which would stay in memory.
        again = not by_trace and not torch.is_autocast_enabled(model_inputs.tensors[0].device.type)
        probe = Probe(
            about.module,
            model_inputs,
            structure,
            _scorer(about.module, aimed, target),
            aimed.count,
            aimed.classes,
            aimed.groups,
            most=run.most,
            seen=one if again else None,
            shared=one if by_trace else None,
        )
        agnostic = run.stitched(one.trace()) if by_trace else None
        for job in by_trace:
            if job.round is None and job.method.class_specific:
                relevance[job.label] = [_timed(job, agnostic, probe.of(k), own, parts, run) for k in range(aimed.count)]
            elif job.round is None:
                relevance[job.label] = [_timed(job, agnostic, probe, own, parts, run)] * aimed.count
                parts[job.label] *= aimed.count
        probe.propagations.clear()
        rounds = [(k, r) for k in range(aimed.count) for r in dict.fromkeys(job.round for job in by_trace) if r]
        for k, (score, cut) in rounds:
            last = (k, (score, cut)) == rounds[-1]
            keep_graph = not last or one.ended is not None
            trace = run.stitched(one.trace(aimed.scalar(k, score), keep_graph=keep_graph, cut=cut))
            for job in by_trace:
                if job.round == (score, cut):
                    relevance[job.label].append(_timed(job, trace, probe.of(k), own, parts, run))
        probe.propagations.clear()
        if not cuda_graphs.recording():
            check_finite(about.module, one.logits)
    for job in jobs:
        if job.method.takes == "probe":
            relevance[job.label] = list(_timed(job, None, probe, own, parts, run).unbind(1))
    joined = {label: torch.stack(r, 1) for label, r in relevance.items()}
    maps = _finish(jobs, joined, run.shown(structure), model_inputs)
    return _Computed(maps, aimed.classes, aimed.groups, one.logits, own, parts)


def _aimed(
    target: Target, classes: Tensor | None, output: Any, batch: int, names: Sequence[str] | None, logits: Tensor | None
) -> ResolvedTarget:
    """The target for a batch; where its classes are known already, nothing is read from the device."""
    if classes is not None:
        return ResolvedTarget(classes, None, logits)
    return resolve_target(target, logits, batch, names, output)


def _forward(
    stack: ExitStack, needs: list[Needs], model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure
) -> ForwardPass:
    """The shared pass; what the model returns if it ends earlier is left out where its last layers do not allow it."""
    try:
        return stack.enter_context(forward_pass(model, model_inputs, structure, needs))
    except (RuntimeError, ModelError, InputError):
        # The rest of a model that puts tokens back on a grid may remember how many images there were.
        if not any("ended" in need for need in needs):
            raise
    return stack.enter_context(forward_pass(model, model_inputs, structure, without_ends(needs)))


def _scorer(model: nn.Module, aimed: ResolvedTarget, target: Target) -> Scorer:
    """All targets as a function of the model's output for any images made from the inputs."""

    def score(output: Any, owner: Tensor, kind: str) -> Tensor:
        if callable(target):
            values = target(output)
            return values[:, None] if values.dim() == 1 else values
        assert aimed.classes is not None
        logits = class_logits(model, output)
        assert logits is not None
        return class_scores(logits, kind, aimed.groups).gather(1, aimed.classes[owner])

    return score


def _timed(
    job: MethodJob,
    trace: Trace | None,
    probe: Probe,
    own: dict[str, float],
    parts: dict[str, list[dict[str, Any]]],
    run: PassSettings,
) -> Tensor:
    """Run a method on what it takes, and keep its notes if they are wanted."""
    began = perf_counter()
    if job.method.family != "relevance":
        probe.propagations.clear()
    notes: dict[str, list[Any]] | None = {} if run.keep else None
    own_probe = replace(probe, score=job.score or "prob", notes=notes, advance=run.advance)
    given = own_probe if trace is None else ProbedTrace.of(trace, own_probe, notes)
    with torch.no_grad(), torch.autocast(probe.model_inputs.tensors[0].device.type, enabled=False):
        relevance = job.method.apply(given, job.options)
    own[job.label] += perf_counter() - began
    if notes is not None:
        parts[job.label].append(notes)
    return relevance


def _merge(notes: list[dict[str, list[Any]]]) -> dict[str, list[list[Any]]]:
    """What was noted for each target, as name → target → notes in order."""
    return {name: [note[name] for note in notes] for name in (notes[0] if notes else ())}


def _finish(
    jobs: Sequence[MethodJob], relevance: Mapping[str, Tensor], structure: ModelStructure, model_inputs: ModelInputs
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Relevance by each method as maps, grids and which maps say nothing; methods alike in shape go together."""
    finished: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    kinds: dict[Any, list[MethodJob]] = {}
    for job in jobs:
        if len(relevance[job.label]) != model_inputs.batch:
            raise ModelError(
                f"{job.label} gave {len(relevance[job.label])} maps for {model_inputs.batch} inputs: "
                f"{structure.model} splits its inputs into several rows; use a method that needs only the model's "
                "outputs, such as rise or occlusion"
            )
        kinds.setdefault((relevance[job.label].shape, job.method.is_signed(job.options)), []).append(job)
    for (_, signed), alike in kinds.items():
        joined = torch.stack([relevance[job.label] for job in alike])
        for job, *triple in zip(alike, *to_maps(joined, signed, structure, model_inputs), strict=True):
            finished[job.label] = (triple[0], triple[1], triple[2])
    return [finished[job.label] for job in jobs]


def join_batches(pieces: list[Explanation]) -> Explanation:
    """Explanations of consecutive inputs as one."""
    if len(pieces) == 1:
        return pieces[0]

    def cat(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else torch.cat(parts)

    pieces = number_groups_alike(pieces)
    joined = {name: cat(name) for name in ("maps", "grid", "targets", "logits", "constant", "images")}
    names = pieces[0].intermediates
    kept = {name: [values for piece in pieces for values in piece.intermediates[name]] for name in names}
    return replace(pieces[0], **joined, intermediates=kept, seconds=sum(p.seconds for p in pieces))
