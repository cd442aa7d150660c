"""Scenes as a data set: the drawn pictures in the same form as those read from files."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.data.sample import Listing, Sample
from vitrail.data.scenes import CLASSES, Scene, Scenes

__all__ = ["SceneSet", "scene_sample"]


class SceneSet(Listing):
    """A split of scenes as samples. No files are needed.

    Args:
        split: "train", "val" or "test".
        count: How many scenes; as in `Scenes` unless told.
        **options: As `Scenes` takes them: objects, pairs, tagged, tag, seed, size.

    Example:
        >>> scenes = SceneSet("val", 10, objects=2)
        >>> sample = scenes[3]
        >>> sample.id, sample.image.size, CLASSES[sample.label], sample.mask.shape, sample.boxes.shape
        ('val-0-128-2-000003', (128, 128), 'fish', (128, 128), (2, 4))
    """

    name = "scenes"

    def __init__(self, split: str = "test", count: int | None = None, **options: Any) -> None:
        self.scenes = Scenes(split, count, **options)
        super().__init__(map(self.scenes.id, range(len(self.scenes))))

    @property
    def classes(self) -> tuple[str, ...]:
        """The twelve classes."""
        return CLASSES

    def _read(self, index: int) -> Sample:
        return scene_sample(self.scenes[index], self.ids[index])


def scene_sample(scene: Scene, name: str) -> Sample:
    """A scene as a sample about its first thing, the one in front.

    Args:
        scene: Any scene.
        name: The sample's id.

    Returns:
        The label is the first thing's class and the mask its visible pixels. Another thing of the same class, which a
        good explanation may point at as well, is 255: to be ignored. Boxes are there for all things, front to back.
    """
    from PIL import Image

    label = scene.classes[0]
    mask = np.zeros(scene.image.shape[:2], np.uint8)
    for kind, seen in zip(scene.classes, scene.masks, strict=True):
        if kind == label:
            mask[seen] = 255
    mask[scene.masks[0]] = 1
    return Sample(
        name, Image.fromarray(scene.image), label=label, labels=tuple(sorted(scene.present)), mask=mask,
        boxes=scene.boxes.astype(np.float32), box_labels=np.array(scene.classes, np.int64),
    )  # fmt: skip
