"""ImageNet-Segmentation: 4,276 ImageNet images with object masks, in one MATLAB 7.3 (HDF5) file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sample import BaseDataset, Sample
from vitrail.data.synsets import WNID_PATTERN, imagenet_wnids
from vitrail.errors import DataError, require

__all__ = ["ImageNetSegmentation"]

FILE = "gtsegs_ijcv.mat"
MAX_IMAGE_BYTES = 300_000_000
"""Maximum size of an image in bytes."""

SOURCE = f"{FILE} of Guillaumin, Küttel and Ferrari, ImageNet Auto-Annotation with Segmentation Propagation, IJCV 2014"


class ImageNetSegmentation(BaseDataset):
    """Images with a binary mask: 1 object, 0 background.

    Not all of its 445 categories are among the 1,000 classes of ILSVRC2012. The label is the class index of the models,
    or None for the other categories. The id is that of ImageNet and begins with the WordNet id.

    Each process opens the file when it reads its first sample.

    Args:
        file: ``gtsegs_ijcv.mat``, or the folder that holds it.

    Raises:
        DataError: The file is missing, damaged, or has another layout.
        MissingExtraError: h5py is not installed.
    """

    name = "imagenet-segmentation"

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file) / FILE if Path(file).is_dir() else Path(file)
        self._opened: Any = None
        self._process = 0
        if not self.file.is_file():
            raise DataError(f"{self.file} does not exist: expected {SOURCE}")
        h5 = self._open()
        try:
            counts = {part: h5[f"value/{part}"].shape for part in ("img", "gt", "id")}
            if len(set(counts.values())) != 1 or len(counts["id"]) != 2:
                raise DataError(
                    f"{self.file} holds different numbers of images, masks and ids ({counts}): download it again"
                )
            ids = ["".join(map(chr, np.asarray(h5[ref]).ravel())).strip() for ref in h5["value/id"][:, 0]]
        except (KeyError, TypeError, ValueError, OSError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{self.file} has an unexpected layout ({error}): expected value/img, value/gt and value/id with a "
                f"reference for each image; download {SOURCE}"
            ) from error
        finally:
            self._close()
        invalid = [name for name in ids if not WNID_PATTERN.fullmatch(name.partition("_")[0])]
        if invalid:
            raise DataError(f"{self.file} has an id that is not from ImageNet: {invalid[0]!r}; download it again")
        index = {wnid: k for k, wnid in enumerate(imagenet_wnids())}
        self.labels: tuple[int | None, ...] = tuple(index.get(name.partition("_")[0]) for name in ids)
        super().__init__(ids, 4276, f"download the file again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the 1,000 ImageNet classes from an installed library, else None."""
        from vitrail.models import imagenet_classes

        return imagenet_classes()

    @property
    def labelled_count(self) -> int:
        """Number of samples with a label, that is of a class of ILSVRC2012."""
        return sum(label is not None for label in self.labels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _open(self) -> Any:
        """The open file; a forked process opens its own."""
        if self._opened is None or self._process != os.getpid():
            h5py = require("h5py", "data", f"read {FILE}")
            try:
                self._opened, self._process = h5py.File(self.file, "r"), os.getpid()
            except OSError as error:
                raise DataError(
                    f"{self.file} cannot be read ({error}): it is damaged or truncated; download it again ({SOURCE})"
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
            stored_image, cell = h5[h5["value/img"][index, 0]], h5[h5["value/gt"][index, 0]]
            stored_mask = h5[cell[0, 0]]
            if max(stored_image.size, stored_mask.size) > MAX_IMAGE_BYTES:
                raise ValueError(f"shapes {stored_image.shape} and {stored_mask.shape} are too large")
            pixels, mask = np.asarray(stored_image), np.asarray(stored_mask)
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise DataError(f"{name} in {self.file} cannot be read ({error}): download the file again") from error
        if pixels.ndim != 3 or pixels.shape[0] != 3 or pixels.dtype != np.uint8 or mask.shape != pixels.shape[1:]:
            raise DataError(
                f"{name} in {self.file}: expected uint8 of shape (3, width, height) and a mask (width, height), got "
                f"{pixels.dtype} {pixels.shape} and {mask.shape}: download the file again"
            )
        if not np.isin(mask, (0, 1)).all():
            raise DataError(f"{name} in {self.file}: expected a mask of 0 and 1, got values up to {mask.max()}")
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(2, 1, 0)))
        return Sample(name, image, label=self.labels[index], mask=np.ascontiguousarray(mask.T).astype(np.uint8))
