"""Helpers for tests and examples: a small model without other libraries, and fast options for every method."""

from __future__ import annotations

from typing import Any

from vitrail.methods import METHODS
from vitrail.models.plain_vit import tiny_vit

__all__ = ["quick", "tiny_vit"]


def quick() -> dict[str, dict[str, Any]]:
    """Every method with options that make it fast, as ``explain(…, methods=quick())`` takes them.

    Methods with weights of their own, which are trained for one model, are left out.

    Example:
        >>> quick()["tam"]
        {'steps': 3}
    """
    return {name: dict(method.quick) for name, method in METHODS.items() if method.check_weights is None}
