"""Bi-attn (BT): attention gathered over blocks with weights for heads or for tokens, times gradient feedback."""

import torch
from torch import Tensor

from .raw_attention import head_mean
from .tam import path_gradient, positive_head_mean
from .vit import BlockPass, Classes, Pass, grads


def head_wise(A: Tensor, dA: Tensor) -> Tensor:
    """Mix heads by their importance, the mean size of the entries of (transposed attention times gradient).

    Args:
        A: Attention of one image, shape H, n, n.
        dA: Gradient of the score at A, same shape.

    Returns:
        The mixed map, shape n, n; the weights of the heads sum to one.
    """
    importance = [(A[h].T @ dA[h]).abs().mean() for h in range(A.shape[0])]
    mixed = torch.zeros_like(A[0])
    for h in range(A.shape[0]):
        mixed = mixed + importance[h] / sum(importance) * A[h]
    return mixed


def token_wise(block: BlockPass, image: int) -> Tensor:
    """Scale each column of the head mean by how much longer or shorter attention's values make that token.

    The numerator is the norm of the token's values (bias in, all heads side by side) after the output projection
    (bias out, LayerScale out); the denominator is the norm of the stream entering the block, before norm1.

    Args:
        block: The record of the block.
        image: Which image of the batch.

    Returns:
        The scaled map, shape n, n.
    """
    A = head_mean(block.A[image].detach())
    V = block.V[image].detach()
    scaled = torch.zeros_like(A)
    for j in range(A.shape[0]):
        value = torch.cat([V[h, j] for h in range(V.shape[0])]) @ block.Wo
        X = block.X[image, j].detach()
        scaled[:, j] = A[:, j] * torch.sqrt((value**2).sum()) / torch.sqrt((X**2).sum())
    return scaled


def replica(
    pass_: Pass,
    classes: Classes,
    variant: str = "head",
    start: int | None = None,
    steps: int = 20,
    feedback: bool = True,
    score: str = "logit",
) -> Tensor:
    """Gather attention from the identity up, block by block, and multiply by the last map's path-averaged gradient.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        variant: How a block's heads become one map: "head" by importance of heads, "token" by lengths of tokens.
        start: First block (from 0) that takes part; None means 3 for "head" and 6 for "token". A start beyond the
            last block means the last block.
        steps: Number of points on the path from the zero image to the image, both included.
        feedback: Whether to multiply by the gradients; otherwise the gathered attention is read as it is.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    if variant not in ("head", "token"):
        raise ValueError(f"unknown variant {variant!r}")
    if start is None:
        start = 3 if variant == "head" else 6
    start = min(start, len(pass_.blocks) - 1)
    dA = grads(pass_, classes, score)[0]
    path = path_gradient(pass_, classes, steps, score) if feedback else None
    maps = []
    for image in range(pass_.logits.shape[0]):
        R = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        for i in range(start, len(pass_.blocks)):
            block = pass_.blocks[i]
            M = head_wise(block.A[image].detach(), dA[i][image]) if variant == "head" else token_wise(block, image)
            R = R + M @ R
        if variant == "token":
            R = R.abs()
        maps.append(pass_.read(R if path is None else R * positive_head_mean(path[image])))
    return torch.stack(maps)
