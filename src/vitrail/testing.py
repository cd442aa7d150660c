"""A small transformer to try things on, without any other library."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.methods import METHODS
from vitrail.models.plain_vit import PlainViT


def tiny_vit(seed: int = 0, **options: int) -> PlainViT:
    """A small ``PlainViT`` with the same random weights for the same seed; torch's own generator is left alone.

    Example:
        >>> tiny_vit()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 5])
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PlainViT(**options).eval()  # type: ignore[arg-type]


def quick() -> dict[str, dict[str, Any]]:
    """Every method with options that make it quick, as ``explain(…, methods=quick())`` takes them.

    Example:
        >>> quick()["tam"]
        {'steps': 3}
    """
    return {name: dict(method.quick) for name, method in METHODS.items()}
