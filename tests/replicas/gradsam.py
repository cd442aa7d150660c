"""Grad-SAM: attention times its positive gradient, averaged over blocks, heads and queries."""

import torch
from torch import Tensor

from .vit import Classes, Pass, grads


def replica(pass_: Pass, classes: Classes, score: str = "logit") -> Tensor:
    """Average A times ReLU(dA) over every block, head and query row, prefix rows included; keep patch columns.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    dA = grads(pass_, classes, score)[0]
    b, H, n, _ = dA[0].shape
    maps = []
    for image in range(b):
        total = torch.zeros(n, dtype=torch.float64)
        for block, gradient in zip(pass_.blocks, dA, strict=True):
            for h in range(H):
                for i in range(n):
                    total = total + block.A[image, h, i].detach() * gradient[image, h, i].clamp(min=0.0)
        maps.append(total[pass_.prefix :] / (len(pass_.blocks) * H * n))
    return torch.stack(maps)
