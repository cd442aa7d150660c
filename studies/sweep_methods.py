"""Apply every method to one model, and say which work, are refused or fail."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import vitrail
from vitrail.errors import VitrailError
from vitrail.methods.registry import Method

#: Options that are faster than the methods' own quick variants.
QUICK: dict[str, dict[str, Any]] = {
    "rise": {"masks": 8}, "occlusion": {"window": 4, "stride": 4}, "vit_cx": {"delta": 0.7},
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """Result of one method on one model.

    Attributes:
        method: Name of the method.
        outcome: "works", "refused" (with an error of Vitrail) or "failed" (any other error, or values not finite).
        error: Class of the error, "" if there was none.
        reason: The error's message, or what is wrong with the map.
        location: File and line of an unexpected error: the last frame inside Vitrail, and the last frame.
    """

    method: str
    outcome: str
    error: str = ""
    reason: str = ""
    location: str = ""


def attempts(
    model: nn.Module,
    inputs: Any,
    skip: Collection[str] = (),
    target: Any = 3,
    quick: Mapping[str, Mapping[str, Any]] = QUICK,
) -> Iterator[Attempt]:
    """Apply every method to a batch of one input, with the options in ``quick`` or else its own quick options."""
    for method in vitrail.methods().values():
        if method.name not in skip:
            yield _attempt(model, inputs, method, target, quick.get(method.name, method.quick))


def _attempt(model: nn.Module, inputs: Any, method: Method, target: Any, options: Mapping[str, Any]) -> Attempt:
    try:
        found = vitrail.explain(model, inputs, method.name, target=target, **options)
    except VitrailError as error:
        return Attempt(method.name, "refused", type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 - a sweep lists every error
        return Attempt(method.name, "failed", type(error).__name__, str(error), error_location(error))
    if not bool(torch.isfinite(found.maps).all()) or len(found.maps) != 1:
        return Attempt(method.name, "failed", "", "the maps are not finite, or there is more than one")
    return Attempt(method.name, "works", "", "constant map" if bool(found.constant.any()) else "")


def error_location(error: Exception) -> str:
    """File and line of an error: the last frame inside Vitrail, and the last frame."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/vitrail/" in frame.filename][-1:]
    last = [frame for frame in frames[-1:] if frame not in own]
    return " > ".join(f"{'/'.join(f.filename.rsplit('/', 2)[-2:])}:{f.lineno}" for f in [*own, *last])
