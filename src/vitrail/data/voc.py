"""PASCAL VOC2012: everyday pictures in which every pixel of twenty kinds of things is marked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.data.annotation import read_annotation
from vitrail.data.image_files import read_mask, read_rgb
from vitrail.data.sample import Listing, Sample
from vitrail.errors import DataError

__all__ = ["VOC2012", "VOC_CLASSES", "VOC_TO_IMAGENET"]

VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The classes by the number a mask gives them."""

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
    "person": (981, 982, 983),  # ballplayer, groom, scuba diver: people, but not a class of persons
    "pottedplant": (738,),
    "sheep": (348, 349),
    "sofa": (831,),
    "train": (466, 547, 565, 705, 820),
    "tvmonitor": (664, 782, 851),
}
"""Classes of ILSVRC2012, by index, whose summed score stands for a class of VOC in a model that never saw VOC."""

VOID = 255
COUNTS = {"train": 1464, "val": 1449, "trainval": 2913, "trainaug": 10582}
SOURCE = "host.robots.ox.ac.uk/pascal/VOC, VOC2012, training and validation data (2 GB)"


class VOC2012(Listing):
    """A segmentation split of PASCAL VOC2012.

    ``sample.mask`` holds the class of each pixel, 0 background to 20 tvmonitor, and 255 where nobody decided.
    ``sample.labels`` are the classes in the mask, and ``sample.label`` is the only one, or None where there are more.
    Boxes come from the XML files and cover every object, those of classes that the mask leaves out as well.

    Args:
        root: The folder VOC2012, or one above it (``VOCdevkit``).
        split: "train", "val", "trainval"; also "trainaug", if the folder ``SegmentationClassAug`` and the list
            ``ImageSets/Segmentation/trainaug.txt``, made of the extra outlines of SBD, are there.

    Raises:
        DataError: Something is missing. The message says what was expected where.
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
            there = sorted(p.stem for p in lists.glob("*.txt")) if lists.is_dir() else []
            raise DataError(
                f"{path} does not exist: expected VOCdevkit/VOC2012 with JPEGImages, SegmentationClass and ImageSets "
                f"below {top} ({SOURCE})" + (f"; splits there: {', '.join(there)}" if there else "")
            )
        ids = path.read_text(encoding="utf-8").split()
        self._masks = self.root / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass")
        self._check(self.root / "JPEGImages", ids, ".jpg")
        self._check(self._masks, ids, ".png")
        self._boxes: Path | None = self.root / "Annotations"
        if self._boxes.is_dir():
            self._check(self._boxes, ids, ".xml")
        else:
            self._boxes = None
        super().__init__(ids, COUNTS.get(split), f"unpack the archive again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...]:
        """Background and the twenty classes, by the number a mask gives them."""
        return VOC_CLASSES

    def _check(self, folder: Path, ids: list[str], suffix: str) -> None:
        """All files of the split must be there."""
        there = {entry.name for entry in os.scandir(folder)} if folder.is_dir() else set()
        lost = [name for name in ids if name + suffix not in there]
        if lost:
            raise DataError(
                f"{folder} has {len(ids) - len(lost):,} of the {len(ids):,} files of split {self.split}; "
                f"{lost[0]}{suffix} is missing: unpack the archive again ({SOURCE})"
            )

    def _read(self, index: int) -> Sample:
        name = self.ids[index]
        path, drawn = self.root / "JPEGImages" / f"{name}.jpg", self._masks / f"{name}.png"
        image = read_rgb(path, path)
        mask = read_mask(drawn, image)
        values = [int(value) for value in np.unique(mask)]
        labels = tuple(value for value in values if value not in (0, VOID))
        if labels and labels[-1] >= len(VOC_CLASSES):
            raise DataError(f"{drawn} holds the number {labels[-1]}: a VOC mask holds 0 to 20, and 255")
        label = labels[0] if len(labels) == 1 else None
        if self._boxes is None:
            return Sample(name, image, label=label, labels=labels, mask=mask)
        annotation = read_annotation(self._boxes / f"{name}.xml")
        strange = [kind for kind in annotation.names if kind not in VOC_CLASSES]
        if strange:
            raise DataError(f"{annotation.path} speaks of {strange[0]!r}, which is no class of VOC")
        return Sample(
            name, image, label=label, labels=labels, mask=mask, boxes=annotation.boxes(image.size, first=1),
            box_labels=np.array([VOC_CLASSES.index(kind) for kind in annotation.names], np.int64),
            difficult=annotation.difficult,
        )  # fmt: skip
