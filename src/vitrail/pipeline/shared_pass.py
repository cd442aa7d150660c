"""Run several methods on a batch of inputs: one forward pass, and backward passes that methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.confirm import examine, require_agreement
from vitrail.capture.finite import check_finite
from vitrail.capture.forward import forward_only, forward_pass, input_graph_pass, without_ends
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.kept_pass import ForwardPass
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import target_values
from vitrail.capture.outputs import class_logits
from vitrail.capture.recorded_forward import recorded_pass
from vitrail.capture.trace import Needs, Trace
from vitrail.capture.window_positions import stitch as join_windows
from vitrail.errors import InputError, ModelError, StructureDiffersError
from vitrail.inputs.targets import ResolvedTarget, Target, class_scores, resolve_target
from vitrail.methods.input_probe import Scorer
from vitrail.methods.postprocess import to_maps
from vitrail.methods.probe import Probe, ProbedTrace
from vitrail.methods.propagation_cache import PropagationCache
from vitrail.models.class_group import ClassGroup
from vitrail.pipeline.method_job import MethodJob
from vitrail.pipeline.prepared_model import PreparedModel
from vitrail.targets.bound_targets import BoundTargets, PinnedTargets, TargetRecord

#: Images in one forward pass of methods that evaluate many, where the user sets no limit.
MOST = 32
#: Attention of at most this many tokens leaves a GPU room for twice as many.
FEW_TOKENS = 256


@dataclass(frozen=True)
class ResultFlags:
    """Checks of the results of a pass, computed on its device and read at once.

    Attributes:
        model: The model.
        logits: Its class scores, shape (b, C).
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
        max_batch: Most images in one forward pass of methods that evaluate many.
        keep: Whether intermediate results are kept.
        advance: Called with the number of images a method has just evaluated.
        flags: Where recorded passes put the flags of their results; None to wait for them at once.
    """

    max_batch: int
    keep: bool
    advance: Callable[[int], None]
    flags: list[ResultFlags] | None = None


@dataclass(frozen=True)
class BatchJob:
    """What to compute for one batch.

    Attributes:
        prepared: The model with the inputs of the batch.
        target: What to explain.
        methods: Methods with their options.
        settings: Settings of the call.
    """

    prepared: PreparedModel
    target: Target
    methods: Sequence[MethodJob]
    settings: PassSettings

    def stitched(self, trace: Trace) -> Trace:
        """The pass, with window attention stitched where requested."""
        positions = self.prepared.window_positions
        return trace if positions is None else join_windows(trace, positions)


@dataclass(frozen=True)
class ComputedBatch:
    """What was computed for one batch.

    Attributes:
        maps: For each method its maps, grids and which maps are constant.
        classes: Classes of the targets, shape (b, K), or None where the target is a function.
        groups: Groups of classes among the targets.
        logits: Class scores, shape (b, C), or None.
        method_seconds: Seconds of each method.
        intermediates: Intermediate results of each method, for each target.
        records: Named targets of each image, or None.
    """

    maps: list[tuple[Tensor, Tensor, Tensor]]
    classes: Tensor | None
    groups: tuple[ClassGroup, ...]
    logits: Tensor | None
    method_seconds: dict[str, float]
    intermediates: dict[str, list[dict[str, Any]]]
    records: tuple[tuple[TargetRecord, ...], ...] | None = None


def default_max_batch(structure: ModelStructure, device: torch.device) -> int:
    """How many images methods that evaluate many put into one forward pass, where the user sets no limit."""
    few = all(layer.size[1] <= FEW_TOKENS for layer in structure.layers)
    return 2 * MOST if device.type == "cuda" and few else MOST


def compute_batch(job: BatchJob, classes: Tensor | None = None) -> ComputedBatch:
    """Run all methods: one forward pass, and one backward pass for each target and kind of score.

    ``classes``, shape (b, K), are the classes of the target where they are known.
    """
    module, inputs, structure = job.prepared.module, job.prepared.inputs, job.prepared.structure
    relevance: dict[str, list[Tensor]] = {one.label: [] for one in job.methods}
    timer = MethodTimer(job)
    by_trace = [one for one in job.methods if one.method.takes == "trace"]
    with ExitStack() as stack:
        propagations = PropagationCache()
        shared = _shared_forward(job, by_trace, propagations, stack)
        logits = class_logits(module, shared.output)
        target = job.target.pinned(shared.output) if isinstance(job.target, BoundTargets) else job.target
        resolved = _resolved(replace(job, target=target), classes, shared.output, logits)
        by_order = any(one.method.reads_order for one in job.methods)
        examine(shared, () if resolved.values is None else resolved.values.unbind(1), by_order)
        require_agreement(shared)
        # Perturbed inputs are evaluated in the model's own precision, so a pass under autocast is not reused. Neither
        # is one with a graph, which would stay in memory.
        reusable = not by_trace and not torch.is_autocast_enabled(inputs.tensors[0].device.type)
        probe = Probe(
            module, inputs, structure, _scorer(module, resolved, target), resolved.count, resolved.classes,
            resolved.groups, max_batch=job.settings.max_batch, seen=shared if reusable else None,
            shared=shared if by_trace else None, propagations=propagations,
            removal_scorer=_removal_scorer(module, resolved, target),
        )  # fmt: skip
        without_backward = [one for one in by_trace if one.round is None]
        traces = _traces_without_gradient(job, shared, resolved, by_trace)
        for one in without_backward:
            if one.method.class_specific or len(traces) > 1:
                relevance[one.label] = [
                    timer.run(one, traces[k % len(traces)], probe.of(k)) for k in range(resolved.count)
                ]
            else:
                relevance[one.label] = [timer.run(one, traces[0], probe)] * resolved.count
                timer.intermediates[one.label] *= resolved.count
        probe.propagations.clear()
        rounds = [(k, r) for k in range(resolved.count) for r in dict.fromkeys(one.round for one in by_trace) if r]
        for k, (score, cut) in rounds:
            last = (k, (score, cut)) == rounds[-1]
            keep_graph = not last or shared.truncated is not None
            trace = job.stitched(shared.trace(resolved.scalar(k, score), keep_graph=keep_graph, cut=cut))
            trace = replace(trace, probability=resolved.probability(k))
            for one in by_trace:
                if one.round == (score, cut):
                    relevance[one.label].append(timer.run(one, trace, probe.of(k)))
        probe.propagations.clear()
        require_agreement(shared)
        if not fast.recording():
            check_finite(module, shared.logits)
    for one in job.methods:
        if one.method.takes == "probe":
            found = timer.run(one, None, probe).unbind(1)
            relevance[one.label] = (
                [_on_seen_tokens(r, traces[k % len(traces)]) for k, r in enumerate(found)] if (traces) else list(found)
            )
    joined = {label: torch.stack(r, 1) for label, r in relevance.items()}
    maps = _to_maps(job.methods, joined, job.prepared.shown_structure, inputs)
    records = target.records if isinstance(target, PinnedTargets) else None
    return ComputedBatch(
        maps, resolved.classes, resolved.groups, shared.logits, timer.seconds, timer.intermediates, records
    )


def _traces_without_gradient(
    job: BatchJob, shared: ForwardPass, resolved: ResolvedTarget, by_trace: Sequence[MethodJob]
) -> list[Trace]:
    """The pass without gradients: one for all targets, or one for each where they are functions of the output.

    How the tokens are read, and which of them can be read at all, depends on such a function. Methods that evaluate
    perturbed inputs need to know the latter.
    """
    if not shared.blocks and any(one.method.rules for one in by_trace):  # a pass under relevance rules
        return [job.stitched(shared.trace())]
    perturbs = any(one.method.takes == "probe" for one in job.methods)
    if not shared.blocks or not ((shared.allowed and perturbs) or any(one.round is None for one in by_trace)):
        return []
    if resolved.values is None or not shared.structure.layers:
        return [job.stitched(shared.trace())]
    return [job.stitched(shared.trace(read=resolved.values[:, k])) for k in range(resolved.count)]


def _on_seen_tokens(relevance: Tensor, trace: Trace) -> Tensor:
    """No relevance for tokens that the target cannot depend on; relevance of tokens has shape (b, S)."""
    if trace.valid is None or relevance.dim() != 2:
        return relevance
    valid = trace.patches(trace.valid)  # one row for all examples where they share their masks
    fits = valid.shape[1] == relevance.shape[1] and valid.shape[0] in (1, relevance.shape[0])
    return relevance.masked_fill(~valid, 0.0) if fits else relevance


def _input_gradients_alone(job: BatchJob) -> bool:
    """Whether a function is explained by its gradient at the input alone, so that one graph serves target and map."""
    inputs, structure = job.prepared.inputs, job.prepared.structure
    # No gradient reaches tokens behind those that a causal model reads; padding needs the masks of a captured pass.
    prompt = inputs.words is not None and structure.causal and structure.kind == "plain" and inputs.valid is None
    few = (inputs.signal is not None or prompt) and inputs.batch <= job.settings.max_batch
    plain = not torch.is_autocast_enabled(inputs.tensors[0].device.type)
    return callable(job.target) and few and plain and all(one.method.name == "gradient_x_input" for one in job.methods)


def _shared_forward(
    job: BatchJob, by_trace: Sequence[MethodJob], propagations: PropagationCache, stack: ExitStack
) -> ForwardPass:
    """The forward pass that all methods share, with what they need of it."""
    module, inputs, structure = job.prepared.module, job.prepared.inputs, job.prepared.structure
    needs = [one.method.needed(one.options, structure.streams is not None) for one in job.methods]
    if not by_trace and not callable(job.target):
        recorded = recorded_pass(module, inputs, structure, needs)
        if recorded is not None:
            return recorded
    # Methods that only need the model's output, or take passes of their own, need no capture. How the head reads the
    # tokens, and which tokens it can depend on, is measured in the pass; methods that perturb patches rely on their
    # order, which is confirmed there.
    outputs_alone = all(one.method.applies.reads == "outputs" and one in by_trace for one in job.methods)
    outputs_alone = outputs_alone and not (structure.masked and structure.kind == "plain")
    alone = input_graph_pass(module, inputs, structure) if _input_gradients_alone(job) else None
    if alone is not None:
        return alone
    if not any(needs) and (outputs_alone or not structure.layers):
        return forward_only(module, inputs, structure)
    tables = [one.method.rule_set(one.options, inputs.words is not None) for one in job.methods]
    if not any(needs) and tables and tables[0] is not None and all(tables):
        # A pass under relevance rules gives the output and confirms the structure; the first method goes on with it.
        found = propagations.output_pass(module, inputs, structure, tables[0], callable(job.target))
        if found is not None:
            return found
    return _captured_forward(stack, needs, callable(job.target), job.prepared)


def _resolved(job: BatchJob, classes: Tensor | None, output: Any, logits: Tensor | None) -> ResolvedTarget:
    """The target for a batch; where its classes are known already, nothing is read from the device."""
    if classes is not None:
        return ResolvedTarget(classes, None, logits, scores=job.prepared.scores)
    prepared = job.prepared
    names, batch = prepared.loaded.classes, prepared.inputs.batch
    return resolve_target(job.target, logits, batch, names, output, prepared.scores)


def _captured_forward(stack: ExitStack, needs: list[Needs], whole_graph: bool, prepared: PreparedModel) -> ForwardPass:
    """The shared pass; truncated outputs are left out where the model's last layers do not allow them."""

    def run(wanted: list[Needs]) -> ForwardPass:
        given = (prepared.module, prepared.inputs, prepared.structure)
        return stack.enter_context(forward_pass(*given, wanted, confirm=True, whole_graph=whole_graph))

    try:
        return run(needs)
    except StructureDiffersError:
        raise
    except (RuntimeError, ModelError, InputError):
        # The rest of a model that puts tokens back on a grid may remember how many images there were.
        if not any("truncated" in need for need in needs):
            raise
    return run(without_ends(needs))


