"""Scenes as a data set of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.data.sample import BaseDataset, Sample
from vitrail.data.scenes import Scene, Scenes
from vitrail.data.shapes import SCENE_CLASSES

__all__ = ["SceneDataset", "scene_sample"]


class SceneDataset(BaseDataset):
    """A split of rendered scenes as samples. No files are needed.

    Args:
        split: "train", "val" or "test".
        count: Number of scenes; the default of `Scenes` if None.
        **options: Options of `Scenes`: objects, pairs, tagged, tag, seed, size.

    Example:
        >>> scenes = SceneDataset("val", 10, objects=2)
        >>> sample = scenes[3]
        >>> sample.id, sample.image.size, SCENE_CLASSES[sample.label], sample.mask.shape, sample.boxes.shape
        ('val-0-128-2-000003', (128, 128), 'fish', (128, 128), (2, 4))
    """

    name = "scenes"

    def __init__(self, split: str = "test", count: int | None = None, **options: Any) -> None:
        self.scenes = Scenes(split, count, **options)
        super().__init__(map(self.scenes.id, range(len(self.scenes))))

    @property
    def classes(self) -> tuple[str, ...]:
        """The twelve classes."""
        return SCENE_CLASSES

    def _read(self, index: int) -> Sample:
        return scene_sample(self.scenes[index], self.ids[index])


def scene_sample(scene: Scene, name: str) -> Sample:
    """Convert a scene to a sample about its first object, the one in front.

    Args:
        scene: The scene.
        name: Id of the sample.

    Returns:
        A sample whose label is the class of the first object and whose mask is its visible pixels. Other objects of
        the same class, which a good explanation may highlight too, are 255 (ignore). Boxes cover all objects, front to
        back.
    """
    from PIL import Image

    label = scene.classes[0]
    mask = np.zeros(scene.image.shape[:2], np.uint8)
    for object_class, object_mask in zip(scene.classes, scene.masks, strict=True):
        if object_class == label:
            mask[object_mask] = 255
    mask[scene.masks[0]] = 1
    return Sample(
        name, Image.fromarray(scene.image), label=label, labels=tuple(sorted(scene.present)), mask=mask,
        boxes=scene.boxes.astype(np.float32), box_labels=np.array(scene.classes, np.int64),
    )  # fmt: skip
