"""Rendered examples as tensors that move to a device together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class RenderedData:
    """Tensors of rendered examples, and what the examples are."""

    def to(self, device: torch.device) -> Self:
        """Move the tensors to a device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})
