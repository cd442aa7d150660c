"""Leadlight: a relevance map mixed with itself as spread over the patches by the attention of the earlier blocks."""

import torch
from torch import Tensor

from . import transformer_mm, vtranm
from .raw_attention import head_mean
from .vit import Classes, Pass


def over_max(x: Tensor) -> Tensor:
    """Divide by the largest entry; a map of zeros stays one."""
    return x / x.max() if x.max() > 0 else torch.zeros_like(x)


def replica(
    pass_: Pass, classes: Classes, mix: float = 0.75, lower: int = 4, of: str = "vtranm", score: str = "prob"
) -> Tensor:
    """Mix a map and its spread version, each over its maximum.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        mix: Share of the spread map.
        lower: One block in so many, counted from the input, is left out of the spreading, as is the last block; at
            least one block spreads.
        of: The map to start from: "vtranm" with lengths and without cosines, or "transformer_mm".
        score: What that map differentiates, "prob" or "logit".

    Returns:
        Patch relevance, shape b, S.
    """
    if of == "vtranm":
        start = vtranm.replica(pass_, classes, variant="af+l", score=score)
    elif of == "transformer_mm":
        start = transformer_mm.replica(pass_, classes, score=score)
    else:
        raise ValueError(f"no replica here for leadlight of {of!r}")
    count = len(pass_.blocks)
    before = pass_.blocks[min(count // lower, count - 2) : -1]
    maps = []
    for image, R in enumerate(start):
        A_bar = torch.zeros(pass_.r.shape[0], pass_.r.shape[0], dtype=torch.float64)
        for block in before:
            A_bar = A_bar + head_mean(block.A[image].detach()) / len(before)
        spread = A_bar[pass_.prefix :, pass_.prefix :] @ R
        maps.append((1 - mix) * over_max(R) + mix * over_max(spread))
    return torch.stack(maps)
