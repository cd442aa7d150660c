"""Ground truth of an image (label, masks, boxes) in the pixels the model receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data import Dataset, ImageGrids, Sample
from vitrail.data.scene_dataset import SceneDataset, scene_sample
from vitrail.data.voc import VOC2012
from vitrail.errors import DataError
from vitrail.models.preprocess import Preprocess
from vitrail.scores.pointing import box_masks

MaskArray = NDArray[np.uint8]
IGNORE = 255


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """An image and its objects, preprocessed for the model.

    Attributes:
        id: Id of the image.
        image: Input of the model, shape (channels, height, width).
        label: Class index, or None.
        mask: Mask of the object, shape (height, width): 0 background, 255 ignore, any other value object; or None.
        box_mask: Boxes of the label as a mask, or None without boxes.
        class_masks: Mask of each class, where the data set distinguishes objects.
        class_box_masks: Boxes of each class as a mask.
        pixel_labels: Class of each pixel, counted from 1, with 0 for background and 255 for ignore; or None.
        boxes: Boxes of the label in pixels of the input, x0, y0, x1, y1 with exclusive ends, shape (n, 4); None without
            boxes. A box that was cropped away is left out.
        class_boxes: The same for each class.
        original_labels: ``pixel_labels`` in the pixels of the file.
    """

    id: str
    image: Tensor
    label: int | None = None
    mask: Tensor | None = None
    box_mask: Tensor | None = None
    class_masks: Mapping[int, Tensor] = field(default_factory=dict)
    class_box_masks: Mapping[int, Tensor] = field(default_factory=dict)
    pixel_labels: Tensor | None = None
    boxes: Tensor | None = None
    class_boxes: Mapping[int, Tensor] = field(default_factory=dict)
    original_labels: Tensor | None = None

    def mask_of(self, explained: int) -> Tensor | None:
        """Return the mask of a class if the image contains it, else the mask of the label."""
        return self.class_masks.get(explained, self.mask)

    def box_mask_of(self, explained: int) -> Tensor | None:
        """Return the boxes of a class if the image contains it, else the boxes of the label."""
        return self.class_box_masks.get(explained, self.box_mask)

    def boxes_of(self, explained: int) -> Tensor | None:
        """Return the boxes of a class if the image contains it, else those of the label, each on its own."""
        return self.class_boxes.get(explained, self.boxes)

    @property
    def objects(self) -> Mapping[int, Tensor]:
        """Objects by class, as masks or, without masks, as boxes."""
        return self.class_masks or self.class_box_masks


def read_ground_truth(dataset: Dataset, index: int) -> tuple[Sample, dict[int, MaskArray]]:
    """Read a sample, and the mask of each class where the data set distinguishes them."""
    if isinstance(dataset, SceneDataset):
        scene = dataset.scenes[index]
        sample = scene_sample(scene, dataset.ids[index])
        masks = {label: np.zeros(scene.image.shape[:2], np.uint8) for label in scene.classes}
        for label, visible in zip(scene.classes, scene.masks, strict=True):
            # A second object of the label's class is ignored, as in the sample's own mask.
            repeated = label == scene.classes[0] and masks[label].any()
            masks[label][visible] = IGNORE if repeated else 1
        return sample, masks
    sample = dataset[index]
    if isinstance(dataset, ImageGrids):
        return sample, dataset.cell_masks(index)
    if isinstance(dataset, VOC2012) and sample.mask is not None:
        void = np.where(sample.mask == IGNORE, IGNORE, 0).astype(np.uint8)
        return sample, {label: np.where(sample.mask == label, np.uint8(1), void) for label in sample.labels}
    return sample, {}


@dataclass(frozen=True, eq=False)
class LoadedImages:
    """The images of a batch.

    Attributes:
        truths: The images that could be read, with their objects.
        inputs: Inputs of the model, shape (n, channels, height, width), on the CPU; None if no image could be read.
        errors: Positions in the batch of images that could not be read, with the error.
    """

    truths: list[GroundTruth]
    inputs: Tensor | None
    errors: dict[int, Exception]


def join_images(items: Sequence[GroundTruth | Exception], pin: bool = False) -> LoadedImages:
    """Join the images of a batch in one tensor.

    Args:
        items: What was read, or the error.
        pin: Put the tensor into pinned memory, from which a GPU copies beside its computation.
    """
    truths = [item for item in items if isinstance(item, GroundTruth)]
    errors = {position: item for position, item in enumerate(items) if isinstance(item, Exception)}
    if not truths:
        return LoadedImages([], None, errors)
    first = truths[0].image
    inputs = torch.empty(len(truths), *first.shape, dtype=first.dtype, pin_memory=pin)
    return LoadedImages(truths, torch.stack([truth.image for truth in truths], out=inputs), errors)


def prepare_ground_truth(
    dataset: Dataset, index: int, preprocess: Preprocess, by_class: bool, objects: bool = True
) -> GroundTruth:
    """Read a sample and preprocess its image, masks and boxes for the model.

    Args:
        dataset: The data set.
        index: Index of the sample.
        preprocess: The model's preprocessing. Masks are resized and cropped alike, by nearest neighbour.
        by_class: Whether the data set's classes are the model's, so that the mask of an explained class can be found.
        objects: Whether masks and boxes are needed; without them only the image and its label are prepared.

    Raises:
        DataError: The sample cannot be read, or is a text.
    """
    sample, masks = read_ground_truth(dataset, index)
    if sample.image is None:
        raise DataError(f"{sample.id} is a text, expected an image")
    if not objects:
        return GroundTruth(sample.id, preprocess(sample.image), sample.label)
    size = (sample.image.height, sample.image.width)
    mask_preprocess = replace(preprocess, mean=(0.0,), std=(1 / 255,), resample="nearest")

    def prepare_mask(mask: MaskArray) -> Tensor:
        from PIL import Image

        return mask_preprocess(Image.fromarray(mask, "L")).round().to(torch.uint8)[0]

    def prepare_boxes(label: int) -> Tensor:
        masks = box_masks([[box] for box in sample.boxes_of(label)], size).numpy().astype(np.uint8)
        return torch.stack([prepare_mask(mask) for mask in masks])

    boxed_classes = sorted({int(k) for k in sample.box_labels if k >= 0}) if sample.box_labels is not None else []
    wanted = [label for label in boxed_classes if by_class or label == sample.label]
    single_boxes = {label: prepare_boxes(label) for label in wanted}
    unions = {label: masks.amax(0) for label, masks in single_boxes.items()}
    corners = {label: _mask_corners(masks) for label, masks in single_boxes.items()}
    own_label = -1 if sample.label is None else sample.label
    # Cells of a grid are no masks of objects, and their classes do not fit into a byte.
    labels = _pixel_labels(masks, dataset) if masks and not isinstance(dataset, ImageGrids) else None
    return GroundTruth(
        sample.id,
        preprocess(sample.image),
        sample.label,
        None if sample.mask is None else prepare_mask(sample.mask),
        unions.get(own_label),
        {label: prepare_mask(mask) for label, mask in masks.items()} if by_class else {},
        unions if by_class else {},
        None if labels is None else prepare_mask(labels),
        corners.get(own_label),
        corners if by_class else {},
        None if labels is None else torch.from_numpy(labels),
    )


def _mask_corners(masks: Tensor) -> Tensor:
    """Return the boxes around masks, shape (n, height, width) to (m, 4); empty masks are left out."""
    boxes = []
    for mask in masks:
        rows, columns = mask.any(1).nonzero()[:, 0].tolist(), mask.any(0).nonzero()[:, 0].tolist()
        if rows:
            boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    return torch.tensor(boxes, dtype=torch.int64).reshape(-1, 4)


def _pixel_labels(masks: Mapping[int, MaskArray], dataset: Dataset) -> MaskArray:
    """Join masks by class into one: 0 background, classes from 1. VOC's classes include the background already."""
    offset = 0 if isinstance(dataset, VOC2012) else 1
    labels = np.zeros_like(next(iter(masks.values())))
    for label, mask in masks.items():
        labels[mask == 1] = label + offset
        labels[mask == IGNORE] = IGNORE
    return labels
