"""Leadlight: a relevance map mixed with itself as spread over the patches by the attention of the earlier blocks."""

import torch
from torch import Tensor

from . import transformer_mm
from .raw_attention import head_mean
from .vit import Classes, Pass


def over_max(x: Tensor) -> Tensor:
    """Divide by the largest entry; a map of zeros stays one."""
    return x / x.max() if x.max() > 0 else torch.zeros_like(x)


def replica(pass_: Pass, classes: Classes, of: str = "transformer_mm", mix: float = 0.5) -> Tensor:
    """Mix a map and its spread version, each over its maximum.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        of: The map to start from; only "transformer_mm" is written out.
        mix: Share of the spread map.

    Returns:
        Patch relevance, shape b, S.
    """
    if of != "transformer_mm":
        raise ValueError(f"no replica here for leadlight of {of!r}")
    before = pass_.blocks[:-1]
    maps = []
    for image, R in enumerate(transformer_mm.replica(pass_, classes, score="logit")):
        A_bar = torch.zeros(pass_.r.shape[0], pass_.r.shape[0], dtype=torch.float64)
        for block in before:
            A_bar = A_bar + head_mean(block.A[image].detach()) / len(before)
        spread = A_bar[pass_.prefix :, pass_.prefix :] @ R
        maps.append((1 - mix) * over_max(R) + mix * over_max(spread))
    return torch.stack(maps)
