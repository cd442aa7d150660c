"""ImageNet: the validation images of ILSVRC2012 with their labels and bounding boxes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from vitrail.data.annotation import read_annotation
from vitrail.data.image_files import read_rgb
from vitrail.data.sample import BaseDataset, Sample
from vitrail.data.synsets import LABEL_FILES, WNID_PATTERN, Synsets, read_label_file
from vitrail.errors import DataError

__all__ = ["ImageNet"]

SUFFIXES = (".jpeg", ".jpg", ".png")
IMAGE_FOLDERS = ("", "val", "Data/CLS-LOC/val", "ILSVRC/Data/CLS-LOC/val", "ILSVRC2012_img_val")
BOX_FOLDERS = ("boxes", "Annotations/CLS-LOC/val", "ILSVRC/Annotations/CLS-LOC/val")
DEVKIT_FOLDERS = ("", "data", "ILSVRC2012_devkit_t12/data")
SOURCE = "image-net.org, ILSVRC2012, validation images of task 1 and 2, 50,000 files, 6.3 GB"


class ImageNet(BaseDataset):
    """Validation images of ILSVRC2012, sorted by file name.

    The class index is that of the models: the rank of the WordNet id among all 1,000, even if only some classes are
    present. A ``classes.csv`` (columns index, wnid, name) in the root or next to it overrides this.

    Args:
        root: Folder with one folder of images for each WordNet id (``n01440764/…``) or with all images in one folder;
            or a folder above it: ``val`` and ``Data/CLS-LOC/val`` are searched.
        boxes: Folder of the XML files, one for each image. None searches ``boxes`` and ``Annotations/CLS-LOC/val`` in
            the root and reads no boxes if there are none; False reads no boxes.
        labels: Only for images in one folder: the file with their classes, see
            `vitrail.data.synsets.read_label_file`, or the folder of the development kit. None searches the usual names
            in the folder and next to it.

    Raises:
        DataError: Images, labels or boxes are missing or do not match. The message states what was expected.
    """

    name = "imagenet"

    def __init__(
        self, root: str | Path, boxes: str | Path | bool | None = None, *, labels: str | Path | None = None
    ) -> None:
        self.root = Path(root)
        self._folder, files = _find_images(self.root)
        self._synsets = Synsets.find(self.root, self._folder, self._folder.parent)
        if "/" in files[0]:
            wnids = [file.partition("/")[0] for file in files]
        else:
            wnid_of = read_label_file(_find_label_file(self._folder, labels))
            missing = [file for file in files if Path(file).stem not in wnid_of]
            if missing:
                raise DataError(
                    f"{len(missing):,} of {len(files):,} images in {self._folder} have no label, for example "
                    f"{missing[0]}: use the label file of these images"
                )
            wnids = [wnid_of[Path(file).stem] for file in files]
        unknown = sorted(set(wnids) - set(self._synsets.index))
        if unknown:
            raise DataError(
                f"{unknown[0]} (and {len(unknown) - 1} more) in {self._folder} is not a class of ILSVRC2012: put a "
                "classes.csv with the columns index, wnid, name into the root to use other classes"
            )
        ids = [Path(file).stem for file in files]
        if len(set(ids)) < len(ids):  # not the published names, which are unique
            ids = [file.rpartition(".")[0] for file in files]
        self._files, self._labels = tuple(files), tuple(self._synsets.index[wnid] for wnid in wnids)
        self._boxes = None if boxes is False else self._find_boxes(None if boxes is True else boxes)
        super().__init__(ids, 50_000, f"unpack all images into {self._folder} ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names from ``classes.csv`` or from an installed library, else None."""
        from vitrail.models import imagenet_classes

        return self._synsets.names or (imagenet_classes() if len(self._synsets.index) == 1000 else None)

    @property
    def labels(self) -> tuple[int, ...]:
        """Class of every sample; no image is opened."""
        return self._labels

    def _find_boxes(self, given: str | Path | None) -> Path | None:
        options = [self.root / folder for folder in BOX_FOLDERS] if given is None else [Path(given), Path(given, "val")]
        folder = next((path for path in options if path.is_dir() and any(path.glob("*.xml"))), None)
        if folder is None:
            if given is None:
                return None
            raise DataError(
                f"{given} holds no XML files: expected one for each image, such as ILSVRC2012_val_00000001.xml "
                "(image-net.org, ILSVRC2012, validation bounding box annotations)"
            )
        present = {entry.name for entry in os.scandir(folder)}
        missing = [file for file in self._files if f"{Path(file).stem}.xml" not in present]
        if missing:
            raise DataError(
                f"{folder} has boxes for {len(self._files) - len(missing):,} of {len(self._files):,} images; "
                f"{Path(missing[0]).stem}.xml is missing: unpack the validation bounding boxes again (image-net.org, "
                "ILSVRC2012), or pass boxes=False"
            )
        return folder

    def _read(self, index: int) -> Sample:
        path = self._folder / self._files[index]
        image, label = read_rgb(path, path), self._labels[index]
        if self._boxes is None:
            return Sample(self.ids[index], image, label=label)
        annotation = read_annotation(self._boxes / f"{path.stem}.xml")
        box_labels = [self._synsets.index.get(name, -1) for name in annotation.names]
        boxes = annotation.boxes(image.size, first_pixel=0)
        return Sample(
            self.ids[index], image, label=label, boxes=boxes, box_labels=np.array(box_labels, np.int64),
            difficult=annotation.difficult,
        )  # fmt: skip


