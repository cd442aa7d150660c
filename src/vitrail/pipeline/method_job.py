"""One method to run in a call of `vitrail.explain`, with its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.methods.registry import Method


@dataclass(frozen=True)
class MethodJob:
    """One method to run.

    Attributes:
        label: The method as requested.
        method: Its entry in the registry.
        options: All its options.
    """

    label: str
    method: Method
    options: dict[str, Any]

    @property
    def score(self) -> str | None:
        """What is differentiated or evaluated; None for methods without such an option."""
        return self.options.get("score")

    @property
    def round(self) -> tuple[str, bool] | None:
        """Which backward it shares: what is differentiated, and whether attention is cut; None if it needs none."""
        return None if self.score is None else (self.score, self.method.detach_attention)
