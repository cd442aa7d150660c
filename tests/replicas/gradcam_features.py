"""Grad-CAM on features: the channels of a block's first layer norm, weighted by their mean gradient."""

import torch
from torch import Tensor

from .vit import Classes, Pass, gradients_at


def first_component(columns: list[Tensor]) -> Tensor:
    """Project the positions, given as one column of numbers for each channel, onto their first principal component.

    The component is the eigenvector of the channels' covariance with the largest eigenvalue, found by repeated
    multiplication. Of its two signs, the one that correlates positively with the sum of the channels is taken.

    Args:
        columns: One number for each of S positions, for each channel.

    Returns:
        One number for each position, shape S.
    """
    centred = torch.stack([column - column.mean() for column in columns], 1)
    covariance = centred.T @ centred
    vector = torch.linalg.eigh(covariance).eigenvectors[:, -1]
    for _ in range(50):
        vector = covariance @ vector
        vector = vector / vector.square().sum().sqrt()
    projection = centred @ vector
    total = sum(columns)
    agrees = ((projection - projection.mean()) * (total - total.mean())).sum() >= 0
    return projection if agrees else -projection


def mean_of_scaled(cams: list[Tensor]) -> Tensor:
    """Mean of maps that are divided by their maximum each; a map of zeros stays one."""
    return sum(cam / cam.max() if cam.max() > 0 else cam for cam in cams) / len(cams)


def replica(
    pass_: Pass, classes: Classes, score: str = "logit", blocks: tuple[int, ...] = (-1,), eigen: bool = False
) -> Tensor:
    """Weigh each channel of norm1 by its gradient averaged over patches, sum, keep the positive part.

    Prefix tokens take part neither in the mean gradient nor in the map.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        score: What is differentiated: "logit", "prob" or "logprob".
        blocks: Which blocks; of several, the mean of their maps, each divided by its maximum.
        eigen: Take the first principal component of the weighed channels instead of their sum.

    Returns:
        Patch relevance, shape b, S.
    """
    nodes = [pass_.blocks[i].LN1 for i in blocks]
    gradients = gradients_at(nodes, pass_, classes, score)
    maps = []
    for image in range(nodes[0].shape[0]):
        cams = []
        for node, gradient in zip(nodes, gradients, strict=True):
            Y = node[image, pass_.prefix :].detach()
            dY = gradient[image, pass_.prefix :]
            columns = [dY[:, k].mean() * Y[:, k] for k in range(Y.shape[1])]
            cams.append((first_component(columns) if eigen else sum(columns)).clamp(min=0.0))
        total = cams[0] if len(cams) == 1 else mean_of_scaled(cams)
        maps.append(total)
    return torch.stack(maps)
