"""Embedded scenes as inputs of figures: images, their classes, and masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitrail.data.scenes import Scene, Scenes
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.errors import InputError
from vitrail.models import LoadedModel

#: Indices of the test scenes shown first, with one object and with two; further scenes follow from index 20.
FIRST_SCENES = {False: (9, 1), True: (5, 11)}

#: Batches of images, shape (b, 3, height, width), their classes, shape (b,), and object masks, (b, height, width).
LabelledBatches = Iterator[tuple[Tensor, Tensor, Tensor]]


def example_scenes(loaded: LoadedModel, count: int, pairs: bool) -> tuple[Tensor, list[list[int]]]:
    """Render the scenes that a figure shows where no images are given.

    Returns:
        Images, shape (b, 3, height, width), and the classes present in each.
    """
    _check(loaded)
    scenes = _test_scenes(loaded, pairs)
    indices = [*FIRST_SCENES[pairs], *range(20, 20 + count)][:count]
    shown = [scenes[i] for i in indices]
    return torch.stack([scene.to_tensor() for scene in shown]), [list(dict.fromkeys(s.classes)) for s in shown]


def scenes_with_masks(loaded: LoadedModel, count: int, batch: int = 16) -> LabelledBatches:
    """Render test scenes of one object with its class and mask, in batches."""
    _check(loaded)
    scenes = _test_scenes(loaded, False)
    if count > len(scenes):
        raise InputError(f"scenes={count} is more than the {len(scenes)} test scenes")

    def batches() -> LabelledBatches:
        for start in range(0, count, batch):
            rendered: list[Scene] = scenes[start : min(count, start + batch)]
            masks = torch.stack([torch.from_numpy(s.class_mask(s.classes[0]).copy()) for s in rendered])
            yield torch.stack([s.to_tensor() for s in rendered]), torch.tensor([s.classes[0] for s in rendered]), masks

    return batches()


def _test_scenes(loaded: LoadedModel, pairs: bool) -> Scenes:
    size: Any = getattr(loaded.preprocess, "size", (128, 128))
    return Scenes(split="test", objects=1, pairs=pairs, size=int(size[0]))


def trained_on_scenes(loaded: LoadedModel) -> bool:
    """Whether a model was trained on the embedded scenes."""
    return loaded.classes == SCENE_CLASSES


def _check(loaded: LoadedModel) -> None:
    if not trained_on_scenes(loaded):
        name = loaded.name or "this model"
        raise InputError(f"{name} was not trained on the embedded scenes: pass images")