def _find_images(root: Path) -> tuple[Path, list[str]]:
    """Folder that holds the images or their class folders, and the images' paths in it, sorted by file name."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: expected the unpacked validation images ({SOURCE})")
    folders = [root / folder for folder in IMAGE_FOLDERS if (root / folder).is_dir()]
    for folder in folders:
        wnids = sorted(
            entry.name for entry in os.scandir(folder) if WNID_PATTERN.fullmatch(entry.name) and entry.is_dir()
        )
        if wnids:
            return folder, _images_in_class_folders(folder, wnids)
    for folder in folders:
        images = sorted(entry.name for entry in os.scandir(folder) if Path(entry.name).suffix.lower() in SUFFIXES)
        if images:
            return folder, images
    raise DataError(
        f"{root} holds no images: expected folders named by WordNet id (n01440764, …) or the files "
        f"ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00050000.JPEG, here or in val; download them from {SOURCE}"
    )


def _images_in_class_folders(folder: Path, wnids: list[str]) -> list[str]:
    files, empty = [], []
    for wnid in wnids:
        names = [entry.name for entry in os.scandir(folder / wnid) if Path(entry.name).suffix.lower() in SUFFIXES]
        files += [f"{wnid}/{name}" for name in names]
        if not names:
            empty.append(wnid)
    if empty:
        raise DataError(
            f"{len(empty):,} of {len(wnids):,} class folders in {folder} are empty, for example {empty[0]}, and "
            f"{len(files):,} of 50,000 images were found: the images were not all sorted into folders; unpack again "
            f"({SOURCE}), or remove the empty folders to use fewer classes"
        )
    return sorted(files, key=lambda file: (file.rpartition("/")[2], file))


def _find_label_file(folder: Path, given: str | Path | None) -> Path:
    """File with the classes of images that are not sorted into class folders."""
    if given is not None and Path(given).is_file():
        return Path(given)
    searched = [folder, folder.parent] if given is None else [Path(given)]
    for top in searched:
        for path in (top / subfolder / name for subfolder in DEVKIT_FOLDERS for name in LABEL_FILES):
            if path.is_file():
                return path
    raise DataError(
        f"the images in {folder} are not sorted into class folders, and no label file was found in "
        f"{' or '.join(map(str, searched))}: expected {LABEL_FILES[0]} with meta.mat (image-net.org, ILSVRC2012 "
        f'development kit, task 1), or {LABEL_FILES[2]} with one WordNet id per line or lines of "file wnid"; or '
        "pass labels=path"
    )
