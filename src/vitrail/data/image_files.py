"""Read the images and masks of data sets, in the pixels of the file."""

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
    """Read a file, or its bytes, as an RGB image, without applying the EXIF orientation; ``name`` is for messages.

    `vitrail.models.open_image` applies the orientation. Data sets do not: their masks and boxes, and the published
    accuracies of models, refer to the pixels as stored.
    """
    from vitrail.models.preprocess import to_rgb

    image = _load_image(source, name)
    image.getexif().clear()  # so that to_rgb does not rotate the image
    return to_rgb(image)


def read_indices(source: Path | bytes, name: str | Path) -> NDArray[np.uint8]:
    """Read the pixel values of a grey or palette image, shape (height, width); palette colours are not applied.

    Raises:
        DataError: As in `read_rgb`, or the image has colour channels instead of indices.
    """
    image = _load_image(source, name)
    if image.mode == "1":
        return np.asarray(image, np.uint8)
    if image.mode not in ("L", "P"):
        raise DataError(
            f"{name} has colour channels ({image.mode}), expected indices: masks are palette or grey PNGs with one "
            "byte per pixel; use the file as published, not converted"
        )
    return np.array(image, np.uint8)


def read_mask(path: Path, image: Image) -> NDArray[np.uint8]:
    """Read a mask with `read_indices` and check that it has the image's size.

    Raises:
        DataError: As in `read_indices`, or the sizes differ.
    """
    mask = read_indices(path, path)
    if mask.shape != (image.height, image.width):
        raise DataError(
            f"{path} is {mask.shape[1]}×{mask.shape[0]}, but its image is {image.width}×{image.height}: use the mask "
            "of this image"
        )
    return mask


def _load_image(source: Path | bytes, name: str | Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    from vitrail.models.preprocess import MAX_PIXELS, unread_format

    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(
                    f"{name} has {image.width}×{image.height} pixels, the limit is {MAX_PIXELS // 1_000_000} million: "
                    "check the file"
                )
            image.load()
            return image
    except FileNotFoundError as error:
        raise DataError(f"{name} was deleted after the data set was opened: restore it") from error
    except UnidentifiedImageError as error:
        raise DataError(f"{name} {unread_format(source)}") from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} is too large ({error}): check the file") from error
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        raise DataError(
            f"{name} cannot be read ({error}): it is damaged or truncated; unpack or download it again"
        ) from error
