"""Explain a model's output with one or several methods in one shared pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture import cuda_graphs
from vitrail.capture.cuda_graphs import recordable
from vitrail.capture.forward import ForwardPass, check_finite, forward_only, forward_pass, without_ends
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits, output_count
from vitrail.capture.probe import Probe, ProbedTrace, Scorer
from vitrail.capture.structure import read_structure
from vitrail.capture.swin import Places, find_places, stitched_layout
from vitrail.capture.swin import stitch as join_windows
from vitrail.capture.trace import Needs, Trace
from vitrail.class_group import ClassGroup
from vitrail.errors import InputError, MapWarning, ModelError, NotApplicableError, OptionError, TargetError
from vitrail.explanation import Explanation, Explanations, Provenance, number_groups_alike
from vitrail.inputs import Inputs, input_names, needs_preprocess, to_model_inputs
from vitrail.map_source import MapSource
from vitrail.methods import find
from vitrail.methods.registry import Method
from vitrail.models import LoadedModel, describe
from vitrail.models.checkpoint import WeightsHash
from vitrail.models.loaded import Transform
from vitrail.models.preprocess import Preprocess
from vitrail.postprocess import is_constant, normalise, place, upsample
from vitrail.recommendation import AUTO, recommended
from vitrail.targets import ResolvedTarget, Target, class_scores, resolve_target, top_count

#: Default method; its page says why.
DEFAULT = "leadlight"


@dataclass(frozen=True)
class _Job:
    """One method to run."""

    label: str
    method: Method
    options: dict[str, Any]

    @property
    def score(self) -> str | None:
        return self.options.get("score")

    @property
    def round(self) -> tuple[str, bool] | None:
        """Which backward it shares: what is differentiated, and whether attention is cut; None if it needs none."""
        return None if self.score is None else (self.score, self.method.detach_attention)


@dataclass(frozen=True)
class _Run:
    """Settings of one call."""

    most: int
    keep: bool
    advance: Callable[[int], None]
    places: Places | None

    def stitched(self, trace: Trace) -> Trace:
        """The pass, with window attention stitched where requested."""
        return trace if self.places is None else join_windows(trace, self.places)


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
Found = dict[str, Explanation]
#: Images in one forward pass of methods that evaluate many, where the user sets no limit.
MOST = 32


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str = ..., *, methods: None = ..., target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., check: bool | str = ..., advance: Callable[[int], None] = ..., tokenizer: Any = ...,
    **options: Any,
) -> Explanation: ...  # fmt: skip


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str = ..., *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]], target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., check: bool | str = ..., advance: Callable[[int], None] = ..., tokenizer: Any = ...,
) -> Explanations: ...  # fmt: skip


def explain(
    model: nn.Module | LoadedModel,
    inputs: Inputs,
    method: str = DEFAULT,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    target: Target = None,
    preprocess: Transform | None = None,
    layout: Layout | None = None,
    batch_size: int | None = None,
    keep: bool = False,
    stitch: bool = False,
    check: bool | str = False,
    advance: Callable[[int], None] = lambda _: None,
    tokenizer: Any = None,
    **options: Any,
) -> Explanation | Explanations:
    """Compute relevance maps for a model's output.

    The model is used as it is, on its own device and in its own precision. It is held in evaluation mode during the
    call and restored afterwards.

    Args:
        model: Your model object (timm, Hugging Face, torchvision, open_clip or your own), or what ``load`` returned.
        inputs: A batch of images as a tensor, one or several PIL images or paths, or a dict of tensors that is passed
            to the model as keyword arguments; with a tokenizer, a text or several.
        method: A method's name; ``name:variant`` and ``name:option=value,…`` work as well. "auto" is the method that
            `vitrail.compare` recommended for this model.
        methods: Several methods, which share one pass: names, or a dict from names to options.
        target: What to explain: None for the predicted class, "top3" for the three likeliest, a class index or name,
            a group of classes as one target (`ClassGroup`, or "tabby|tiger cat"), one of these per image, a row of K
            per image (``[[a, b]]`` for the same of every image), or a function from the model's output to one or K
            numbers per image.
        preprocess: From a PIL image to a tensor, where the model's own way is unknown or not wanted.
        layout: Prefix, grid and readout, where they cannot be found out.
        batch_size: Process the inputs in batches of this size, to bound memory; methods that evaluate perturbed images
            evaluate at most this many at a time (32 by default).
        stitch: Join attention inside windows (Swin) into attention between all patches, for the methods that take it
            (`rollout`, `transformer_mm` and others that multiply attention through the blocks).
        check: Also check each map on this model and image, see `Explanation.check`; "quick" (as True) or "full". The
            results are in ``checks`` of the result, and maps that fail are marked in overlays and figures.
        keep: Also keep intermediate results of the methods, in ``intermediates`` of the result.
        advance: Called with the number of images a method has just evaluated, for progress.
        tokenizer: For texts: the model's fast Hugging Face tokenizer, or `vitrail.text.TokenizerSettings`, which
            also say how token scores become word scores and how long texts are split. The result's ``text`` has a
            score for each word.
        **options: Options of ``method``.

    Returns:
        An `Explanation`, or with ``methods`` a mapping of them by name.

    Example:
        >>> import torch
        >>> from vitrail.testing import tiny_vit
        >>> e = explain(tiny_vit(), torch.zeros(2, 3, 32, 32), "rollout")
        >>> e.maps.shape, e.grid.shape
        (torch.Size([2, 1, 32, 32]), torch.Size([2, 1, 4, 4]))
    """
    if not isinstance(method, str):
        raise OptionError("several methods go to methods=[…]; method= takes one name")
    _check_arguments(method, target, batch_size, keep)
    if check and tokenizer is not None:
        raise OptionError("check=True needs images: maps of texts cannot be checked yet")
    methods = [methods] if isinstance(methods, str) else methods
    if methods is not None and method != DEFAULT:
        raise OptionError(f"give either method={method!r} or methods=…, not both")
    if methods is not None and options:
        raise OptionError("with several methods, give each its options: methods={'vtranm': {'score': 'logit'}, …}")
    asked: Mapping[str, Mapping[str, Any]]
    asked = methods if isinstance(methods, Mapping) else {name: {} for name in methods or ()}
    about = describe(model if isinstance(model, LoadedModel) else unwrap(model))
    method = recommended(about.module) if method == AUTO else method
    jobs = [_Job(*find(spec, chosen)) for spec, chosen in asked.items()]
    if methods is None:
        jobs = [_Job(*find(method, options))]
    elif not jobs:
        raise OptionError("no methods given: see vitrail.methods()")
    about = replace(about, module=unwrap(about.module), preprocess=preprocess or about.preprocess)
    if hasattr(about.module, "encode_text") and not callable(target):
        raise TargetError("a CLIP model has no classes: pass target=vitrail.similarity(text embeddings)")
    if tokenizer is not None:
        from vitrail.text.windows import explain_texts

        asked = asked if methods is not None else {method: options}

        def run_texts(ready: Mapping[str, Tensor], aimed: Target) -> Explanations:
            given = {"target": aimed, "layout": layout, "keep": keep, "advance": advance}
            return explain(about, ready, methods=asked, **given)  # type: ignore[no-any-return,call-overload]

        found = explain_texts(inputs, tokenizer, about, target, run_texts, batch_size, keep)
        found = _with_provenance(found, inputs, about, texts=True)
        _warn(found)
        return Explanations(found) if methods is not None else found[jobs[0].label]
    model_inputs = to_model_inputs(inputs, about)
    structure = read_structure(about.module, model_inputs, layout, target if callable(target) else None)
    _check_outputs(structure, about, target)
    stitch = stitch and structure.kind == "windowed"
    try:
        for job in jobs:
            job.method.check(structure, job.options, stitch, about.module)
    except NotApplicableError:
        # What a method needs is not found either where the model's numbers are not finite.
        check_finite(about.module, forward_only(about.module, model_inputs, structure).logits)
        raise
    places = find_places(about.module, model_inputs, structure) if stitch else None
    run = _Run(batch_size or MOST, keep, advance, places)
    pieces = [
        _explain(about, piece, aimed, structure, jobs, run) for piece, aimed in _cut(model_inputs, target, batch_size)
    ]
    found = {job.label: _join([piece[job.label] for piece in pieces]) for job in jobs}
    found = _with_provenance(found, inputs, about)
    again = partial(_explain_again, about, {"layout": layout, "batch_size": batch_size, "stitch": stitch})
    source = MapSource(about, model_inputs, structure, target if callable(target) else None, again)
    found = {label: replace(explanation, source=source) for label, explanation in found.items()}
    _warn(found)
    found = _checked(found, source, "quick" if check is True else check, advance) if check else found
    return Explanations(found) if methods is not None else found[jobs[0].label]


def _check_arguments(method: str, target: Target, batch_size: int | None, keep: bool) -> None:
    if not isinstance(keep, bool):
        raise OptionError(
            f"keep={keep!r} must be True or False; an option of the method that is also called keep goes into its "
            f"name, as in '{method}:keep={keep}'"
        )
    if batch_size is not None and (isinstance(batch_size, bool) or not hasattr(batch_size, "__index__")):
        raise OptionError(f"batch_size={batch_size!r} must be an integer or None")
    if isinstance(target, type):
        raise TargetError(f"{target.__name__} is a Python class, not a target: give a class index or name")


def _explain_again(
    about: LoadedModel, given: Mapping[str, Any], images: Tensor, asked: Mapping[str, Mapping[str, Any]], target: Target
) -> Explanations:
    """Explain other images of the same model, for checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        return explain(about, images, methods=asked, target=target, **given)


