"""Find the linear map that computed the values of an attention call, by where its result lies in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.capture.quantised_weights import dense_weight


@dataclass(frozen=True)
class _Linear:
    """A linear map's result, known by its address; it is kept alive so that the address is not reused."""

    weight: Tensor
    start: int
    stop: int
    source: Tensor | None
    memory: torch.UntypedStorage


class ValueProjections:
    """The linear maps since the last attention call, one of which computes the values of the next."""

    def __init__(self) -> None:
        self._linears: list[_Linear] = []

    def clear(self) -> None:
        """Forget them."""
        self._linears.clear()

    def note(self, source: Tensor | None, weight: Tensor, result: Tensor) -> None:
        """Add a linear map of ``source`` with ``weight``, shape (rows, columns)."""
        start = result.data_ptr()
        stop = start + result.numel() * result.element_size()
        self._linears.append(_Linear(weight, start, stop, source, result.untyped_storage()))

    def find(self, V: Tensor) -> tuple[Tensor, Tensor] | None:
        """What the map of the values V, shape (b, heads, n, dh), read, and its weight; None if it is unknown.

        V is a view into the result of the map; where it lies says which rows of the weight.
        """
        size = V.element_size()
        width = V.shape[1] * V.shape[3]
        for linear in reversed(self._linears):
            if linear.start <= V.data_ptr() < linear.stop and linear.source is not None:
                rows = linear.weight.shape[0]
                first = (V.data_ptr() - linear.start) // size % rows
                if V.stride(-1) == 1 and V.stride(1) == V.shape[3] and first + width <= rows:
                    weight = linear.weight
                    return linear.source, weight if width == rows else dense_weight(weight)[first : first + width]
                return None
        return None
