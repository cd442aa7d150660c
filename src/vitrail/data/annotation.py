"""Annotations: the boxes of one image, in the XML that VOC introduced and ImageNet took over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

__all__ = ["Annotation", "read_annotation"]

LARGEST = 1_000_000
"""Bytes an annotation may have; the real ones have a few hundred to a few thousand."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """The boxes of one image.

    Attributes:
        path: Where they come from.
        size: Width and height of the image the boxes were drawn on.
        names: The class of each box, as the file writes it.
        corners: xmin, ymin, xmax, ymax as the file writes them: both ends are pixels of the box, shape (n, 4).
        difficult: Boxes marked so, shape (n,).
    """

    path: Path
    size: tuple[int, int]
    names: tuple[str, ...]
    corners: NDArray[np.float64]
    difficult: NDArray[np.bool_]

    def boxes(self, size: tuple[int, int], first: int) -> NDArray[np.float32]:
        """x0, y0, x1, y1 in an image of a given size, the ends left out, cut off at its edges; shape (n, 4).

        Args:
            size: True width and height of the image; the boxes are scaled to it where the file names another size.
            first: What the file calls the first pixel: 1 in VOC, 0 in ImageNet.

        Raises:
            DataError: The file is about an image turned by a quarter, or a box lies outside.
        """
        drawn = self.size if min(self.size) > 0 else size  # some files leave the size at zero
        if drawn != size and drawn == size[::-1]:
            raise DataError(
                f"{self.path} is about an image of {drawn[0]}×{drawn[1]}, and the image has {size[0]}×{size[1]}: it "
                "was turned when it was saved again; take the image as published"
            )
        edge = np.array([*drawn, *drawn], np.float64)
        shifted = self.corners - np.array([first, first, first - 1, first - 1], np.float64)
        inside = np.clip(shifted, 0, edge)
        if ((inside[:, 2:] - inside[:, :2]) <= 0).any():
            raise DataError(f"{self.path} has a box outside of its image of {drawn[0]}×{drawn[1]}")
        scaled: NDArray[np.float32] = (inside * (np.array([*size, *size]) / edge)).astype(np.float32)
        return scaled


def read_annotation(path: Path) -> Annotation:
    """Read one XML file.

    Raises:
        DataError: It is missing, damaged, or has no boxes.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > LARGEST or b"<!DOCTYPE" in raw or b"\0" in raw:  # entities can blow up without bound
            raise DataError(f"{path} is not an annotation of boxes: download it again")
        root = ET.fromstring(raw)  # noqa: S314 (entities are refused above)
        size = (int(float(root.findtext("size/width") or 0)), int(float(root.findtext("size/height") or 0)))
        things = root.findall("object")
        corners = [[float(_text(t, f"bndbox/{end}")) for end in ("xmin", "ymin", "xmax", "ymax")] for t in things]
        names = tuple(_text(thing, "name").strip() for thing in things)
        difficult = [thing.findtext("difficult", "0").strip() == "1" for thing in things]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist any more: it was there when the data set was opened") from error
    except (OSError, ET.ParseError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as an annotation ({error}): download it again") from error
    if not names:
        raise DataError(f"{path} has no boxes: download it again")
    values = np.array(corners, np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{path} has a box that is no box: download it again")
    return Annotation(path, size, names, values, np.array(difficult, np.bool_))


def _text(element: ET.Element, path: str) -> str:
    found = element.findtext(path)
    if found is None:
        raise ValueError(f"{path} is missing")
    return found
