"""Transformer-MM (generic attention explainability) for an encoder with self-attention only."""

import torch
from torch import Tensor

from .vit import Classes, Pass, grads


def weighted_attention(A: Tensor, dA: Tensor) -> Tensor:
    """Multiply attention and gradient in each head, drop negative entries, and only then average over heads.

    Args:
        A: Attention of one image, shape H, n, n.
        dA: Gradient of the score at A, same shape.

    Returns:
        The class-specific map, shape n, n.
    """
    total = torch.zeros_like(A[0])
    for h in range(A.shape[0]):
        total = total + (dA[h] * A[h]).clamp(min=0.0)
    return total / A.shape[0]


def replica(pass_: Pass, classes: Classes, start: int = 0, score: str | None = None) -> Tensor:
    """Start from the identity and add, block by block, the weighted attention times what has been gathered so far.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        start: First block (from 0) that takes part.
        score: What is differentiated; by default what the pass says.

    Returns:
        Patch relevance, shape b, S.
    """
    dA = grads(pass_, classes, score)[0]
    maps = []
    for image in range(pass_.logits.shape[0]):
        R = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        for i in range(start, len(pass_.blocks)):
            R = R + weighted_attention(pass_.blocks[i].A[image].detach(), dA[i][image]) @ R
        maps.append(pass_.read(R))
    return torch.stack(maps)