def _scorer(model: nn.Module, resolved: ResolvedTarget, target: Target) -> Scorer:
    """All targets as a function of the model's output for any images made from the inputs."""

    def score(output: Any, owner: Tensor, kind: str) -> Tensor:
        if callable(target):
            values = target(output, owner) if isinstance(target, PinnedTargets) else target_values(target, output)
            return values[:, None] if values.dim() == 1 else values
        assert resolved.classes is not None
        logits = class_logits(model, output)
        assert logits is not None
        graph = logits.requires_grad and torch.is_grad_enabled()
        if kind != "logit" and not graph and logits.device.type != "mps":  # which has no double precision
            logits = logits.double()  # differences of probabilities of nearly one are lost in single precision
        return class_scores(logits, kind, resolved.groups, resolved.scores).gather(1, resolved.classes[owner])

    return score


def _removal_scorer(model: nn.Module, resolved: ResolvedTarget, target: Target) -> Scorer | None:
    """The same for methods that remove parts of the input, where a target has another value for these."""
    return _scorer(model, resolved, target.for_removal()) if isinstance(target, PinnedTargets) else None


class MethodTimer:
    """Runs methods, and keeps their seconds and intermediate results.

    Attributes:
        seconds: Seconds of each method.
        intermediates: Intermediate results of each method, for each target, if they are kept.
    """

    def __init__(self, job: BatchJob) -> None:
        self._settings = job.settings
        self.seconds = dict.fromkeys((one.label for one in job.methods), 0.0)
        self.intermediates: dict[str, list[dict[str, Any]]] = {one.label: [] for one in job.methods}

    def run(self, job: MethodJob, trace: Trace | None, probe: Probe) -> Tensor:
        """Relevance by a method."""
        began = perf_counter()
        if job.method.family != "relevance":
            probe.propagations.clear()
        notes: dict[str, list[Any]] | None = {} if self._settings.keep else None
        method_probe = replace(probe, score=job.score or "prob", notes=notes, advance=self._settings.advance)
        if job.method.family == "perturbation" and probe.removal_scorer is not None:
            method_probe = replace(method_probe, scorer=probe.removal_scorer)
        given = method_probe if trace is None else ProbedTrace.of(trace, method_probe, notes)
        with torch.no_grad(), fast.without_autocast(probe.model_inputs.tensors[0].device):
            relevance = job.method.apply(given, job.options)
            relevance = relevance if trace is None else _on_seen_tokens(relevance, trace)
        self.seconds[job.label] += perf_counter() - began
        if notes is not None:
            self.intermediates[job.label].append(notes)
        return relevance


def _to_maps(
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
