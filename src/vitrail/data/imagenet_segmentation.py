"""ImageNet-Segmentation: 4,276 ImageNet images with the object's outline, in one file of MATLAB 7.3, that is HDF5."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sample import Listing, Sample
from vitrail.data.synsets import WNID, wnids
from vitrail.errors import DataError, require

__all__ = ["ImageNetSegmentation"]

FILE = "gtsegs_ijcv.mat"
LARGEST = 300_000_000
"""Bytes an image may have."""

SOURCE = f"{FILE} of Guillaumin, Küttel and Ferrari, ImageNet Auto-Annotation with Segmentation Propagation, IJCV 2014"


class ImageNetSegmentation(Listing):
    """Images with a binary mask each: 1 object, 0 background.

    Its 445 categories are not all among the thousand of ILSVRC2012. Where one is, the sample has the models' class
    index as its label; elsewhere the label is None. The id is ImageNet's, and begins with the WordNet id.

    The file is opened when the first sample is read, once in each process.

    Args:
        file: ``gtsegs_ijcv.mat``, or the folder that holds it.

    Raises:
        DataError: The file is missing, damaged or laid out otherwise.
        MissingExtraError: h5py is not installed.
    """

    name = "imagenet-segmentation"

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file) / FILE if Path(file).is_dir() else Path(file)
        self._opened: Any = None
        self._process = 0
        if not self.file.is_file():
            raise DataError(f"{self.file} does not exist: expected the file {SOURCE}")
        h5 = self._open()
        try:
            counts = {part: h5[f"value/{part}"].shape for part in ("img", "gt", "id")}
            if len(set(counts.values())) != 1 or len(counts["id"]) != 2:
                raise DataError(f"{self.file} does not hold as many masks and ids as images ({counts})")
            ids = ["".join(map(chr, np.asarray(h5[ref]).ravel())).strip() for ref in h5["value/id"][:, 0]]
        except (KeyError, TypeError, ValueError, OSError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{self.file} is not laid out as expected ({error}): it needs value/img, value/gt and value/id with a "
                f"reference for each image; get {SOURCE}"
            ) from error
        finally:
            self._close()
        strange = [name for name in ids if not WNID.fullmatch(name.partition("_")[0])]
        if strange:
            raise DataError(f"{self.file} has an id that is not ImageNet's: {strange[0]!r}")
        index = {wnid: k for k, wnid in enumerate(wnids())}
        self.labels: tuple[int | None, ...] = tuple(index.get(name.partition("_")[0]) for name in ids)
        super().__init__(ids, 4276, f"download the file again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the thousand classes, where an installed library carries them."""
        from vitrail.models.classes import imagenet_classes

        return imagenet_classes()

    @property
    def labelled(self) -> int:
        """How many samples are of a class that models of ILSVRC2012 know."""
        return sum(label is not None for label in self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _open(self) -> Any:
        """The open file; a process made by forking opens its own."""
        if self._opened is None or self._process != os.getpid():
            h5py = require("h5py", "data", f"read {FILE}")
            try:
                self._opened, self._process = h5py.File(self.file, "r"), os.getpid()
            except OSError as error:
                raise DataError(
                    f"{self.file} cannot be read ({error}): damaged or cut short; download it again ({SOURCE})"
                ) from error
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _read(self, index: int) -> Sample:
        from PIL import Image

        name, h5 = self.ids[index], self._open()
        try:
            held, cell = h5[h5["value/img"][index, 0]], h5[h5["value/gt"][index, 0]]
            drawn = h5[cell[0, 0]]
            if max(held.size, drawn.size) > LARGEST:
                raise ValueError(f"shapes {held.shape} and {drawn.shape}")
            pixels, mask = np.asarray(held), np.asarray(drawn)
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise DataError(f"{name} in {self.file} cannot be read ({error}): download the file again") from error
        if pixels.ndim != 3 or pixels.shape[0] != 3 or pixels.dtype != np.uint8 or mask.shape != pixels.shape[1:]:
            raise DataError(
                f"{name} in {self.file}: expected bytes of shape (3, width, height) and a mask (width, height), not "
                f"{pixels.dtype} {pixels.shape} and {mask.shape}"
            )
        if not np.isin(mask, (0, 1)).all():
            raise DataError(f"{name} in {self.file}: a mask holds 0 and 1, not up to {mask.max()}")
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(2, 1, 0)))
        return Sample(name, image, label=self.labels[index], mask=np.ascontiguousarray(mask.T).astype(np.uint8))
