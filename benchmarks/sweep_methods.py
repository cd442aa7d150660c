"""What the sweeps share: apply every method to one model, and make random weights large enough to matter."""

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

#: Quicker than the methods' own quick settings.
QUICK: dict[str, dict[str, Any]] = {
    "rise": {"masks": 8}, "occlusion": {"window": 4, "stride": 4}, "vit_cx": {"delta": 0.7},
}  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """What came of one method on one model.

    Attributes:
        method: Name of the method.
        verdict: "works", "refused" (with an error of Vitrail) or "failed" (any other error, or values not finite).
        error: Class of the error, "" where there was none.
        reason: The error's message, or what is wrong with the map.
        place: File and line where an unexpected error was raised, with the last line of Vitrail on the way there.
    """

    method: str
    verdict: str
    error: str = ""
    reason: str = ""
    place: str = ""


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
        return Attempt(method.name, "failed", type(error).__name__, str(error), place_of(error))
    if not bool(torch.isfinite(found.maps).all()) or len(found.maps) != 1:
        return Attempt(method.name, "failed", "", "values that are not finite, or a wrong number of maps")
    return Attempt(method.name, "works", "", "constant map" if bool(found.flat.any()) else "")


def place_of(error: Exception) -> str:
    """Where an error was raised: the last line inside Vitrail, and the last line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/vitrail/" in frame.filename][-1:]
    last = [frame for frame in frames[-1:] if frame not in own]
    return " > ".join(f"{'/'.join(f.filename.rsplit('/', 2)[-2:])}:{f.lineno}" for f in [*own, *last])


def enlarge(model: nn.Module, limit: float = 0.05, noise: float = 0.05) -> None:
    """Add noise to weights below a limit: heads of zeros and tiny LayerScales would hide whether a method works."""
    with torch.no_grad():
        for parameter in model.parameters():
            if float(parameter.abs().max()) < limit:
                parameter.add_(noise * torch.randn_like(parameter))
