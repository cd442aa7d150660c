"""Explain a model's output with one or several methods in one shared pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import perf_counter
from typing import Any, overload

import torch
from torch import Tensor, nn

from vitrail.capture.forward import check_finite, forward_only
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure import read_structure
from vitrail.capture.window_positions import find_places
from vitrail.errors import MapWarning, NotApplicableError, OptionError, TargetError
from vitrail.fast.module_walk import looks_once
from vitrail.inputs.map_source import MapSource, TextSource
from vitrail.inputs.targets import Target, similarity, target_count
from vitrail.inputs.user_inputs import Inputs, input_names, needs_preprocess, tensor_inputs, to_model_inputs
from vitrail.models import LoadedModel, describe
from vitrail.models.checkpoint import WeightsHash
from vitrail.models.loaded import Transform
from vitrail.models.preprocess import Preprocess
from vitrail.models.sources import embed_texts
from vitrail.pipeline.early_call import early_replay
from vitrail.pipeline.explained_batch import explain_batch, join_batches, split_inputs
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.pipeline.method_jobs import DEFAULT, MethodJob, method_jobs, requested_methods
from vitrail.pipeline.original_image import original_images
from vitrail.pipeline.progress import Progress, evaluation_progress, expected_evaluations
from vitrail.pipeline.provenance import Provenance
from vitrail.pipeline.recommendation import AUTO, recommended
from vitrail.pipeline.shared_pass import BatchJob, PassSettings, ResultFlags, most_images
from vitrail.pipeline.smoothed_pass import explain_smoothed
from vitrail.pipeline.smoothing import SAMPLES, SIGMA, Smoothing, images_to_smooth

__all__ = ["DEFAULT", "explain"]

Found = dict[str, Explanation]


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str = ..., *, methods: None = ..., target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., smooth: str | None = ..., smooth_samples: int = ..., smooth_noise: float = ...,
    smooth_seed: int = ..., check: bool | str = ..., progress: Progress = ..., advance: Callable[[int], None] = ...,
    tokenizer: Any = ...,
    **options: Any,
) -> Explanation: ...  # fmt: skip


@overload
def explain(
    model: nn.Module | LoadedModel, inputs: Inputs, method: str = ..., *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]], target: Target = ...,
    preprocess: Transform | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., keep: bool = ...,
    stitch: bool = ..., smooth: str | None = ..., smooth_samples: int = ..., smooth_noise: float = ...,
    smooth_seed: int = ..., check: bool | str = ..., progress: Progress = ..., advance: Callable[[int], None] = ...,
    tokenizer: Any = ...,
) -> Explanations: ...  # fmt: skip


@looks_once
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
    smooth: str | None = None,
    smooth_samples: int = SAMPLES,
    smooth_noise: float = SIGMA,
    smooth_seed: int = 0,
    check: bool | str = False,
    progress: Progress = None,
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
            numbers per image. For a CLIP model: a text or ``[[text, text]]`` if it was loaded by name, otherwise
            `similarity` to text embeddings.
        preprocess: From a PIL image to a tensor, where the model's own way is unknown or not wanted.
        layout: Prefix, grid and readout, where they cannot be found out.
        batch_size: Process the inputs in batches of this size, to bound memory; methods that evaluate perturbed images
            evaluate at most this many at a time (by default 32; 64 on a GPU for at most 256 tokens).
        stitch: Join attention inside windows (Swin) into attention between all patches, for the methods that take it
            (`rollout`, `transformer_mm` and others that multiply attention through the blocks).
        smooth: Average the relevance over copies of each image, for any method: "flips", the image and its mirror
            image, each times 0.9, 1 and 1.1 (6 copies), or "noise", noisy copies. All copies explain the classes of the
            unchanged image.
        smooth_samples: Number of noisy copies.
        smooth_noise: Standard deviation of their noise, as a share of the image's range of values.
        smooth_seed: Seed of the noise.
        check: Also check each map on this model and image, see `Explanation.check`; "quick" (as True) or "full". The
            results are in ``checks`` of the result, and maps that fail are marked in overlays and figures.
        keep: Also keep intermediate results of the methods, in ``intermediates`` of the result.
        progress: True shows a bar on standard error while methods evaluate images beyond the shared pass; a function is
            called with the number of images evaluated so far and the number expected.
        advance: Called with the number of images a method has just evaluated.
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
    requested = requested_methods(method, methods, options)
    usual = batch_size is None and layout is None and smooth is None and tokenizer is None and not (keep or stitch)
    early = early_replay(model, requested, target, tensor_inputs(inputs)) if usual else None
    _check_arguments(method, target, batch_size, keep)
    smoothing = None if smooth is None else Smoothing(smooth, smooth_samples, smooth_noise, smooth_seed)
    if smoothing is not None and keep:
        raise OptionError("keep=True does not go with smooth=: intermediate results belong to one image, not to a mean")
    about = describe(model if isinstance(model, LoadedModel) else unwrap(model))
    if methods is None and method == AUTO:
        requested = {recommended(about.module): options}
    jobs = method_jobs(requested)
    module = unwrap(about.module) if isinstance(model, LoadedModel) else about.module
    about = replace(about, module=module, preprocess=preprocess or about.preprocess)
    if hasattr(about.module, "encode_text") and not callable(target):
        target = _text_target(about, target)
    if tokenizer is not None:
        if smoothing is not None:
            images_to_smooth(ModelInputs())
        from vitrail.pipeline.text_windows import explain_texts
        from vitrail.text.prediction import predict_texts
        from vitrail.text.tokens import TokenizerSettings

        def run_texts(ready: Mapping[str, Tensor], aimed: Target) -> Explanations:
            given = {"target": aimed, "layout": layout, "keep": keep, "progress": progress, "advance": advance}
            return explain(about, ready, methods=requested, **given)  # type: ignore[no-any-return,call-overload]

        settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)
        found = explain_texts(inputs, settings, about, target, run_texts, batch_size, keep)
        found = _with_provenance(found, inputs, about, texts=True)
        again = partial(_explain_again, about, {"layout": layout, "batch_size": batch_size, "tokenizer": settings})
        texts = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        predict = partial(predict_texts, settings=settings, model=about.module)
        found = _finished(found, TextSource(about, texts, settings, predict, again), check, advance)
        return Explanations(found) if methods is not None else found[jobs[0].label]
    ready = None if early is None else early.inputs_for(about.module)
    model_inputs = to_model_inputs(inputs, about) if ready is None else ready
    if usual and early is None:
        early = early_replay(model, requested, target, model_inputs)
    structure = read_structure(about.module, model_inputs, layout, target if callable(target) else None)
    _check_outputs(structure, about, target)
    stitch = stitch and structure.kind == "windowed"
    _check_methods(jobs, structure, about, model_inputs, stitch)
    places = find_places(about.module, model_inputs, structure) if stitch else None
    copies = model_inputs.batch * (1 if smoothing is None else smoothing.copies)
    total = expected_evaluations(jobs, structure, copies, target_count(target))
    with evaluation_progress(progress, total, advance) as report:
        most = batch_size or most_images(structure, model_inputs.tensors[0].device)
        flags: list[ResultFlags] | None = None if smoothing is not None else []
        run = PassSettings(most, keep, report, places, early, flags)
        job = BatchJob(about, model_inputs, target, structure, jobs, run)
        if smoothing is not None:
            found = explain_smoothed(job, smoothing, batch_size)
        else:
            pieces = [
                explain_batch(replace(job, model_inputs=piece, target=aimed))
                for piece, aimed in split_inputs(model_inputs, target, batch_size)
            ]
            found = {one.label: join_batches([piece[one.label] for piece in pieces]) for one in jobs}
    found = _with_provenance(found, inputs, about)
    again = partial(
        _explain_again,
        about,
        {"layout": layout, "batch_size": batch_size, "stitch": stitch}
        | ({} if smoothing is None else smoothing.settings()),
    )
    source = MapSource(about, model_inputs, structure, target if callable(target) else None, again)
    found = _finished(found, source, check, advance, flags)
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


def _text_target(about: LoadedModel, target: Target) -> Target:
    """Similarity to the texts that were given as a CLIP model's targets."""
    row = target[0] if isinstance(target, list | tuple) and len(target) == 1 else target
    texts = [row] if isinstance(row, str) else row
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise TargetError(
            "a CLIP model has no classes: pass a text, [[text, text]] for several, or "
            "target=vitrail.similarity(text embeddings, labels=texts)"
        )
    return similarity(embed_texts(about, texts), labels=texts)


