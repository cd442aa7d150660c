"""Attention rollout with gradients: the vit-explain idea, without the faults of its program."""

import torch
from torch import Tensor

from .vit import Classes, Pass, grads


def factor(A: Tensor, dA: Tensor, discard: float) -> Tensor:
    """One block's factor of the product.

    Args:
        A: Attention of one image, shape H, n, n.
        dA: Gradient of the score at A, same shape.
        discard: Share of the entries that is set to zero, smallest first.

    Returns:
        Matrix with rows that sum to one, shape n, n.
    """
    H, n = A.shape[0], A.shape[-1]
    fused = torch.zeros(n, n, dtype=torch.float64)
    for h in range(H):
        fused = fused + A[h] * dA[h]
    # The clamp comes after the head mean: heads with opposite signs cancel first.
    fused = (fused / H).clamp(min=0.0)
    smallest = sorted((float(fused[i, j]), i, j) for i in range(n) for j in range(n))
    for _, i, j in smallest[: int(n * n * discard)]:
        fused[i, j] = 0.0
    mixed = (fused + torch.eye(n, dtype=torch.float64)) / 2
    for i in range(n):
        mixed[i] = mixed[i] / mixed[i].sum()
    return mixed


def replica(pass_: Pass, classes: Classes, discard: float = 0.9, score: str = "logit") -> Tensor:
    """Product over blocks of gradient-weighted attention plus identity, later blocks on the left.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        discard: Share of the entries of each fused map, smallest first, that is set to zero. The count is cut down
            to a whole number; no entry is protected.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    dA = grads(pass_, classes, score)[0]
    maps = []
    for image in range(pass_.logits.shape[0]):
        product = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        for block, gradient in zip(pass_.blocks, dA, strict=True):
            product = factor(block.A[image].detach(), gradient[image], discard) @ product
        maps.append(pass_.read(product))
    return torch.stack(maps)
