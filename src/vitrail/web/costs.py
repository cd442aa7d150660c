"""What a method costs before it is run: how many pictures it will show the model, and whether that is too many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, isfinite
from typing import Any

from vitrail.capture.structure import ModelStructure
from vitrail.errors import OptionError
from vitrail.methods import find
from vitrail.web.limits import Limits

#: Methods of these families share one pass with each other; the others take passes of their own.
SHARED = ("attention", "gradient", "control")
#: A step that looks at no more pictures than this is short: it may be let in while a long one is at work.
SHORT = 8
#: Highest values of options that decide how long a method takes or how much room it needs.
HIGHEST = {
    "masks": 10_000, "random_masks": 10_000, "samples": 1000, "steps": 500, "draws": 20, "cells": 32,
    "seed": 2**31 - 1,
}  # fmt: skip
#: Highest magnitude of any other number.
LARGEST = 1_000_000
WORDS = 100


def looks(spec: str, options: Mapping[str, Any], structure: ModelStructure, targets: int = 1) -> int:
    """How many pictures beyond the common pass a method shows the model; where that depends on the picture, the most.

    Args:
        spec: The method as users type it.
        options: All its options.
        structure: What the model is made of.
        targets: Number of classes asked for.
    """
    name = spec.partition(":")[0]
    if name == "inverted":
        _, inner, own = find(str(options["of"]))
        return looks(inner.name if inner.made is None else str(options["of"]), own, structure, targets)
    rows, columns = structure.layout.grid or (14, 14)
    count = _number(options)
    if name in ("tam", "bi_attn"):
        return count("steps") * targets
    if name == "attattr":
        return count("steps") * targets * len(range(len(structure.layers))[slice(count("start"), None)])
    if name in ("integrated_gradients", "smoothgrad"):
        return count("steps" if name == "integrated_gradients" else "samples") * targets
    if name == "rise":
        return count("masks")
    if name == "occlusion":
        down, across = (ceil(max(1, n - count("window") + 1) / max(1, count("stride"))) for n in (rows, columns))
        return 1 + down * across
    if name == "scorecam":
        return _width(structure)
    if name == "vit_cx":
        masks = count("random_masks") if options.get("masks") == "random" else _width(structure)
        noisy = 2 * count("draws") * (2 if options.get("antithetic") else 1) if options.get("debias") else 1
        return 1 + masks * noisy
    return 0 if _shares(name) else targets


def _number(options: Mapping[str, Any]) -> Callable[[str], int]:
    def count(name: str) -> int:
        value = options.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    return count


def _width(structure: ModelStructure) -> int:
    """Feature maps of a block: heads are 64 wide in nearly every model, and narrower in small ones."""
    return 64 * max((layer.heads for layer in structure.layers), default=12)


def _shares(name: str) -> bool:
    return find(name)[1].family in SHARED


def cheap(spec: str, options: Mapping[str, Any], structure: ModelStructure) -> bool:
    """Whether a method is made in the pass that all cheap methods share."""
    return looks(spec, options, structure) == 0


def allow(spec: str, options: Mapping[str, Any], structure: ModelStructure, targets: int, limits: Limits) -> int:
    """Refuse options that are too long, too large or cost too much.

    Returns:
        The number of pictures the method will show the model, at most.

    Raises:
        OptionError: Names the option and what is allowed.
    """
    name = spec.partition(":")[0]
    for option, value in options.items():
        _check(name, option, value)
    total = looks(spec, options, structure, targets)
    if total > limits.looks:
        raise OptionError(
            f"{spec} would show the model {total} pictures, and this server allows {limits.looks} for a method: "
            "ask for fewer masks, samples, steps or classes"
        )
    return total


def _check(name: str, option: str, value: Any) -> None:
    if isinstance(value, str) and len(value) > WORDS:
        raise OptionError(f"{option} of {name} is longer than {WORDS} characters: shorten it")
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = HIGHEST.get(option, LARGEST)
        if not isfinite(value) or abs(value) > most:
            raise OptionError(f"{option}={value} of {name} is more than this server allows: use {most} at most")
