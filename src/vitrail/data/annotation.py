"""Bounding box annotations in the XML format of PASCAL VOC, which ImageNet uses too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

__all__ = ["Annotation", "read_annotation"]

MAX_ANNOTATION_BYTES = 1_000_000
"""Maximum size of an annotation file; published ones have at most a few thousand bytes."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """The boxes of one image.

    Attributes:
        path: The XML file.
        size: Width and height of the annotated image, as the file states them.
        names: Class of each box, as the file states it.
        corners: xmin, ymin, xmax, ymax as the file states them; both ends belong to the box. Shape (n, 4).
        difficult: Which boxes are marked as difficult, shape (n,).
    """

    path: Path
    size: tuple[int, int]
    names: tuple[str, ...]
    corners: NDArray[np.float64]
    difficult: NDArray[np.bool_]

    def boxes(self, size: tuple[int, int], first_pixel: int) -> NDArray[np.float32]:
        """Convert to x0, y0, x1, y1 with exclusive ends, scaled to an image's size and clipped to it; shape (n, 4).

        Args:
            size: Width and height of the image; the boxes are scaled to it if the file states another size.
            first_pixel: Index of the first pixel in the file: 1 in VOC, 0 in ImageNet.

        Raises:
            DataError: The image is rotated by a quarter turn against the annotation, or a box is outside the image.
        """
        annotated = self.size if min(self.size) > 0 else size  # some files state a size of zero
        if annotated != size and annotated == size[::-1]:
            raise DataError(
                f"{self.path} annotates an image of {annotated[0]}×{annotated[1]}, but the image has "
                f"{size[0]}×{size[1]}: it was rotated when it was saved; use the image as published"
            )
        scale_from = np.array([*annotated, *annotated], np.float64)
        shifted = self.corners - np.array([first_pixel, first_pixel, first_pixel - 1, first_pixel - 1], np.float64)
        clipped = np.clip(shifted, 0, scale_from)
        if ((clipped[:, 2:] - clipped[:, :2]) <= 0).any():
            raise DataError(
                f"{self.path} has a box outside its image of {annotated[0]}×{annotated[1]}: download the file again"
            )
        scaled: NDArray[np.float32] = (clipped * (np.array([*size, *size]) / scale_from)).astype(np.float32)
        return scaled


def read_annotation(path: Path) -> Annotation:
    """Read one XML file.

    Raises:
        DataError: The file is missing or damaged, or has no boxes.
    """
    try:
        content = path.read_bytes()
        if len(content) > MAX_ANNOTATION_BYTES or b"<!DOCTYPE" in content or b"\0" in content:
            raise DataError(f"{path} is not a bounding box annotation: download it again")  # XML entities can explode
        root = ET.fromstring(content)  # noqa: S314 (files with entities are rejected above)
        size = (int(float(root.findtext("size/width") or 0)), int(float(root.findtext("size/height") or 0)))
        objects = root.findall("object")
        corners = [[float(_text(o, f"bndbox/{end}")) for end in ("xmin", "ymin", "xmax", "ymax")] for o in objects]
        names = tuple(_text(o, "name").strip() for o in objects)
        difficult = [o.findtext("difficult", "0").strip() == "1" for o in objects]
    except FileNotFoundError as error:
        raise DataError(f"{path} was deleted after the data set was opened: restore it") from error
    except (OSError, ET.ParseError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as an annotation ({error}): download it again") from error
    if not names:
        raise DataError(f"{path} has no boxes: download it again")
    values = np.array(corners, np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{path} has a box whose corners are not finite numbers: download it again")
    return Annotation(path, size, names, values, np.array(difficult, np.bool_))


def _text(element: ET.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise ValueError(f"{path} is missing")
    return text
