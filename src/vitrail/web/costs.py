"""What a method costs before it is run: how many pictures it will show the model, and whether that is too many."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from vitrail.capture.structure import ModelStructure
from vitrail.errors import OptionError
from vitrail.methods import find
from vitrail.methods.cost import size_of
from vitrail.web.limits import Limits

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


def evaluations(spec: str, options: Mapping[str, Any], structure: ModelStructure, targets: int = 1) -> int:
    """Number of images a method evaluates beyond the shared pass; where that depends on the image, the maximum.

    Args:
        spec: The method as users type it.
        options: All its options.
        structure: The model's structure.
        targets: Number of classes.
    """
    return find(spec)[1].cost(options, size_of(structure), targets).evaluations


def cheap(spec: str, options: Mapping[str, Any], structure: ModelStructure) -> bool:
    """Whether a method is made in the pass that all cheap methods share."""
    return evaluations(spec, options, structure) == 0


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
    total = evaluations(spec, options, structure, targets)
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
