"""Models by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.errors import ModelError, VitrailError, require
from vitrail.models import sources
from vitrail.models.catalogue import CATALOGUE, entry_of, full_name
from vitrail.models.checkpoint import fit, read_weights
from vitrail.models.embedded import EMBEDDED, load_embedded
from vitrail.models.loaded import LoadedModel, describe
from vitrail.models.preprocess import Preprocess

#: Stands in the message where weights could not be fetched.
FETCHING = "no network?"


def at_hand(spec: str) -> bool:
    """Whether the weights of a model of the papers are in the hub's cache; True for any other model, as none can say.

    Example:
        >>> at_hand("scenes")
        True
    """
    entry = entry_of(spec)
    if entry is None:
        return True
    hub: Any = require("huggingface_hub", "timm", "look for weights")
    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(hub.try_to_load_from_cache(f"timm/{entry.timm}", file), str) for file in files)


@contextmanager
def offline() -> Iterator[None]:
    """Fetch nothing for a while: weights that are in the hub's cache are used, others fail at once."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    hub: Any = sys.modules.get("huggingface_hub.constants")  # it reads the variable once, when it is imported
    switch = getattr(hub, "HF_HUB_OFFLINE", None)
    try:
        if switch is not None:
            hub.HF_HUB_OFFLINE = True
        yield
    finally:
        hub = sys.modules.get("huggingface_hub.constants")
        if hub is not None:
            hub.HF_HUB_OFFLINE = switch if switch is not None else before in ("1", "true", "TRUE", "on", "ON")
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def load(spec: str, weights: str | Path | None = None, pretrained: bool | None = None) -> LoadedModel:
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
