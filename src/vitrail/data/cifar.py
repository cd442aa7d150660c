"""CIFAR-10 and CIFAR-100: images of 32×32 pixels, in any of the formats in which they are distributed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitrail.data.archive import FileCollection, open_files
from vitrail.data.image_files import read_rgb
from vitrail.data.pickles import read_pickle
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

__all__ = ["CIFAR10", "CIFAR100"]

CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES_100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
COUNTS = {"train": 50_000, "test": 10_000}
IMAGE_SIZE = 32
PIXEL_BYTES = 3 * IMAGE_SIZE * IMAGE_SIZE


class CIFAR10(BaseDataset):
    """A split of CIFAR-10, in the order of the files.

    Accepts the binary version, the Python version (unpickled without executing code), images in
    ``train|test/<class>/``, or a tar archive of any of these, which is not unpacked. A compressed archive is read once,
    which takes seconds, and again in every process that uses it.

    Ids are "test/00042" by index in the binary and Python versions, and "test/cat/0042" for image files.

    Args:
        root: The folder, a folder above it, or the archive.
        split: "train" or "test".

    Raises:
        DataError: The split is missing or incomplete. The message states what was expected.
    """

    name = "cifar10"
    _classes: ClassVar[tuple[str, ...]] = CLASSES_10
    _batches: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{k}" for k in range(1, 6)),
        "test": ("test_batch",),
    }
    _folder_names: ClassVar[tuple[str, str]] = ("cifar-10-batches-bin", "cifar-10-batches-py")
    _label_key: ClassVar[str] = "labels"
    _label_bytes: ClassVar[int] = 1  # bytes before the pixels of a record; the last one is the label

    def __init__(self, root: str | Path, split: str = "test") -> None:
        if split not in COUNTS:
            raise DataError(f"{self.name} has no split {split!r}: use one of {', '.join(COUNTS)}")
        self.split = split
        names, classes = "|".join(self._batches[split]), "|".join(self._classes)
        binary = rf"(?:.*/)?(?:{names})[.]bin"
        python = rf"(?:(?:.*/)?{self._folder_names[1]}/)?(?:{names})"
        images = rf"(?:.*/)?{split}/(?:{classes})/[^/]+[.](?:jpe?g|JPE?G|png|PNG)"
        self._files: FileCollection = open_files(root, f"{binary}|{python}|{images}")
        files = list(self._files.sizes)
        self._arrays: dict[str, tuple[NDArray[np.uint8], list[int]]] = {}
        self._images: list[str] = []
        self._records = [name for name in files if re.fullmatch(binary, name)]
        self._pickles = [] if self._records else [name for name in files if re.fullmatch(python, name)]
        if self._records or self._pickles:
            self._check_batches(self._records or self._pickles)
            ids = [f"{split}/{k:05d}" for k in range(COUNTS[split])]
        else:
            self._images = self._check_images(files)
            ids = [f"{split}/{name.split('/')[-2]}/{Path(name).stem}" for name in self._images]
        super().__init__(ids, COUNTS[split], f"unpack {self._files.root} again ({self._source})")

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in alphabetical order, which is the order of the labels."""
        return self._classes

    @property
    def _source(self) -> str:
        return f"cs.toronto.edu/~kriz/cifar.html, CIFAR-{len(self._classes)} binary version"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}

    def _check_batches(self, names: list[str]) -> None:
        """Check that each batch of the split is present once and complete."""
        expected, stems = self._batches[self.split], [Path(name).stem for name in names]
        missing = [name for name in expected if name not in stems]
        if missing or len(stems) != len(expected):
            suffix = ".bin" if self._records else ""
            raise DataError(
                f"{self._files.root} holds {len(names)} of the {len(expected)} files of {self.name}, split {self.split}"
                + (f"; {missing[0]}{suffix} is missing" if missing else ": some are present twice")
                + f": unpack the archive again ({self._source})"
            )
        rows = COUNTS[self.split] // len(expected)
        for name in self._records:
            size = rows * (self._label_bytes + PIXEL_BYTES)
            if self._files.sizes[name] != size:
                raise DataError(
                    f"{self._files.path(name)} has {self._files.sizes[name]:,} bytes, expected {size:,} ({rows:,} "
                    f"records of {self._label_bytes + PIXEL_BYTES:,}): it is truncated or another data set; download "
                    f"it again from {self._source}"
                )

    def _check_images(self, names: list[str]) -> list[str]:
        """Check that every class is present with the same number of images."""
        counts = dict.fromkeys(self._classes, 0)
        for name in names:
            counts[name.split("/")[-2]] += 1
        if min(counts.values()) != max(counts.values()) or not names:
            rarest = min(counts, key=lambda name: counts[name])
            batches = ", ".join(f"{name}.bin" for name in self._batches[self.split])
            raise DataError(
                f"{self._files.root} holds {len(names):,} of the {COUNTS[self.split]:,} images of {self.name}, split "
                f"{self.split}, and {counts[rarest]:,} of class {rarest}: expected {self._folder_names[0]} with "
                f"{batches} ({self._source}), {self._folder_names[1]}, or {self.split}/<class>/*.jpg with the same "
                f"number of images for all {len(self._classes)} classes, or an archive of one of them"
            )
        return names

    def _read(self, index: int) -> Sample:
        if self._images:
            name = self._images[index]
            image = read_rgb(self._files.read(name), self._files.path(name))
            return Sample(self.ids[index], image, label=self._classes.index(name.split("/")[-2]))
        from PIL import Image

        batches = self._records or self._pickles
        batch, row = divmod(index, COUNTS[self.split] // len(batches))
        name = batches[batch]
        if self._records:
            record_bytes = self._label_bytes + PIXEL_BYTES
            record = self._files.read(name, row * record_bytes, record_bytes)
            label, pixels = record[self._label_bytes - 1], np.frombuffer(record, np.uint8, offset=self._label_bytes)
        else:
            rows, labels = self._unpickle(name)
            label, pixels = labels[row], rows[row]
        if label >= len(self._classes):
            raise DataError(
                f"{self._files.path(name)}: record {row} has class {label}, expected 0 to {len(self._classes) - 1}: "
                "download the file again"
            )
        planes = pixels.reshape(3, IMAGE_SIZE, IMAGE_SIZE)
        return Sample(self.ids[index], Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0))), label=label)

    def _unpickle(self, name: str) -> tuple[NDArray[np.uint8], list[int]]:
        """Pixels and labels of a batch of the Python version, cached in this process."""
        if name not in self._arrays:
            path, rows = self._files.path(name), COUNTS[self.split] // len(self._pickles)
            content = read_pickle(self._files.read(name), path)
            data, labels = content.get("data"), content.get(self._label_key)
            if not isinstance(data, np.ndarray) or not isinstance(labels, list) or len(labels) != rows:
                raise DataError(
                    f"{path} does not hold {rows:,} images under data and as many {self._label_key}: download it again"
                )
            if data.shape != (rows, PIXEL_BYTES):
                raise DataError(
                    f"{path} holds data of shape {data.shape}, expected ({rows}, {PIXEL_BYTES}): download it again"
                )
            if not all(isinstance(label, int) and label >= 0 for label in labels):
                raise DataError(f"{path} has {self._label_key} that are not class indices: download it again")
            self._arrays[name] = (data, labels)
        return self._arrays[name]


class CIFAR100(CIFAR10):
    """A split of CIFAR-100 with its 100 fine classes, in the order of the files.

    Formats and ids are those of `CIFAR10`.

    Args:
        root: The folder, a folder above it, or the archive.
        split: "train" or "test".
    """

    name = "cifar100"
    _classes: ClassVar[tuple[str, ...]] = CLASSES_100
    _batches: ClassVar[dict[str, tuple[str, ...]]] = {"train": ("train",), "test": ("test",)}
    _folder_names: ClassVar[tuple[str, str]] = ("cifar-100-binary", "cifar-100-python")
    _label_key: ClassVar[str] = "fine_labels"
    _label_bytes: ClassVar[int] = 2  # the coarse label comes first
