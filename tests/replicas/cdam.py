"""CDAM: input times gradient of the tokens that enter the last attention module."""

import torch
from torch import Tensor

from .vit import Classes, Pass, gradients_at


def replica(pass_: Pass, classes: Classes, score: str = "logit", block: int = -1) -> Tensor:
    """Dot product of each patch token of the last norm1's output with the gradient of the score at it, signed.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated: "logit", "prob" or "logprob".
        block: Which block's norm1.

    Returns:
        Patch relevance, shape b, S.
    """
    node = pass_.blocks[block].LN1
    (gradient,) = gradients_at([node], pass_, classes, score)
    Y = node.detach()
    maps = [
        torch.stack([torch.dot(Y[image, j], gradient[image, j]) for j in range(pass_.prefix, Y.shape[1])])
        for image in range(Y.shape[0])
    ]
    return torch.stack(maps)
