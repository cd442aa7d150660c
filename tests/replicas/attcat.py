"""AttCAT: every token's input times gradient, block by block, weighted by the attention the token receives."""

import torch
from torch import Tensor

from .raw_attention import head_mean
from .vit import Classes, Pass, gradients_at


def received(pass_: Pass, A: Tensor, query: str) -> Tensor:
    """How much attention each token receives, shape n, from one head-averaged map A, shape n, n."""
    n = A.shape[0]
    alpha = torch.zeros(n, dtype=torch.float64)
    for i in range(n):
        if query == "mean":
            alpha = alpha + A[i] / n
        elif query == "readout":
            alpha = alpha + pass_.r[i] * A[i]
        else:
            raise ValueError(f"unknown query {query!r}")
    return alpha


def replica(pass_: Pass, classes: Classes, query: str = "mean", sign: str = "signed", score: str = "logit") -> Tensor:
    """Sum over blocks of attention received times (stream entering the block, dotted with its gradient).

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        query: Which queries count: "mean" averages over all tokens, "readout" over those the head reads.
        sign: What is kept of the final map: "signed" all, "positive" its positive part, "abs" its size.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    streams = [block.X for block in pass_.blocks]
    dX = gradients_at(streams, pass_, classes, score)
    maps = []
    for image in range(pass_.logits.shape[0]):
        total = torch.zeros_like(pass_.r)
        for block, gradient in zip(pass_.blocks, dX, strict=True):
            alpha = received(pass_, head_mean(block.A[image].detach()), query)
            X = block.X[image].detach()
            for j in range(X.shape[0]):
                total[j] = total[j] + alpha[j] * torch.dot(X[j], gradient[image, j])
        maps.append(total[pass_.prefix :])
    relevance = torch.stack(maps)
    if sign == "signed":
        return relevance
    if sign == "positive":
        return relevance.clamp(min=0.0)
    if sign == "abs":
        return relevance.abs()
    raise ValueError(f"unknown sign {sign!r}")
