"""A small model, training images and settings with which an explainer is trained in a second."""

from __future__ import annotations

import torch

from vitrail.methods.shapley_explainer import TrainingImages, TrainingSettings, train_explainer
from vitrail.models import LoadedModel
from vitrail.testing import tiny_vit

PIXELS = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SETTINGS = TrainingSettings(surrogate_steps=5, explainer_steps=6, batch=3, groups=2, pairs=2, explainer_lr=1e-3)
SMALL = {"size": 16, "patch": 4, "width": 8, "depth": 2, "heads": 2, "classes": 3}


def small_vit(seed=0, **options):
    model = tiny_vit(seed, **{**SMALL, **options})
    with torch.no_grad():
        model.head.weight.mul_(6)  # so that predictions depend on the patches
    return model


def images_of(count=6):
    return TrainingImages(count, lambda rows: PIXELS[list(rows)], "noise")


def train(path, model=None, settings=SETTINGS, **options):
    loaded = LoadedModel(model or small_vit(), None, ("a", "b", "c"), "small")
    return train_explainer(loaded, images_of(), path, settings, checkpoint_steps=2, **options)
