"""Iterated integrated attributions: the image and the last block's attention are both faded in from zero."""

import torch
from torch import Tensor

from .vit import Classes, Pass, gradients_at, run


def replica(pass_: Pass, classes: Classes, image_scales: list[float], steps: int, score: str = "logit") -> Tensor:
    """Rollout of attention times gradient, positive part, averaged over all pairs of scales.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        image_scales: Factors of the image.
        steps: The last block's attention is scaled by 0/steps to steps/steps.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    L, b, n = len(pass_.blocks), pass_.logits.shape[0], pass_.r.shape[0]
    total = torch.zeros(L, b, n, n, dtype=torch.float64)
    for alpha in image_scales:
        images = pass_.images.detach() * alpha
        attention = run(pass_.model, images).blocks[-1].A.detach()
        for j in range(steps + 1):
            faded = (attention * (j / steps)).requires_grad_(True)
            replaced = run(pass_.model, images, attention={L - 1: faded})
            maps = [block.A for block in replaced.blocks]
            for i, gradient in enumerate(gradients_at(maps, replaced, classes, score)):
                for h in range(gradient.shape[1]):
                    total[i] += (maps[i].detach() * gradient)[:, h].clamp(min=0.0) / gradient.shape[1]
    total = total / (len(image_scales) * (steps + 1))
    relevance = []
    for image in range(b):
        product = torch.eye(n, dtype=torch.float64)
        for i in range(L):
            M = total[i, image] + torch.eye(n, dtype=torch.float64)
            product = (M / M.sum(dim=1, keepdim=True)) @ product
        relevance.append(pass_.read(product))
    return torch.stack(relevance)
