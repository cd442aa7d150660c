"""The one way in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, overload

import torch
from torch import Tensor, nn

from vitrail.errors import MapWarning, OptionError, TargetError
from vitrail.explanation import Explanation, Explanations
from vitrail.inputs import Inputs, to_feed
from vitrail.inside.anatomy import Anatomy, read
from vitrail.inside.capture import check_finite, passing
from vitrail.inside.feed import Feed
from vitrail.inside.layout import Layout
from vitrail.inside.still import unwrap
from vitrail.inside.trace import Trace
from vitrail.maps import flat, normalise, upsample
from vitrail.methods import find
from vitrail.methods.registry import Method
from vitrail.models import Loaded, describe
from vitrail.models.loaded import Prepare
from vitrail.models.preprocess import Preprocess
from vitrail.targets import Target, aim

DEFAULT = "gradtoken"


@dataclass(frozen=True)
class _Job:
    """One method to run."""

    label: str
    method: Method
    options: dict[str, Any]

    @property
    def score(self) -> str | None:
        return self.options.get("score")


@overload
def explain(
    model: nn.Module | Loaded, inputs: Inputs, method: str = ..., *, methods: None = ..., target: Target = ...,
    preprocess: Prepare | None = ..., layout: Layout | None = ..., batch_size: int | None = ..., **options: Any,
) -> Explanation: ...  # fmt: skip


@overload
def explain(
    model: nn.Module | Loaded, inputs: Inputs, method: str = ..., *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]], target: Target = ...,
    preprocess: Prepare | None = ..., layout: Layout | None = ..., batch_size: int | None = ...,
) -> Explanations: ...  # fmt: skip


def explain(
    model: nn.Module | Loaded, inputs: Inputs, method: str = DEFAULT, *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None, target: Target = None,
    preprocess: Prepare | None = None, layout: Layout | None = None, batch_size: int | None = None, **options: Any,
) -> Explanation | Explanations:  # fmt: skip
    """Why did the model say that?

    The model is used as it is: it is held in evaluation mode for the time of the call and put back afterwards, on the
    device and in the precision it has.

    Args:
        model: Your model object (timm, Hugging Face, torchvision, open_clip or your own), or what ``load`` returned.
        inputs: A batch of images as a tensor, one or several PIL images or paths, or a dict of tensors that is passed
            to the model as keyword arguments.
        method: A method's name; ``name:variant`` and ``name:option=value,…`` work as well.
        methods: Several methods, which share one pass: names, or a dict from names to options.
        target: What to explain: None for the predicted class, "top3" for the three likeliest, a class index or name,
            one per image, a row of K classes per image (``[[a, b]]`` for the same of every image), or a function
            from the model's output to one or K numbers per image.
        preprocess: From a PIL image to a tensor, where the model's own way is unknown or not wanted.
        layout: Prefix, grid and readout, where they cannot be found out.
        batch_size: Work through the inputs in pieces of this size, to bound memory.
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
    methods = [methods] if isinstance(methods, str) else methods
    if methods is not None and method != DEFAULT:
        raise OptionError(f"give either method={method!r} or methods=…, not both")
    if methods is not None and options:
        raise OptionError("with several methods, give each its options: methods={'vtranm': {'score': 'logit'}, …}")
    asked: Mapping[str, Mapping[str, Any]]
    asked = methods if isinstance(methods, Mapping) else {name: {} for name in methods or ()}
    jobs = [_Job(*find(spec, chosen)) for spec, chosen in asked.items()]
    if methods is None:
        jobs = [_Job(*find(method, options))]
    elif not jobs:
        raise OptionError("no methods given: see vitrail.methods()")
    about = describe(model)
    about = replace(about, module=unwrap(about.module), preprocess=preprocess or about.preprocess)
    if hasattr(about.module, "encode_text") and not callable(target):
        raise TargetError("a CLIP model has no classes: pass target=vitrail.similarity(text embeddings)")
    feed = to_feed(inputs, about)
    anatomy = read(about.module, feed, layout, target if callable(target) else None)
    for job in jobs:
        job.method.check(anatomy, job.options)
    pieces = [
        _explain(about, piece, piece_target, anatomy, jobs) for piece, piece_target in _cut(feed, target, batch_size)
    ]
    found = {job.label: _join([piece[job.label] for piece in pieces]) for job in jobs}
    _warn(found)
    return Explanations(found) if methods is not None else found[jobs[0].label]


