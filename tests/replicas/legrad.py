"""LeGrad: positive attention gradients of the score that each block's own output would have."""

import torch
from torch import Tensor

from .vit import Classes, Pass, read_as_last, score_of


def leaving(pass_: Pass, i: int) -> Tensor:
    """Residual stream leaving block i, a node of the graph, shape b, n, d."""
    return pass_.X_last if i == len(pass_.blocks) - 1 else pass_.blocks[i + 1].X


def block_gradient(pass_: Pass, classes: Classes, i: int, pool: str, score: str) -> Tensor:
    """Gradient at block i's attention of the score that its output gets from the model's tail, shape b, H, n, n."""
    x = leaving(pass_, i)
    if pool == "mean":
        x = x.mean(dim=1, keepdim=True).expand_as(x)
    elif pool != "model":
        raise ValueError(f"unknown pool {pool!r}")
    total = score_of(read_as_last(pass_, x), classes, score)
    return torch.autograd.grad(total, pass_.blocks[i].A, retain_graph=True)[0]


def replica(pass_: Pass, classes: Classes, blocks: int = 2, pool: str = "model", score: str = "logit") -> Tensor:
    """Sum over the last blocks of ReLU(gradient at their attention), averaged over heads and all query rows.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        blocks: How many blocks take part, counted from the last.
        pool: "model" reads a block's output as the model reads the last one; "mean" first puts the mean over all
            tokens, prefix included, in the place of every token.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    b, H, n, _ = pass_.blocks[0].A.shape
    relevance = torch.zeros(b, n, dtype=torch.float64)
    for i in range(max(0, len(pass_.blocks) - blocks), len(pass_.blocks)):
        gradient = block_gradient(pass_, classes, i, pool, score)
        for h in range(H):
            for row in range(n):
                relevance = relevance + gradient[:, h, row].clamp(min=0.0) / (H * n)
    return relevance[:, pass_.prefix :]
