"""Models by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.errors import ModelError, VitrailError
from vitrail.models import sources
from vitrail.models.catalogue import CATALOGUE, entry_of, full_name
from vitrail.models.checkpoint import fit, read_weights
from vitrail.models.embedded import EMBEDDED, load_embedded
from vitrail.models.loaded import Loaded, describe
from vitrail.models.preprocess import Preprocess

#: Stands in the message where weights could not be fetched.
FETCHING = "no network?"


def load(spec: str, weights: str | Path | None = None, pretrained: bool | None = None) -> Loaded:
    """A model by name: ``timm:NAME``, ``hf:NAME``, ``torchvision:NAME``, ``open_clip:NAME``, or a short one.

    Args:
        spec: Library and name; or a model of the papers, as "vit-b16" or "deit-b", see `vitrail.models.catalogue`; or
            "scenes", "scenes-gap" or "scenes-tagged", which need no network.
        weights: A file to load instead of the library's own weights: safetensors, or a torch file of tensors.
        pretrained: Fetch the library's weights; by default yes, unless ``weights`` is given.

    Example:
        >>> load("keras:vit")
        Traceback (most recent call last):
        ...
        vitrail.errors.ModelError: unknown source 'keras' in 'keras:vit': use timm:, hf:, torchvision:, open_clip:, ...
    """
    if spec in EMBEDDED and weights is None:
        return load_embedded(spec)
    spec = full_name(spec)
    library, colon, name = spec.partition(":")
    if not colon or library not in sources.SOURCES:
        known = ", ".join([*(f"{s}:" for s in sources.SOURCES), *EMBEDDED, *CATALOGUE])
        raise ModelError(f"unknown source {library!r} in {spec!r}: use {known}")
    fetch = weights is None if pretrained is None else pretrained
    state = None if weights is None else read_weights(weights)
    try:
        module = sources.SOURCES[library](name, fetch)
    except VitrailError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = f" ({FETCHING} give a weights file, or choose random weights to try things out)" if fetch else ""
        raise ModelError(f"{spec} could not be made: {reason}{hint}") from error
    if state is not None:
        fit(module, state, str(weights))
    about, entry = describe(module.eval(), spec), entry_of(spec)
    if entry is None or not isinstance(about.preprocess, Preprocess):
        return about
    return replace(about, preprocess=replace(about.preprocess, mean=entry.mean, std=entry.std))
