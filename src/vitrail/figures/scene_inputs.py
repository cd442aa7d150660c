"""Embedded scenes to draw figures from where no images are given: pictures, what is seen there, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitrail.cli.demo import mask_of, pixels
from vitrail.data import SCENE_CLASSES, Scene, Scenes
from vitrail.errors import InputError
from vitrail.figures.registry import FigureEntry
from vitrail.models import LoadedModel

#: Held-out scenes shown first, of one thing and of two; if more are wanted, others follow in order.
FIRST = {False: (9, 1), True: (5, 11)}

#: Pictures in batches: images, shape (b, 3, height, width), their classes, shape (b,), and masks, (b, height, width).
Truth = Iterator[tuple[Tensor, Tensor, Tensor]]


def scenes_for(about: LoadedModel, line: FigureEntry) -> tuple[Tensor, list[list[int]]]:
    """Scenes for a figure.

    Returns:
        Images, shape (b, 3, height, width), and for each the classes that are seen.
    """
    _check(about)
    scenes = _scenes(about, line.pairs)
    order = [*FIRST[line.pairs], *(i for i in range(20, 20 + line.scenes))][: line.scenes]
    shown = [scenes[i] for i in order]
    return torch.stack([pixels(scene) for scene in shown]), [list(dict.fromkeys(scene.classes)) for scene in shown]


def truth_of(about: LoadedModel, count: int, batch: int = 16) -> Truth:
    """Held-out scenes of one thing with its mask, in batches."""
    _check(about)
    scenes = _scenes(about, False)
    if count > len(scenes):
        raise InputError(f"scenes={count} is more than the {len(scenes)} held-out scenes there are")

    def batches() -> Truth:
        for start in range(0, count, batch):
            some: list[Scene] = scenes[start : min(count, start + batch)]
            masks = torch.stack([torch.from_numpy(mask_of(s, s.classes[0]).copy()) for s in some])
            yield torch.stack([pixels(s) for s in some]), torch.tensor([s.classes[0] for s in some]), masks

    return batches()


def _scenes(about: LoadedModel, pairs: bool) -> Scenes:
    size: Any = getattr(about.preprocess, "size", (128, 128))
    return Scenes(split="test", objects=1, pairs=pairs, size=int(size[0]))


def knows_scenes(about: LoadedModel) -> bool:
    """Whether a model was trained on them."""
    return about.classes == SCENE_CLASSES


def _check(about: LoadedModel) -> None:
    if not knows_scenes(about):
        name = about.name or "this model"
        raise InputError(f"{name} was not trained on the embedded scenes: say which images to draw from")
