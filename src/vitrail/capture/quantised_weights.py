"""Weights that a library keeps quantised, as the numbers they stand for."""

from __future__ import annotations

from torch import Tensor


def dense_weight(weight: Tensor) -> Tensor:
    """A weight as a plain tensor; one of a tensor class with a ``dequantize`` of its own, as torchao has, dequantised.

    Example:
        >>> import torch
        >>> class Halves(torch.Tensor):
        ...     def dequantize(self):
        ...         return self.as_subclass(Tensor) / 2
        >>> weight = torch.ones(2).as_subclass(Halves)
        >>> type(dense_weight(weight)).__name__, dense_weight(weight).tolist()
        ('Tensor', [0.5, 0.5])
    """
    own = type(weight).dequantize is not Tensor.dequantize
    return weight.dequantize().detach() if own else weight
