"""PASCAL VOC2012: images with semantic segmentation masks of 20 classes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.data.annotation import read_annotation
from vitrail.data.image_files import read_mask, read_rgb
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

__all__ = ["VOC2012", "VOC_CLASSES", "VOC_TO_IMAGENET"]

VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""Class names by their value in the masks."""

VOC_TO_IMAGENET: dict[str, tuple[int, ...]] = {
    "aeroplane": (404, 895),
    "bicycle": (444, 671),
    "bird": (*range(7, 25), *range(80, 101), *range(127, 147)),  # 134 is the bird crane
    "boat": (472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 871, 914),
    "bottle": (440, 720, 737, 898, 907),
    "bus": (654, 779, 874),
    "car": (407, 436, 468, 511, 609, 627, 656, 661, 751, 817),
    "cat": tuple(range(281, 286)),
    "chair": (423, 559, 765, 857),
    "cow": (345, 346),  # ox and water buffalo only
    "diningtable": (532,),
    "dog": tuple(range(151, 269)),
    "horse": (339,),
    "motorbike": (665, 670),
    "person": (981, 982, 983),  # ballplayer, groom, scuba diver: ImageNet has no class for persons
    "pottedplant": (738,),
    "sheep": (348, 349),
    "sofa": (831,),
    "train": (466, 547, 565, 705, 820),
    "tvmonitor": (664, 782, 851),
}
"""ImageNet class indices whose summed score represents each VOC class in a model that was not trained on VOC."""

IGNORE = 255
COUNTS = {"train": 1464, "val": 1449, "trainval": 2913, "trainaug": 10582}
SOURCE = "host.robots.ox.ac.uk/pascal/VOC, VOC2012, training and validation data (2 GB)"


class VOC2012(BaseDataset):
    """A segmentation split of PASCAL VOC2012.

    ``sample.mask`` holds the class of each pixel, 0 (background) to 20 (tvmonitor), and 255 (ignore).
    ``sample.labels`` are the classes in the mask; ``sample.label`` is set if there is only one. Boxes come from the XML
    files and cover every object, including objects that are not in the mask.

    Args:
        root: The folder VOC2012, or a folder above it (``VOCdevkit``).
        split: "train", "val" or "trainval"; also "trainaug" if the folder ``SegmentationClassAug`` and the list
            ``ImageSets/Segmentation/trainaug.txt``, made from the additional annotations of SBD, are present.

    Raises:
        DataError: Files are missing. The message states what was expected.
    """

    name = "voc2012"

    def __init__(self, root: str | Path, split: str = "val") -> None:
        top = Path(root)
        options = (top, top / "VOC2012", top / "VOCdevkit" / "VOC2012")
        self.root = next((path for path in options if (path / "ImageSets" / "Segmentation").is_dir()), top)
        self.split = split
        lists = self.root / "ImageSets" / "Segmentation"
        path = lists / f"{split}.txt"
        if not path.is_file():
            available = sorted(p.stem for p in lists.glob("*.txt")) if lists.is_dir() else []
            raise DataError(
                f"{path} does not exist: expected VOCdevkit/VOC2012 with JPEGImages, SegmentationClass and ImageSets "
                f"in {top} ({SOURCE})" + (f"; available splits: {', '.join(available)}" if available else "")
            )
        ids = path.read_text(encoding="utf-8").split()
        self._masks = self.root / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass")
        self._check_files(self.root / "JPEGImages", ids, ".jpg")
        self._check_files(self._masks, ids, ".png")
        self._boxes: Path | None = self.root / "Annotations"
        if self._boxes.is_dir():
            self._check_files(self._boxes, ids, ".xml")
        else:
            self._boxes = None
        super().__init__(ids, COUNTS.get(split), f"unpack the archive again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...]:
        """Background and the 20 classes, by their value in the masks."""
        return VOC_CLASSES

    def _check_files(self, folder: Path, ids: list[str], suffix: str) -> None:
        """Check that all files of the split are present."""
        present = {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()
        missing = [name for name in ids if name + suffix not in present]
        if missing:
            raise DataError(
                f"{folder} has {len(ids) - len(missing):,} of the {len(ids):,} files of split {self.split}; "
                f"{missing[0]}{suffix} is missing: unpack the archive again ({SOURCE})"
            )

    def _read(self, index: int) -> Sample:
        name = self.ids[index]
        path, mask_path = self.root / "JPEGImages" / f"{name}.jpg", self._masks / f"{name}.png"
        image = read_rgb(path, path)
        mask = read_mask(mask_path, image)
        values = [int(value) for value in np.unique(mask)]
        labels = tuple(value for value in values if value not in (0, IGNORE))
        if labels and labels[-1] >= len(VOC_CLASSES):
            raise DataError(f"{mask_path} has the value {labels[-1]}: expected 0 to 20, or 255")
        label = labels[0] if len(labels) == 1 else None
        if self._boxes is None:
            return Sample(name, image, label=label, labels=labels, mask=mask)
        annotation = read_annotation(self._boxes / f"{name}.xml")
        unknown = [box_class for box_class in annotation.names if box_class not in VOC_CLASSES]
        if unknown:
            raise DataError(f"{annotation.path} has a box of {unknown[0]!r}, which is not a VOC class: unpack it again")
        return Sample(
            name, image, label=label, labels=labels, mask=mask, boxes=annotation.boxes(image.size, first_pixel=1),
            box_labels=np.array([VOC_CLASSES.index(box_class) for box_class in annotation.names], np.int64),
            difficult=annotation.difficult,
        )  # fmt: skip
