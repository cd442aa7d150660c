"""The average of a net's weights over its last steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Average:
    """An exponential moving average of a net's weights and statistics, held by a model of its own.

    Args:
        net: What is trained; what it has beyond the model is left out.
        model: Holds the average; its names are a part of the net's.
    """

    def __init__(self, net: nn.Module, model: nn.Module) -> None:
        source = net.state_dict()
        pairs = [(own, source[name]) for name, own in model.state_dict().items()]
        self._pairs = [(own, new) for own, new in pairs if own.is_floating_point() and own.numel()]

    @torch.no_grad()
    def update(self, share: Tensor) -> None:
        """Move by a share of the way to the net's weights; the share is a tensor without axes."""
        own, new = ([pair[i] for pair in self._pairs] for i in range(2))
        way = torch._foreach_sub(new, own)  # noqa: SLF001 -- a few kernels, not hundreds
        torch._foreach_mul_(way, share)
        torch._foreach_add_(own, way)