def _cut(feed: Feed, target: Target, size: int | None) -> list[tuple[Feed, Target]]:
    """The inputs in pieces, each with its targets."""
    batch = feed.batch
    if size is None or size >= batch:
        return [(feed, target)]
    if size < 1:
        raise OptionError(f"batch_size={size} must be at least 1")
    each = isinstance(target, Sequence | Tensor) and not isinstance(target, str) and len(target) == batch
    return [
        (feed.take(slice(i, i + size)), target[i : i + size] if each else target)  # type: ignore[index]
        for i in range(0, batch, size)
    ]


def _explain(
    about: Loaded, feed: Feed, target: Target, anatomy: Anatomy, jobs: Sequence[_Job]
) -> dict[str, Explanation]:
    """All methods on one batch, from one forward and one backward for each target and kind of score."""
    started = perf_counter()
    with passing(about.module, feed, anatomy, [job.method.needed(job.options) for job in jobs]) as one:
        aimed = aim(target, one.output, feed.batch, about.classes)
        scores = list(dict.fromkeys(job.score for job in jobs if job.score is not None))
        relevance: dict[str, list[Tensor]] = {job.label: [] for job in jobs}
        own: dict[str, float] = dict.fromkeys(relevance, 0.0)
        agnostic = one.trace()
        for job in jobs:
            if job.score is None:
                relevance[job.label] = _timed(job, agnostic, own) * aimed.count
        rounds = [(k, score) for k in range(aimed.count) for score in scores]
        for k, score in rounds:
            trace = one.trace(aimed.scalar(k, score), keep_graph=(k, score) != rounds[-1])
            for job in jobs:
                if job.score == score:
                    relevance[job.label] += _timed(job, trace, own)
        check_finite(about.module, one.logits)
    joined = torch.stack([torch.stack(relevance[job.label], 1) for job in jobs])
    finished = _finish(joined, [job.method.is_signed(job.options) for job in jobs], anatomy, feed)
    common: dict[str, Any] = {
        "targets": aimed.classes, "logits": one.logits, "model": about.name, "classes": about.classes,
        "images": feed.image if anatomy.layout.grid else None, "anatomy": dict(anatomy.rows()),
        "preprocess": about.preprocess if isinstance(about.preprocess, Preprocess) else None,
    }  # fmt: skip
    shared = perf_counter() - started - sum(own.values())
    return {
        job.label: Explanation(
            method=job.label, title=job.method.title, maps=maps, grid=grid, flat=dull, options=job.options,
            signed=job.method.is_signed(job.options), seconds=shared + own[job.label], **common,
        )
        for job, maps, grid, dull in zip(jobs, *finished, strict=True)
    }  # fmt: skip


def _timed(job: _Job, trace: Trace, own: dict[str, float]) -> list[Tensor]:
    started = perf_counter()
    with torch.no_grad(), torch.autocast(trace.device.type, enabled=False):
        relevance = job.method.apply(trace, job.options)
    own[job.label] += perf_counter() - started
    return [relevance]


def _finish(relevance: Tensor, signed: list[bool], anatomy: Anatomy, feed: Feed) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance of patches by all methods, shape (M, b, K, S), as maps, grids and which maps say nothing."""
    grid, image = anatomy.layout.grid, feed.image
    if grid is not None and image is not None:
        raw, axes = relevance.reshape(*relevance.shape[:3], *grid), 2
        big = upsample(raw, (int(image.shape[2]), int(image.shape[3])))
    else:
        raw = big = torch.nn.functional.pad(relevance, (anatomy.layout.prefix or 0, 0))
        axes = 1
    maps = normalise(big, axes=axes)
    for i, has_sign in enumerate(signed):
        if has_sign:
            maps[i] = normalise(big[i], signed=True, axes=axes)
    # On a text the prefix is padding, which would lend contrast to relevance that has none.
    dull = flat(relevance, axes=1)[..., 0]
    return maps.float(), raw, dull


def _join(pieces: list[Explanation]) -> Explanation:
    """Explanations of consecutive inputs as one."""
    if len(pieces) == 1:
        return pieces[0]

    def cat(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else torch.cat(parts)

    joined = {name: cat(name) for name in ("maps", "grid", "targets", "logits", "flat", "images")}
    return replace(pieces[0], **joined, seconds=sum(p.seconds for p in pieces))


def _warn(found: Mapping[str, Explanation]) -> None:
    if not bool(torch.stack([e.flat for e in found.values()]).any()):
        return
    for label, explanation in found.items():
        if bool(explanation.flat.any()):
            where = [tuple(i) for i in explanation.flat.nonzero().tolist()]
            warnings.warn(
                f"{label}: {len(where)} of {explanation.flat.numel()} maps are constant or not finite, the first at "
                f"(image, target) {where[0]}; they say nothing and are shown as zeros. Is the class plausible, the "
                "head trained?",
                MapWarning,
                stacklevel=3,
            )
