"""The forward pass that the structure of a model is measured on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode
from vitrail.capture.inputs import ModelInputs

#: More attention calls than any model has.
ALL_CALLS = frozenset(range(4096))


@dataclass
class StructurePass:
    """The forward pass that everything is measured on."""

    model: nn.Module
    model_inputs: ModelInputs
    mode: AttentionMode
    output: Any
    scores: Tensor
    leaf: Tensor | None
    shared: float = 0.0
    owners: Tensor | None = None
    live: list[int] = field(default_factory=list)
    arrived: dict[int, Tensor] = field(default_factory=dict)

    @property
    def map_size(self) -> tuple[int, ...] | None:
        """Size of a map, such as the height and width of the images, or None for texts."""
        return self.model_inputs.map_size
