"""What is known about a picture, in the pixels the model sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data import Dataset, Sample
from vitrail.data.scene_set import SceneSet, scene_sample
from vitrail.data.voc import VOC2012
from vitrail.errors import DataError
from vitrail.models.preprocess import Preprocess
from vitrail.scores.pointing import box_masks

Bytes = NDArray[np.uint8]
IGNORE = 255


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """A picture and its objects as the model sees them: resized and cropped with the picture.

    Attributes:
        id: The picture's id.
        image: As the model takes it, shape (channels, height, width).
        label: Its class, or None.
        mask: 0 ground, 255 ignore, anything else the object, shape (height, width); None where unknown.
        boxed: The boxes of the label as a mask, or None where there are no boxes.
        masks: By class, the object of that class, where the data set tells objects apart.
        boxes: By class, the boxes of that class as a mask.
        labelled: The class of each pixel, 0 the ground and 255 ignore, numbered from 1; None where unknown.
    """

    id: str
    image: Tensor
    label: int | None = None
    mask: Tensor | None = None
    boxed: Tensor | None = None
    masks: Mapping[int, Tensor] = field(default_factory=dict)
    boxes: Mapping[int, Tensor] = field(default_factory=dict)
    labelled: Tensor | None = None

    def mask_of(self, explained: int) -> Tensor | None:
        """The object a map of this class should show: that class's where it is in the picture, else the label's."""
        return self.masks.get(explained, self.mask)

    def box_of(self, explained: int) -> Tensor | None:
        """The same with boxes."""
        return self.boxes.get(explained, self.boxed)

    @property
    def things(self) -> Mapping[int, Tensor]:
        """Objects by class, as masks or, where there are none, as boxes."""
        return self.masks or self.boxes


def read_ground_truth(dataset: Dataset, index: int) -> tuple[Sample, dict[int, Bytes]]:
    """A sample, and the masks of its classes where the data set tells them apart."""
    if isinstance(dataset, SceneSet):
        scene = dataset.scenes[index]
        sample = scene_sample(scene, dataset.ids[index])
        masks = {kind: np.zeros(scene.image.shape[:2], np.uint8) for kind in scene.classes}
        for kind, seen in zip(scene.classes, scene.masks, strict=True):
            # A second thing of the label's class is left out of the count, as in the sample's own mask.
            again = kind == scene.classes[0] and masks[kind].any()
            masks[kind][seen] = IGNORE if again else 1
        return sample, masks
    sample = dataset[index]
    if isinstance(dataset, VOC2012) and sample.mask is not None:
        void = np.where(sample.mask == IGNORE, IGNORE, 0).astype(np.uint8)
        return sample, {kind: np.where(sample.mask == kind, np.uint8(1), void) for kind in sample.labels}
    return sample, {}


def prepare_ground_truth(dataset: Dataset, index: int, view: Preprocess, by_class: bool) -> GroundTruth:
    """Read a sample and bring its picture, masks and boxes into the model's view.

    Args:
        dataset: Where it is read from.
        index: Which sample.
        view: How the model sees pictures; masks go the same way, with the nearest pixel.
        by_class: Whether the data set's classes are the model's, so that an explained class can be looked up.

    Raises:
        DataError: The sample cannot be read, or is a text.
    """
    sample, masks = read_ground_truth(dataset, index)
    if sample.image is None:
        raise DataError(f"{sample.id} is a text, not a picture")
    size = (sample.image.height, sample.image.width)
    flat = replace(view, mean=(0.0,), std=(1 / 255,), resample="nearest")

    def seen(mask: Bytes) -> Tensor:
        from PIL import Image

        return flat(Image.fromarray(mask, "L")).round().to(torch.uint8)[0]

    def boxed(label: int) -> Tensor | None:
        some = sample.boxes_of(label)
        return seen(box_masks([some], size)[0].numpy().astype(np.uint8)) if len(some) else None

    classes = sorted({int(k) for k in sample.box_labels if k >= 0}) if sample.box_labels is not None else []
    boxes = {kind: found for kind in classes if by_class and (found := boxed(kind)) is not None}
    return GroundTruth(
        sample.id,
        view(sample.image),
        sample.label,
        None if sample.mask is None else seen(sample.mask),
        None if sample.label is None else boxed(sample.label),
        {kind: seen(mask) for kind, mask in masks.items()} if by_class else {},
        boxes,
        seen(_labels(masks, dataset)) if masks else None,
    )


def _labels(masks: Mapping[int, Bytes], dataset: Dataset) -> Bytes:
    """Masks by class as one: 0 the ground, then the classes from 1; VOC's begin with the ground already."""
    first = 0 if isinstance(dataset, VOC2012) else 1
    labels = np.zeros_like(next(iter(masks.values())))
    for kind, mask in masks.items():
        labels[mask == 1] = kind + first
        labels[mask == IGNORE] = IGNORE
    return labels
