"""Grad-CAM on features: the channels of the last block's first layer norm, weighed by their mean gradient."""

import torch
from torch import Tensor

from .vit import Classes, Pass, gradients_at


def replica(pass_: Pass, classes: Classes, score: str = "logit") -> Tensor:
    """Weigh each channel of the last norm1 by its gradient averaged over patches, sum, keep the positive part.

    Prefix tokens take part neither in the mean gradient nor in the map.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    node = pass_.blocks[-1].LN1
    (gradient,) = gradients_at([node], pass_, classes, score)
    maps = []
    for image in range(node.shape[0]):
        Y = node[image, pass_.prefix :].detach()
        dY = gradient[image, pass_.prefix :]
        cam = torch.zeros(Y.shape[0], dtype=torch.float64)
        for k in range(Y.shape[1]):
            cam = cam + dY[:, k].mean() * Y[:, k]
        maps.append(cam.clamp(min=0.0))
    return torch.stack(maps)