def _explain_again(
    about: LoadedModel, given: Mapping[str, Any], inputs: Inputs, asked: Mapping[str, Mapping[str, Any]], target: Target
) -> Explanations:
    """Explain other inputs of the same model, for checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        return explain(about, inputs, methods=asked, target=target, **given)


def _finished(
    found: Found,
    source: MapSource | TextSource,
    check: bool | str,
    advance: Callable[[int], None],
    flags: Sequence[ResultFlags] | None = None,
) -> Found:
    """Explanations with their source and, if wanted, the check of every map; warn about constant maps.

    ``flags`` are what recorded passes left to be checked: this waits for their results.
    """
    started = perf_counter()
    constant = [one.wait() for one in flags or ()]
    waited = perf_counter() - started
    known = sum(len(one.logits) for one in flags or ()) == len(next(iter(found.values())).maps)
    found = {label: replace(one, source=source, seconds=one.seconds + waited) for label, one in found.items()}
    if not known or any(constant):
        _warn(found)
    if not check:
        return found
    from vitrail.trust.checker import check_maps

    budget = "quick" if check is True else check
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
    originals = None if texts else original_images(inputs, preprocess)
    return {label: replace(one, provenance=provenance, originals=originals) for label, one in found.items()}


def _check_outputs(structure: ModelStructure, about: LoadedModel, target: Target) -> None:
    """Refuse to take the features of a model without a head for classes."""
    if structure.outputs == "features" and not callable(target) and not about.classes:
        raise TargetError(
            f"{structure.model} returns features, not class scores: it has no classification head; pass "
            "target=function, from its output to one number per image"
        )


def _check_methods(
    jobs: Sequence[MethodJob], structure: ModelStructure, about: LoadedModel, model_inputs: ModelInputs, stitch: bool
) -> None:
    """Refuse methods that do not apply to the model."""
    try:
        for job in jobs:
            job.method.check(structure, job.options, stitch, about.module)
    except NotApplicableError:
        # What a method needs is not found either where the model's numbers are not finite.
        check_finite(about.module, forward_only(about.module, model_inputs, structure).logits)
        raise


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
                stacklevel=4,
            )