def _checked(found: Found, source: MapSource, budget: str, advance: Callable[[int], None]) -> Found:
    """Check every map."""
    from vitrail.trust.checker import check_maps

    images, targets = next(iter(found.values())).maps.shape[:2]
    places = [(b, k) for b in range(images) for k in range(targets)]
    checks = {at: check_maps(source, found, *at, budget=budget, advance=advance) for at in places}
    return {label: replace(e, checks={at: checks[at][label] for at in places}) for label, e in found.items()}


def _with_provenance(
    found: Mapping[str, Explanation], inputs: Inputs, about: LoadedModel, texts: bool = False
) -> Found:
    """Add the names of the inputs, the preprocessing and the hash of the weights."""
    preprocess = about.preprocess
    stated: dict[str, Any] = {}
    if isinstance(preprocess, Preprocess):
        stated = asdict(preprocess)
    elif preprocess is not None:
        stated = {"function": getattr(preprocess, "__qualname__", None) or type(preprocess).__qualname__}
    count = len(next(iter(found.values())).maps)
    stated = {"applied": not texts and needs_preprocess(inputs), **stated}
    provenance = Provenance(input_names(inputs, count, texts), stated, WeightsHash(about.module))
    return {label: replace(explanation, provenance=provenance) for label, explanation in found.items()}


