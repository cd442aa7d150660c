"""Records of attention calls during a pass, and what controls gradients through them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.capture.trace import Block


class Gate:
    """A hook on queries, keys and values; while closed, no gradient passes through attention."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Zeros while closed, else the gradient unchanged."""
        return torch.zeros_like(gradient) if self.closed and gradient is not None else None


@dataclass
class Call:
    """One attention call, in the order in which the model made them.

    Attributes:
        block: What was kept of it.
        shape: (batch, heads, queries, keys); axes before the heads count as batch.
        grid: Spatial size of the last convolution before it, or None.
        Z: Its output before the projection, shape (b, H, m, dh), in the graph; kept only on request.
        V: Its values, shape (b, H, n, dh), in the graph; kept only on request.
        Q: Its queries, K its keys and O its logits, likewise; queries and keys where they were seen.
        beside: Whether the attention before it had not been added to the stream yet.
        product: Whether its queries and keys were seen: logits with other terms have no such pair.
        folded: Whether the heads were folded into the batch.
        allowed: Which keys each query may attend to, shape (b or 1, m, n), or None for all.
    """

    block: Block
    shape: tuple[int, int, int, int]
    grid: tuple[int, int] | None
    Z: Tensor | None = None
    V: Tensor | None = None
    Q: Tensor | None = None
    K: Tensor | None = None
    O: Tensor | None = None  # noqa: E741 - the papers' name for the logits of attention
    beside: bool = False
    product: bool = True
    folded: bool = False
    allowed: Tensor | None = None


@dataclass(frozen=True)
class GraphGap:
    """The attention calls between which a pass builds no graph, as no gradient passes there.

    Attributes:
        after: The call after which the graph ends.
        until: The call after which a new one begins.
    """

    after: int
    until: int
