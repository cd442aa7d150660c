"""CIFAR-10 and CIFAR-100: pictures of 32 by 32 pixels, from any of the forms they are handed around in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitrail.data.archive import Files, open_files
from vitrail.data.image_files import read_rgb
from vitrail.data.pickles import read_pickle
from vitrail.data.sample import Listing, Sample
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
SIDE = 32
PIXELS = 3 * SIDE * SIDE


class CIFAR10(Listing):
    """CIFAR-10, a split of it, in the order of the files.

    Taken as it is found: the binary version, the Python version (read without unpickling anything but plain data),
    images in ``train|test/<class>/``, or a tar archive of any of these, which stays packed. A compressed archive is
    run through once, which takes seconds, and again in every process that reads from it.

    Ids are "test/00042" by place in the binary and Python versions, and "test/cat/0042" for image files.

    Args:
        root: The folder, one above it, or the archive.
        split: "train" or "test".

    Raises:
        DataError: The split is not there, or not complete. The message says what was expected.
    """

    name = "cifar10"
    _classes: ClassVar[tuple[str, ...]] = CLASSES_10
    _batches: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{k}" for k in range(1, 6)),
        "test": ("test_batch",),
    }
    _folders: ClassVar[tuple[str, str]] = ("cifar-10-batches-bin", "cifar-10-batches-py")
    _key: ClassVar[str] = "labels"
    _head: ClassVar[int] = 1  # bytes before the pixels of a record; the last of them is the label

    def __init__(self, root: str | Path, split: str = "test") -> None:
        if split not in COUNTS:
            raise DataError(f"{self.name} has no split {split!r}: take one of {', '.join(COUNTS)}")
        self.split = split
        names, classes = "|".join(self._batches[split]), "|".join(self._classes)
        binary = rf"(?:.*/)?(?:{names})[.]bin"
        python = rf"(?:(?:.*/)?{self._folders[1]}/)?(?:{names})"
        images = rf"(?:.*/)?{split}/(?:{classes})/[^/]+[.](?:jpe?g|JPE?G|png|PNG)"
        self._files: Files = open_files(root, f"{binary}|{python}|{images}")
        found = list(self._files.sizes)
        self._arrays: dict[str, tuple[NDArray[np.uint8], list[int]]] = {}
        self._images: list[str] = []
        self._records = [name for name in found if re.fullmatch(binary, name)]
        self._pickles = [] if self._records else [name for name in found if re.fullmatch(python, name)]
        if self._records or self._pickles:
            self._check_batches(self._records or self._pickles)
            ids = [f"{split}/{k:05d}" for k in range(COUNTS[split])]
        else:
            self._images = self._check_images(found)
            ids = [f"{split}/{name.split('/')[-2]}/{Path(name).stem}" for name in self._images]
        super().__init__(ids, COUNTS[split], f"unpack {self._files.root} again ({self._source})")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in alphabetical order, which is the files' own."""
        return self._classes

    @property
    def _source(self) -> str:
        return f"cs.toronto.edu/~kriz/cifar.html, CIFAR-{len(self._classes)} binary version"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": {}}

    def _check_batches(self, found: list[str]) -> None:
        """All batches of the split must be there, each once, and of full length."""
        wanted, stems = self._batches[self.split], [Path(name).stem for name in found]
        lost = [name for name in wanted if name not in stems]
        if lost or len(stems) != len(wanted):
            kind = ".bin" if self._records else ""
            raise DataError(
                f"{self._files.root} holds {len(found)} of the {len(wanted)} files of {self.name}, split {self.split}"
                + (f"; {lost[0]}{kind} is missing" if lost else ": some are there twice")
                + f": unpack the archive again ({self._source})"
            )
        rows = COUNTS[self.split] // len(wanted)
        for name in self._records:
            size = rows * (self._head + PIXELS)
            if self._files.sizes[name] != size:
                raise DataError(
                    f"{self._files.path(name)} has {self._files.sizes[name]:,} bytes, not the {size:,} of {rows:,} "
                    f"records of {self._head + PIXELS:,}: cut short, or of another data set; get it again from "
                    f"{self._source}"
                )

    def _check_images(self, found: list[str]) -> list[str]:
        """Every class must be there, and all as often."""
        counts = dict.fromkeys(self._classes, 0)
        for name in found:
            counts[name.split("/")[-2]] += 1
        if min(counts.values()) != max(counts.values()) or not found:
            fewest = min(counts, key=lambda kind: counts[kind])
            batches = ", ".join(f"{name}.bin" for name in self._batches[self.split])
            raise DataError(
                f"{self._files.root} holds {len(found):,} images of {self.name}, split {self.split}, of "
                f"{COUNTS[self.split]:,}, and {counts[fewest]:,} of class {fewest}: expected {self._folders[0]} with "
                f"{batches} ({self._source}), {self._folders[1]}, or {self.split}/<class>/*.jpg with all "
                f"{len(self._classes)} classes equally often, or an archive of one of them"
            )
        return found

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
            record = self._files.read(name, row * (self._head + PIXELS), self._head + PIXELS)
            label, pixels = record[self._head - 1], np.frombuffer(record, np.uint8, offset=self._head)
        else:
            rows, labels = self._unpack(name)
            label, pixels = labels[row], rows[row]
        if label >= len(self._classes):
            raise DataError(
                f"{self._files.path(name)}: record {row} has the class {label}, not 0 to {len(self._classes) - 1}"
            )
        planes = pixels.reshape(3, SIDE, SIDE)
        return Sample(self.ids[index], Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0))), label=label)

    def _unpack(self, name: str) -> tuple[NDArray[np.uint8], list[int]]:
        """Pixels and labels of a batch of the Python version; kept, in this process."""
        if name not in self._arrays:
            where, rows = self._files.path(name), COUNTS[self.split] // len(self._pickles)
            found = read_pickle(self._files.read(name), where)
            data, labels = found.get("data"), found.get(self._key)
            if not isinstance(data, np.ndarray) or not isinstance(labels, list) or len(labels) != rows:
                raise DataError(f"{where} does not hold {rows:,} images under data and as many {self._key}")
            if data.shape != (rows, PIXELS):
                raise DataError(f"{where} holds data of shape {data.shape}, not ({rows}, {PIXELS})")
            if not all(isinstance(label, int) and label >= 0 for label in labels):
                raise DataError(f"{where} has {self._key} that are no classes")
            self._arrays[name] = (data, labels)
        return self._arrays[name]


class CIFAR100(CIFAR10):
    """CIFAR-100 with its hundred fine classes, a split of it, in the order of the files.

    Forms and ids are those of `CIFAR10`.

    Args:
        root: The folder, one above it, or the archive.
        split: "train" or "test".
    """

    name = "cifar100"
    _classes: ClassVar[tuple[str, ...]] = CLASSES_100
    _batches: ClassVar[dict[str, tuple[str, ...]]] = {"train": ("train",), "test": ("test",)}
    _folders: ClassVar[tuple[str, str]] = ("cifar-100-binary", "cifar-100-python")
    _key: ClassVar[str] = "fine_labels"
    _head: ClassVar[int] = 2  # the coarse label comes first
