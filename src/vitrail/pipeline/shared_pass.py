"""Run several methods on a batch of inputs: one forward pass, and backward passes that methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.early_replay import EarlyReplay
from vitrail.capture.forward import ForwardPass, check_finite, forward_only, forward_pass, without_ends
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.recorded_forward import recorded_pass
from vitrail.capture.trace import Needs, Trace
from vitrail.capture.window_positions import Places, stitched_layout
from vitrail.capture.window_positions import stitch as join_windows
from vitrail.errors import InputError, ModelError
from vitrail.fast import recordings
from vitrail.inputs.targets import ResolvedTarget, Target, class_scores, resolve_target
from vitrail.methods.postprocess import to_maps
from vitrail.methods.probe import Probe, ProbedTrace, Scorer
from vitrail.models import LoadedModel
from vitrail.models.class_group import ClassGroup
from vitrail.pipeline.method_jobs import MethodJob

#: Images in one forward pass of methods that evaluate many, where the user sets no limit.
MOST = 32
#: Attention of at most this many tokens leaves a GPU room for twice as many.
FEW_TOKENS = 256


@dataclass(frozen=True)
class ResultFlags:
    """What is to be checked of the results of a pass, read from its device at once.

    Attributes:
        model: The model.
        logits: What it said, shape (b, C).
        values: Whether all logits are finite, and for each method whether a map is constant, shape (1 + methods,).
    """

    model: nn.Module
    logits: Tensor
    values: Tensor

    @staticmethod
    def of(logits: Tensor, constant: Sequence[Tensor]) -> Tensor:
        """The values."""
        return torch.stack([torch.isfinite(logits).all(), *(one.any() for one in constant)])

    def wait(self) -> bool:
        """Wait for the results; refuse logits that are not finite. Returns whether any map is constant."""
        finite, *constant = self.values.tolist()
        if not finite:
            check_finite(self.model, self.logits)
        return any(constant)


@dataclass(frozen=True)
class PassSettings:
    """Settings of one call.

    Attributes:
        most: Images in one forward pass of methods that evaluate many.
        keep: Whether intermediate results are kept.
        advance: Called with the number of images a method has just evaluated.
        places: Where the windows of a model lie, if their attention is stitched.
        early: The replay of a recorded pass that may be under way.
        flags: Where recorded passes put what is still to be checked of their results; None to check it at once.
    """

    most: int
    keep: bool
    advance: Callable[[int], None]
    places: Places | None
    early: EarlyReplay | None = None
    flags: list[ResultFlags] | None = None

    def stitched(self, trace: Trace) -> Trace:
        """The pass, with window attention stitched where requested."""
        return trace if self.places is None else join_windows(trace, self.places)

    def shown(self, structure: ModelStructure) -> ModelStructure:
        """The structure whose layout the maps have: that of the stitched windows where requested."""
        return structure if self.places is None else replace(structure, layout=stitched_layout(self.places))


@dataclass(frozen=True)
class BatchJob:
    """What to compute for one batch.

    Attributes:
        about: The model, with what is known of it.
        model_inputs: Inputs on the model's device.
        target: What to explain.
        structure: The model's structure.
        methods: Methods with their options.
        settings: Settings of the call.
    """

    about: LoadedModel
    model_inputs: ModelInputs
    target: Target
    structure: ModelStructure
    methods: Sequence[MethodJob]
    settings: PassSettings


@dataclass(frozen=True)
class ComputedBatch:
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


def most_images(structure: ModelStructure, device: torch.device) -> int:
    """How many images methods that evaluate many put into one forward pass, where the user sets no limit."""
    few = all(layer.size[1] <= FEW_TOKENS for layer in structure.layers)
    return 2 * MOST if device.type == "cuda" and few else MOST


def compute_batch(job: BatchJob, classes: Tensor | None = None) -> ComputedBatch:
    """Run all methods: one forward pass, and one backward pass for each target and kind of score.

    ``classes``, shape (b, K), are the classes of the target where they are known.
    """
    about, model_inputs, target, structure = job.about, job.model_inputs, job.target, job.structure
    methods, run = job.methods, job.settings
    relevance: dict[str, list[Tensor]] = {one.label: [] for one in methods}
    own: dict[str, float] = dict.fromkeys(relevance, 0.0)
    parts: dict[str, list[dict[str, Any]]] = {one.label: [] for one in methods}
    by_trace = [one for one in methods if one.method.takes == "trace"]
    needs = [one.method.needed(one.options) for one in methods]
    # Methods that only need the model's output, or take passes of their own, need no capture; how the head of a model
    # of texts reads its tokens is measured in the pass.
    alone = not any(needs) and (not by_trace or (model_inputs.image is not None and bool(structure.layers)))
    with ExitStack() as stack:
        shared = None
        if not by_trace and not callable(target):
            shared = recorded_pass(about.module, model_inputs, structure, needs)
        if shared is None:
            open_pass = forward_only if alone else partial(_forward, stack, needs)
            shared = open_pass(about.module, model_inputs, structure)
        logits = class_logits(about.module, shared.output)
        aimed = _aimed(target, classes, shared.output, model_inputs.batch, about.classes, logits)
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
            seen=shared if again else None,
            shared=shared if by_trace else None,
        )
        agnostic = run.stitched(shared.trace()) if by_trace else None
        for one in by_trace:
            if one.round is None and one.method.class_specific:
                relevance[one.label] = [_timed(one, agnostic, probe.of(k), own, parts, run) for k in range(aimed.count)]
            elif one.round is None:
                relevance[one.label] = [_timed(one, agnostic, probe, own, parts, run)] * aimed.count
                parts[one.label] *= aimed.count
        probe.propagations.clear()
        rounds = [(k, r) for k in range(aimed.count) for r in dict.fromkeys(one.round for one in by_trace) if r]
        for k, (score, cut) in rounds:
            last = (k, (score, cut)) == rounds[-1]
            keep_graph = not last or shared.ended is not None
            trace = run.stitched(shared.trace(aimed.scalar(k, score), keep_graph=keep_graph, cut=cut))
            for one in by_trace:
                if one.round == (score, cut):
                    relevance[one.label].append(_timed(one, trace, probe.of(k), own, parts, run))
        probe.propagations.clear()
        if not recordings.recording():
            check_finite(about.module, shared.logits)
    for one in methods:
        if one.method.takes == "probe":
            relevance[one.label] = list(_timed(one, None, probe, own, parts, run).unbind(1))
    joined = {label: torch.stack(r, 1) for label, r in relevance.items()}
    maps = _finish(methods, joined, run.shown(structure), model_inputs)
    return ComputedBatch(maps, aimed.classes, aimed.groups, shared.logits, own, parts)


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
