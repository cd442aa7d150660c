"""Run several methods on a batch of inputs: one forward pass, and backward passes that methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture.forward import check_finite, forward_only, forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.probe import Probe, ProbedTrace, Scorer
from vitrail.capture.swin import Places, stitched_layout
from vitrail.capture.swin import stitch as join_windows
from vitrail.capture.trace import Trace
from vitrail.errors import ModelError, OptionError
from vitrail.explanation import Explanation, number_groups_alike
from vitrail.method_jobs import MethodJob
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.postprocess import to_maps
from vitrail.targets import ResolvedTarget, Target, class_scores, resolve_target, target_labels

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
    """Run all methods on one batch: one forward pass, and one backward pass for each target and kind of score."""
    started = perf_counter()
    relevance: dict[str, list[Tensor]] = {job.label: [] for job in jobs}
    own: dict[str, float] = dict.fromkeys(relevance, 0.0)
    parts: dict[str, list[dict[str, Any]]] = {job.label: [] for job in jobs}
    by_trace = [job for job in jobs if job.method.takes == "trace"]
    needs = [job.method.needed(job.options) for job in jobs]
    # Methods that only need the model's output need no capture.
    outside = (
        nullcontext(forward_only(about.module, model_inputs, structure)) if not by_trace and not any(needs) else None
    )
    with outside or forward_pass(about.module, model_inputs, structure, needs) as one:
        logits = class_logits(about.module, one.output)
        aimed = resolve_target(target, logits, model_inputs.batch, about.classes, one.output)
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
            trace = run.stitched(one.trace(aimed.scalar(k, score), keep_graph=not last, cut=cut))
            for job in by_trace:
                if job.round == (score, cut):
                    relevance[job.label].append(_timed(job, trace, probe.of(k), own, parts, run))
        probe.propagations.clear()
        check_finite(about.module, one.logits)
    for job in jobs:
        if job.method.takes == "probe":
            relevance[job.label] = list(_timed(job, None, probe, own, parts, run).unbind(1))
    shared = perf_counter() - started - sum(own.values())
    structure = run.shown(structure)
    finished = _finish(jobs, {label: torch.stack(r, 1) for label, r in relevance.items()}, structure, model_inputs)
    common: dict[str, Any] = {
        "targets": aimed.classes, "groups": aimed.groups, "logits": one.logits, "target_labels": target_labels(target),
        "model": about.name, "classes": about.classes,
        "images": model_inputs.image, "structure": dict(structure.rows()),
        "preprocess": about.preprocess if isinstance(about.preprocess, Preprocess) else None,
    }  # fmt: skip
    return {
        job.label: Explanation(
            method=job.label, title=job.method.title, maps=maps, grid=grid, constant=constant, options=job.options,
            signed=job.method.is_signed(job.options), seconds=shared + own[job.label],
            intermediates=_merge(parts[job.label]), **common,
        )
        for job, (maps, grid, constant) in zip(jobs, finished, strict=True)
    }  # fmt: skip


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
