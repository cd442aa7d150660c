"""How the head reads the tokens, from the gradient of the explained target in the same pass."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from vitrail.capture.layout import Layout, index_tensor

#: A squared gradient below this share of the largest is none.
SILENT = 1e-24


def token_reach(gradient: Tensor) -> Tensor:
    """Squared length of the gradient at each query of an attention's output: (b, H, m, dh) to (b, m)."""
    return gradient.double().square().sum((1, 3))


def measured_readout(
    reach: Tensor, expected: Tensor, layout: Layout, valid: Tensor | None = None, pooled: bool = False
) -> Tensor:
    """Weights of the queries of the last block for each input, shape (b, m).

    Where the queries that are read are those of the model's known readout, its weights are taken; other queries
    have equal weights, except that a class token beside the mean of all patches has the weight of all of them. Nothing
    is read from the device, so that the result may be part of a recorded pass.

    Args:
        reach: Squared gradient of the target at each query, shape (b, m).
        expected: Weights of the known readout, shape (m,); taken as they are where the gradient is zero.
        layout: Where the patches stand among the tokens.
        valid: Which tokens are no padding, shape (b, m), or None.
        pooled: Whether the queries are those of an attention pool, not tokens.

    Example:
        >>> layout = Layout(prefix=1, grid=(1, 2), readout="cls")
        >>> measured_readout(torch.tensor([[0.0, 1.0, 1.0]]), torch.tensor([1.0, 0.0, 0.0]), layout)
        tensor([[0.0000, 0.5000, 0.5000]])
    """
    top = reach.amax(-1, keepdim=True)
    live = reach > top * SILENT
    known = (expected > 0).expand_as(live)
    if valid is not None and valid.shape == live.shape:
        live, known = live & valid, known & valid
    weights = live.to(expected) / live.sum(-1, keepdim=True).clamp_min(1)
    if layout.grid is not None and not pooled:
        weights = torch.where(_beside_patches(reach, live, layout), _class_and_mean(expected, layout), weights)
    own = known.to(expected) * expected
    if valid is not None:
        own = own / own.sum(-1, keepdim=True).clamp_min(torch.finfo(own.dtype).tiny) * expected.sum()
    same = (live == known).all(-1, keepdim=True) | ~(top > 0) | ~live.any(-1, keepdim=True)
    return torch.where(same, own, weights)


def _patches(layout: Layout, queries: int, device: torch.device) -> Tensor:
    return index_tensor(tuple(t for t in layout.patch_tokens(queries) if t >= 0), device)


def _beside_patches(reach: Tensor, live: Tensor, layout: Layout) -> Tensor:
    """Whether a class token is read by itself, beside all patches, shape (b, 1).

    A token that is read by itself weighs as much as all patches of a mean together.
    """
    if not layout.prefix:
        return torch.zeros_like(live[:, :1])
    patches = _patches(layout, reach.shape[-1], reach.device)
    size = reach.sqrt()
    alone = size[:, 0] > sqrt(len(patches)) * size[:, patches].median(-1).values
    return (live[:, 0] & live[:, patches].all(-1) & alone)[:, None]


def _class_and_mean(like: Tensor, layout: Layout) -> Tensor:
    """Weights of a class token beside the mean of all patches, shape (m,)."""
    weights = torch.zeros_like(like)
    patches = _patches(layout, len(like), like.device)
    weights.index_fill_(0, patches, 1 / len(patches))
    weights[:1] = 1
    return weights