def _check_outputs(structure: ModelStructure, about: LoadedModel, target: Target) -> None:
    """Refuse to take the features of a model without a head for classes."""
    if structure.outputs == "features" and not callable(target) and not about.classes:
        raise TargetError(
            f"{structure.model} returns features, not class scores: it has no classification head; pass "
            "target=function, from its output to one number per image"
        )


def _cut(model_inputs: ModelInputs, target: Target, size: int | None) -> list[tuple[ModelInputs, Target]]:
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


def _explain(
    about: LoadedModel,
    model_inputs: ModelInputs,
    target: Target,
    structure: ModelStructure,
    jobs: Sequence[_Job],
    run: _Run,
) -> Found:
    """Run all methods on one batch; on a GPU by a recorded pass where there is one."""
    started = perf_counter()
    computed = _recorded(about, model_inputs, target, structure, jobs, run)
    if computed is None:
        computed = _compute(about, model_inputs, target, structure, jobs, run)
    spent = perf_counter() - started - sum(computed.own.values())
    if run.places is not None:
        structure = replace(structure, layout=stitched_layout(run.places))
    common: dict[str, Any] = {
        "targets": computed.classes, "groups": computed.groups, "logits": computed.logits,
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
    jobs: Sequence[_Job],
    run: _Run,
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
        aimed = resolve_target(target, None, model_inputs.batch, about.classes, empty)
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
    jobs: Sequence[_Job],
    run: _Run,
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
    if run.places is not None:
        structure = replace(structure, layout=stitched_layout(run.places))
    maps = _finish(jobs, {label: torch.stack(r, 1) for label, r in relevance.items()}, structure, model_inputs)
    return _Computed(maps, aimed.classes, aimed.groups, one.logits, own, parts)


def _aimed(
    target: Target, classes: Tensor | None, output: Any, batch: int, names: Sequence[str] | None, logits: Tensor | None
) -> ResolvedTarget:
    """The target for a batch; where its classes are known already, nothing is read from the device."""
    if classes is not None:
        return ResolvedTarget(classes, None, logits)
    return resolve_target(target, output, batch, names, logits)


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
    job: _Job,
    trace: Trace | None,
    probe: Probe,
    own: dict[str, float],
    parts: dict[str, list[dict[str, Any]]],
    run: _Run,
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
    jobs: Sequence[_Job], relevance: Mapping[str, Tensor], structure: ModelStructure, model_inputs: ModelInputs
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Relevance by each method as maps, grids and which maps say nothing; methods alike in shape go together."""
    finished: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    kinds: dict[Any, list[_Job]] = {}
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
        for job, *triple in zip(alike, *_to_maps(joined, signed, structure, model_inputs), strict=True):
            finished[job.label] = (triple[0], triple[1], triple[2])
    return [finished[job.label] for job in jobs]


def _to_maps(
    relevance: Tensor, signed: bool, structure: ModelStructure, model_inputs: ModelInputs
) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance of patches, shape (M, b, K, S), or of a grid, (M, b, K, rows, columns), as maps over the input."""
    grid, image = structure.layout.grid, model_inputs.image
    valid = model_inputs.valid
    if relevance.dim() == 4 and valid is not None:
        return _to_token_maps(relevance, signed, valid, structure.layout.prefix or 0)
    # On a text the prefix is padding, which would lend contrast to relevance that has none.
    constant = is_constant(relevance.flatten(3), axes=1)[..., 0]
    if relevance.dim() == 4 and grid is not None and image is not None:
        relevance = relevance.reshape(*relevance.shape[:3], *grid)
    if relevance.dim() == 5 and image is not None:
        raw, axes = relevance, 2
        area = structure.layout.area if tuple(raw.shape[-2:]) == grid else None
        size = (int(image.shape[2]), int(image.shape[3]))
        if area is not None:
            covered = normalise(upsample(raw, (area.height, area.width)), signed=signed).float()
            return place(covered, size, (area.top, area.left)), raw, constant
        big = upsample(raw, size)
    else:
        raw = big = torch.nn.functional.pad(relevance, (structure.layout.prefix or 0, 0))
        axes = 1
    return normalise(big, signed=signed, axes=axes).float(), raw, constant


def _to_token_maps(relevance: Tensor, signed: bool, valid: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance of tokens of texts with padding, shape (M, b, K, S): as of each text alone, and zero at padding."""
    raw = torch.nn.functional.pad(relevance.masked_fill(~valid[None, :, None, prefix:], 0.0), (prefix, 0))
    maps, constant = torch.zeros_like(raw), raw.new_zeros(raw.shape[:3], dtype=torch.bool)
    for b, count in enumerate(valid.sum(-1).tolist()):
        there = valid[b].nonzero()[:, 0]
        own = raw[:, b][..., there]
        constant[:, b] = is_constant(own[..., min(prefix, count) :], axes=1)[..., 0] if count > prefix else True
        maps[:, b, :, there] = normalise(own, signed=signed, axes=1)
    return maps.float(), raw, constant


def _join(pieces: list[Explanation]) -> Explanation:
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


def _warn(found: Mapping[str, Explanation]) -> None:
    if not bool(torch.stack([e.constant for e in found.values()]).any()):
        return
    for label, explanation in found.items():
        if bool(explanation.constant.any()):
            where = [tuple(i) for i in explanation.constant.nonzero().tolist()]
            warnings.warn(
                f"{label}: {len(where)} of {explanation.constant.numel()} maps are constant or not finite, the first "
                f"at (image, target) {where[0]}; they carry no information and are shown as zeros. Check that the "
                "class is plausible and the head is trained.",
                MapWarning,
                stacklevel=3,
            )
