"""AGCAM: positive attention gradients times the sigmoid of the attention logits, on a graph cut before attention."""

import torch
from torch import Tensor

from .vit import Classes, Pass, grads, run


def replica(pass_: Pass, classes: Classes, score: str = "logit") -> Tensor:
    """Sum over blocks and heads, for the rows the head reads, of ReLU(dA) times sigmoid(O).

    The gradient is that of a pass in which the output of every norm1 is a constant, so that it comes down to lower
    blocks only along the skip connections and through the MLPs. Each row is clamped on its own before rows are mixed.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    cut = run(pass_.model, pass_.images, cut=True)
    dA = grads(cut, classes, score)[0]
    b, H, n, _ = dA[0].shape
    maps = []
    for image in range(b):
        total = torch.zeros(n, dtype=torch.float64)
        for block, gradient in zip(pass_.blocks, dA, strict=True):
            O_ = block.O_[image].detach()
            for h in range(H):
                for i in range(n):
                    sigmoid = 1.0 / (1.0 + torch.exp(-O_[h, i]))
                    total = total + pass_.r[i] * gradient[image, h, i].clamp(min=0.0) * sigmoid
        maps.append(total[pass_.prefix :])
    return torch.stack(maps)
