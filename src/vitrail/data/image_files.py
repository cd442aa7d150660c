"""Images of data sets: read as stored, refused when far too large, named when damaged."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read_indices", "read_mask", "read_rgb"]


def read_rgb(source: Path | bytes, name: str | Path) -> Image:
    """A picture in RGB, in the pixels of the file.

    Unlike `vitrail.models.preprocess.open_image` this leaves the camera's orientation alone: the masks and boxes of
    a data set, and the models scored on it, refer to the pixels as they are stored.

    Args:
        source: Path of the file, or its bytes.
        name: What to call it in messages.

    Raises:
        DataError: The file is missing, is no image, is damaged, or far too large.
    """
    from vitrail.models.preprocess import upright

    image = _load(source, name)
    image.getexif().clear()  # nothing left that would turn it
    return upright(image)


def read_indices(source: Path | bytes, name: str | Path) -> NDArray[np.uint8]:
    """The bytes of a grey or palette image as they are, shape (height, width): a palette's colours are not looked up.

    Raises:
        DataError: As `read_rgb`, or the image holds colours instead of indices.
    """
    image = _load(source, name)
    if image.mode == "1":
        return np.asarray(image, np.uint8)
    if image.mode not in ("L", "P"):
        raise DataError(
            f"{name} holds colours ({image.mode}), not indices: masks are palette or grey PNGs, one byte a pixel; "
            "take the file as published, unconverted"
        )
    return np.array(image, np.uint8)


def read_mask(path: Path, image: Image) -> NDArray[np.uint8]:
    """A mask as `read_indices` reads it, which must be of the image's size.

    Raises:
        DataError: As `read_indices`, or the sizes differ.
    """
    mask = read_indices(path, path)
    if mask.shape != (image.height, image.width):
        raise DataError(f"{path} is {mask.shape[1]}×{mask.shape[0]}, but its image is {image.width}×{image.height}")
    return mask


def _load(source: Path | bytes, name: str | Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    from vitrail.models.preprocess import LARGEST

    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > LARGEST:
                raise DataError(f"{name} has {image.width}×{image.height} pixels: no data set has such images")
            image.load()
            return image
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist any more: it was there when the data set was opened") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} is not an image: unpack or download it again") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} is far too large ({error})") from error
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{name} cannot be read ({error}): damaged or cut short; unpack or download it again"
        ) from error
