"""ImageNet: the validation images of ILSVRC2012, with their boxes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.data.annotation import read_annotation
from vitrail.data.image_files import read_rgb
from vitrail.data.sample import Listing, Sample
from vitrail.data.synsets import TRUTHS, WNID, Synsets, read_truth
from vitrail.errors import DataError

__all__ = ["ImageNet"]

SUFFIXES = (".jpeg", ".jpg", ".png")
IMAGES = ("", "val", "Data/CLS-LOC/val", "ILSVRC/Data/CLS-LOC/val", "ILSVRC2012_img_val")
BOXES = ("boxes", "Annotations/CLS-LOC/val", "ILSVRC/Annotations/CLS-LOC/val")
DEVKIT = ("", "data", "ILSVRC2012_devkit_t12/data")
SOURCE = "image-net.org, ILSVRC2012, validation images of task 1 and 2, 50,000 files, 6.3 GB"


class ImageNet(Listing):
    """Validation images of ILSVRC2012, in the order of their file names.

    The class index is the models': the rank of the WordNet id among the thousand, whichever of them are present. A
    ``classes.csv`` (index, wnid, name) in the root or next to it overrules that.

    Args:
        root: Folder with one folder of images for each WordNet id (``n01440764/…``), or with all images flat; or a
            folder above it: ``val`` and ``Data/CLS-LOC/val`` are looked into.
        boxes: Folder of the XML files, one for each image. None looks for ``boxes`` and ``Annotations/CLS-LOC/val``
            in the root and goes without where there are none; False goes without.
        labels: Only for flat images: the file that gives their classes, see `vitrail.data.synsets.read_truth`, or the
            devkit's folder. None looks for the usual names in and next to the folder.

    Raises:
        DataError: Images, labels or boxes are missing or do not fit together. The message says what was expected.
    """

    name = "imagenet"

    def __init__(
        self, root: str | Path, boxes: str | Path | bool | None = None, *, labels: str | Path | None = None
    ) -> None:
        self.root = Path(root)
        self._folder, files = _images(self.root)
        self._synsets = Synsets.find(self.root, self._folder, self._folder.parent)
        if "/" in files[0]:
            found = [file.partition("/")[0] for file in files]
        else:
            truth = read_truth(_truth(self._folder, labels))
            lost = [file for file in files if Path(file).stem not in truth]
            if lost:
                raise DataError(f"{len(lost):,} of {len(files):,} images in {self._folder} have no label, as {lost[0]}")
            found = [truth[Path(file).stem] for file in files]
        strange = sorted(set(found) - set(self._synsets.index))
        if strange:
            raise DataError(
                f"{strange[0]} (and {len(strange) - 1} more) in {self._folder} is none of the classes of ILSVRC2012: "
                "put a classes.csv with the columns index, wnid, name into the root to use other classes"
            )
        ids = [Path(file).stem for file in files]
        if len(set(ids)) < len(ids):  # not the published names, which are unique
            ids = [file.rpartition(".")[0] for file in files]
        self._files, self._labels = tuple(files), tuple(self._synsets.index[wnid] for wnid in found)
        self._boxes = None if boxes is False else self._find_boxes(None if boxes is True else boxes)
        super().__init__(ids, 50_000, f"unpack all of it into {self._folder} ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names: from ``classes.csv``, or from an installed library that carries them, else None."""
        from vitrail.models.classes import imagenet_classes

        return self._synsets.names or (imagenet_classes() if len(self._synsets.index) == 1000 else None)

    @property
    def labels(self) -> tuple[int, ...]:
        """The class of every sample, known without opening any."""
        return self._labels

    def _find_boxes(self, given: str | Path | None) -> Path | None:
        options = [self.root / place for place in BOXES] if given is None else [Path(given), Path(given) / "val"]
        folder = next((path for path in options if path.is_dir() and any(path.glob("*.xml"))), None)
        if folder is None:
            if given is None:
                return None
            raise DataError(
                f"{given} holds no XML files: expected one for each image, as ILSVRC2012_val_00000001.xml "
                "(image-net.org, ILSVRC2012, validation bounding box annotations)"
            )
        there = {entry.name for entry in os.scandir(folder)}
        lost = [file for file in self._files if f"{Path(file).stem}.xml" not in there]
        if lost:
            raise DataError(
                f"{folder} has boxes for {len(self._files) - len(lost):,} of {len(self._files):,} images; "
                f"{Path(lost[0]).stem}.xml is missing: unpack the validation bounding boxes again (image-net.org, "
                "ILSVRC2012), or give boxes=False"
            )
        return folder

    def _read(self, index: int) -> Sample:
        path = self._folder / self._files[index]
        image, label = read_rgb(path, path), self._labels[index]
        if self._boxes is None:
            return Sample(self.ids[index], image, label=label)
        annotation = read_annotation(self._boxes / f"{path.stem}.xml")
        kinds = [self._synsets.index.get(name, -1) for name in annotation.names]
        boxes = annotation.boxes(image.size, first=0)  # pixels from 0 to the width less one
        return Sample(
            self.ids[index], image, label=label, boxes=boxes, box_labels=np.array(kinds, np.int64),
            difficult=annotation.difficult,
        )  # fmt: skip


def _images(root: Path) -> tuple[Path, list[str]]:
    """The folder that holds the images or their class folders, and the images' paths in it, sorted by file name."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: expected the unpacked validation images there ({SOURCE})")
    folders = [root / place for place in IMAGES if (root / place).is_dir()]
    for folder in folders:
        kinds = sorted(entry.name for entry in os.scandir(folder) if WNID.fullmatch(entry.name) and entry.is_dir())
        if kinds:
            return folder, _sorted_in(folder, kinds)
    for folder in folders:
        flat = sorted(entry.name for entry in os.scandir(folder) if Path(entry.name).suffix.lower() in SUFFIXES)
        if flat:
            return folder, flat
    raise DataError(
        f"there are no images in {root}: expected folders named by WordNet id (n01440764, …) or the files "
        f"ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG, here or in val; get them from {SOURCE}"
    )


def _sorted_in(folder: Path, kinds: list[str]) -> list[str]:
    files, empty = [], []
    for kind in kinds:
        names = [entry.name for entry in os.scandir(folder / kind) if Path(entry.name).suffix.lower() in SUFFIXES]
        files += [f"{kind}/{name}" for name in names]
        if not names:
            empty.append(kind)
    if empty:
        raise DataError(
            f"{len(empty):,} of {len(kinds):,} class folders in {folder} are empty, as {empty[0]}, and {len(files):,} "
            f"images were found of 50,000: sorting into folders did not finish; unpack again ({SOURCE}), or remove the "
            "empty folders if fewer classes are meant"
        )
    return sorted(files, key=lambda file: (file.rpartition("/")[2], file))


def _truth(folder: Path, given: str | Path | None) -> Path:
    """The file that gives the classes of flat images."""
    if given is not None and Path(given).is_file():
        return Path(given)
    tops = [folder, folder.parent] if given is None else [Path(given)]
    for top in tops:
        for path in (top / place / name for place in DEVKIT for name in TRUTHS):
            if path.is_file():
                return path
    raise DataError(
        f"the images in {folder} are not sorted into class folders, and nothing says which class each shows: expected "
        f"{TRUTHS[0]} with meta.mat (image-net.org, ILSVRC2012 development kit, task 1), or {TRUTHS[2]} with one "
        f'WordNet id a line, or lines "file wnid", in {" or ".join(map(str, tops))}; else give labels=path'
    )
