"""Complete the results of a call: provenance, warnings about constant maps, and checks of the maps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from vitrail.capture.score_function import doubt_about_scores, score_function
from vitrail.errors import GuessWarning, MapWarning
from vitrail.inputs.map_source import CheckSource, MapSource, PromptSource, TextSource
from vitrail.inputs.user_inputs import Inputs, input_names, needs_preprocess
from vitrail.models import LoadedModel
from vitrail.models.checkpoint import WeightsHash
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.original_image import original_images
from vitrail.pipeline.provenance import Provenance
from vitrail.pipeline.request import Request
from vitrail.pipeline.shared_pass import ResultFlags

Results = dict[str, Explanation]


def complete(
    results: Mapping[str, Explanation],
    inputs: Inputs,
    source: MapSource | TextSource | PromptSource,
    request: Request,
    flags: Sequence[ResultFlags] = (),
) -> Results:
    """Add provenance, the source of the maps and, if requested, the check of every map; warn about constant maps."""
    images = isinstance(source, MapSource) and source.model_inputs.image is not None
    completed = _with_provenance(results, inputs, source.loaded, not isinstance(source, MapSource), images)
    started = perf_counter()
    constant = [one.wait() for one in flags]
    waited = perf_counter() - started
    all_flagged = sum(len(one.logits) for one in flags) == len(next(iter(completed.values())).maps)
    completed = {label: replace(e, source=source, seconds=e.seconds + waited) for label, e in completed.items()}
    if not all_flagged or any(constant):
        _warn_about_constant_maps(completed)
    if isinstance(source, MapSource) and not callable(request.target):
        _warn_about_scores(source, next(iter(completed.values())).logits)
    return with_checks(completed, source, request) if request.check else completed


_looked_at: WeakSet[nn.Module] = WeakSet()


def _warn_about_scores(source: MapSource, logits: Tensor | None) -> None:
    """Warn, once a model, if its scores may not be those of a softmax."""
    model = source.loaded.module
    if logits is None or model in _looked_at:
        return
    _looked_at.add(model)
    stated = source.model_inputs.reading.scores
    function = score_function(model, source.structure.outputs, stated, int(logits.shape[1]))
    doubt = doubt_about_scores(model, function, logits)
    if doubt is not None:
        warnings.warn(doubt, GuessWarning, stacklevel=6)


def with_checks(results: Results, source: CheckSource, request: Request) -> Results:
    """The explanations with the check of every map."""
    from vitrail.trust.checker import check_maps

    budget = "quick" if request.check is True else request.check
    images, targets = next(iter(results.values())).maps.shape[:2]
    indices = [(b, k) for b in range(images) for k in range(targets)]
    checks = {at: check_maps(source, results, *at, budget=str(budget), advance=request.advance) for at in indices}
    return {label: replace(e, checks={at: checks[at][label] for at in indices}) for label, e in results.items()}


def _with_provenance(
    results: Mapping[str, Explanation], inputs: Inputs, loaded: LoadedModel, texts: bool = False, images: bool = True
) -> Results:
    """Add the names of the inputs, the preprocessing and the hash of the weights."""
    preprocess = loaded.preprocess
    stated: dict[str, Any] = {}
    if isinstance(preprocess, Preprocess):
        stated = asdict(preprocess)
    elif preprocess is not None:
        stated = {"function": getattr(preprocess, "__qualname__", None) or type(preprocess).__qualname__}
    count = len(next(iter(results.values())).maps)
    stated = {"applied": not texts and needs_preprocess(inputs), **stated}
    provenance = Provenance(input_names(inputs, count, texts), stated, WeightsHash(loaded.module))
    originals = original_images(inputs, preprocess) if images else None
    return {label: replace(e, provenance=provenance, originals=originals) for label, e in results.items()}


def _warn_about_constant_maps(results: Results) -> None:
    if not bool(torch.stack([e.constant for e in results.values()]).any()):
        return
    for label, explanation in results.items():
        if bool(explanation.constant.any()):
            where = [tuple(i) for i in explanation.constant.nonzero().tolist()]
            warnings.warn(
                f"{label}: {len(where)} of {explanation.constant.numel()} maps are constant or not finite, the first "
                f"at (image, target) {where[0]}; they carry no information and are shown as zeros. Check that the "
                "class is plausible and the head is trained.",
                MapWarning,
                stacklevel=4,
            )
