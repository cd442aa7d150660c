"""A batch, a counted model and the view that tests of perturbation share."""

from __future__ import annotations

import torch

from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

SEEN = Preprocess((32, 32), IMAGENET_MEAN, IMAGENET_STD)


def batch(n=4, size=32, seed=1):
    dice = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, size, size, generator=dice)
    # Few distinct values, so that ties are everywhere.
    return images, torch.randint(0, 9, (n, size, size), generator=dice).float()


def counted(model):
    """The model, and a list of how many pictures each of its forwards saw."""
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return model, seen
