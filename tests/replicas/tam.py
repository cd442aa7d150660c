"""TAM, transition attention maps: a Markov chain of attention, weighted by path-averaged gradients of the last map."""

import torch
from torch import Tensor

from .raw_attention import head_mean
from .vit import Classes, Pass, grads, run


def path_gradient(pass_: Pass, classes: Classes, steps: int, score: str) -> Tensor:
    """Gradient at the last attention map, averaged over images faded in from zero, both ends included.

    Args:
        pass_: The recorded forward pass of the full images.
        classes: One class per image.
        steps: Number of evenly spaced factors from 0 to 1 that the pixels are multiplied by.
        score: What is differentiated.

    Returns:
        The mean gradient, signed, shape b, H, n, n.
    """
    total = torch.zeros_like(pass_.blocks[-1].A)
    for t in range(steps):
        alpha = t / (steps - 1) if steps > 1 else 0.0
        total = total + grads(run(pass_.model, alpha * pass_.images), classes, score)[0][-1]
    return (total / steps).detach()


def positive_head_mean(gradient: Tensor) -> Tensor:
    """Drop the negative entries of each head, then average over heads: shape H, n, n to n, n."""
    return head_mean(gradient.clamp(min=0.0))


def replica(
    pass_: Pass,
    classes: Classes,
    start: int = 4,
    steps: int = 20,
    integral: bool = True,
    first_state: bool = False,
    score: str = "logit",
) -> Tensor:
    """Carry the readout row down through the blocks, adding itself at each, and multiply by the gradient weights.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        start: Block (from 0) at which the walk down ends, itself included.
        steps: Number of points on the path from the zero image to the image, both included.
        integral: Whether gradients are averaged along that path; otherwise the one of the image itself is taken.
        first_state: Whether the row of the last block is kept as it is, without any walk.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    gradient = path_gradient(pass_, classes, steps, score) if integral else grads(pass_, classes, score)[0][-1]
    maps = []
    for image in range(pass_.logits.shape[0]):
        v = pass_.r @ head_mean(pass_.blocks[-1].A[image].detach())
        if not first_state:
            for i in range(len(pass_.blocks) - 2, start - 1, -1):
                v = v @ head_mean(pass_.blocks[i].A[image].detach()) + v
        W = pass_.r @ positive_head_mean(gradient[image])
        maps.append((v * W)[pass_.prefix :])
    return torch.stack(maps)
