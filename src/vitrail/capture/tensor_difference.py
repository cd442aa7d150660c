"""How far a tensor is from another one, or from a norm of it."""

from __future__ import annotations

import torch
from torch import Tensor

#: What norms add to the variance.
_NORM_EPS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)


def relative_difference(one: Tensor, two: Tensor) -> Tensor:
    """Largest absolute difference of two tensors, relative to the largest value of the second; ∞ for other shapes.

    Example:
        >>> float(relative_difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])))
        0.5
    """
    if one.shape != two.shape:
        return torch.tensor(torch.inf, dtype=torch.float64, device=one.device)
    scale = two.detach().abs().max().double()
    difference = (one.detach() - two.detach()).abs().max().double()
    return torch.where(scale > 0, difference / scale.clamp_min(1e-300), difference)


def norm_difference(source: Tensor, result: Tensor) -> Tensor:
    """How far a tensor is from a norm of another one: LayerNorm or RMSNorm over the last axis with any gain and bias.

    Gain and bias are fitted to the tokens channel by channel; few tokens would fit anything.
    """
    none = torch.tensor(torch.inf, dtype=torch.float64, device=result.device)
    rows, made = source.detach().double().flatten(0, -2), result.detach().double().flatten(0, -2)
    if source.shape != result.shape or len(rows) < 3:
        return none
    errors = []
    for centred in (rows - rows.mean(-1, keepdim=True), rows):
        square = centred.square().mean(-1, keepdim=True)
        for eps in _NORM_EPS:
            unit = centred * (square + eps).rsqrt()
            x, y = unit - unit.mean(0), made - made.mean(0)
            gain = (x * y).sum(0) / x.square().sum(0).clamp_min(1e-300)
            errors.append((y - gain * x).abs().max() / made.abs().max().clamp_min(1e-300))
    error = torch.stack(errors).min()
    # Some models compute their norms in single precision whatever they run in.
    return error.masked_fill(error < 1e-5, 0.0)
