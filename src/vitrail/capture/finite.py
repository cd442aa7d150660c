"""Refusal of models whose output is not finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.errors import ModelError


def check_finite(model: nn.Module, logits: Tensor | None) -> None:
    """Refuse to explain a model whose output is not finite, and name the weights that make it so."""
    if logits is None or bool(torch.isfinite(logits).all()):
        return
    check_finite_weights(model)
    raise ModelError(
        "the model's output is not finite although its weights are: the input may hold NaN, or half precision "
        "overflowed; check the input or use float32"
    )


def check_finite_weights(model: nn.Module) -> None:
    """Refuse a model with weights that are not finite; call it for outputs that are not, as it reads all weights."""
    broken = [name for name, p in (*model.named_parameters(), *model.named_buffers()) if _broken(p)]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ModelError(f"the model's weights are not finite: {broken[0]}{more}; load a sound checkpoint")


def _broken(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
