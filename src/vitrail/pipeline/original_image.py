"""OriginalImage: the image that a model's input was made from, opened again only where it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.errors import InputError
from vitrail.inputs.user_inputs import Inputs, is_image, needs_preprocess
from vitrail.models.image_geometry import ImageGeometry
from vitrail.models.loaded import Transform
from vitrail.models.preprocess import Preprocess, open_image, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

_EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True, eq=False)
class OriginalImage:
    """An image file or PIL image that a model's input was made from.

    Attributes:
        source: Path of the file, or the image.
        geometry: Which part of it the model saw, or None if the preprocessing is a function of the user's, which does
            not say what it does.
    """

    source: Path | Any
    geometry: ImageGeometry | None

    def open(self) -> Image:
        """Read the image as RGB, with the EXIF orientation applied.

        Raises:
            InputError: The file is missing or damaged, or is now of another size.
        """
        image = open_image(self.source) if isinstance(self.source, Path) else to_rgb(self.source)
        if self.geometry is not None and (image.height, image.width) != self.geometry.size:
            height, width = self.geometry.size
            raise InputError(
                f"{self.source} has {image.width}×{image.height} pixels and had {width}×{height} before: the image was "
                "changed; explain it again"
            )
        return image


def original_images(inputs: Inputs, preprocess: Transform | None) -> tuple[OriginalImage, ...] | None:
    """Images that model inputs were made from; None for tensors and dicts."""
    if preprocess is None or not needs_preprocess(inputs):
        return None
    several = isinstance(inputs, Sequence) and not isinstance(inputs, str)
    given = list(inputs) if several else [inputs]
    if any(isinstance(one, Tensor) for one in given):
        return None
    sources = [one if is_image(one) else Path(one) for one in given]
    return tuple(OriginalImage(source, _geometry(source, preprocess)) for source in sources)


def _geometry(source: Any, preprocess: Transform) -> ImageGeometry | None:
    if not isinstance(preprocess, Preprocess):
        return None
    width, height, orientation = _read_size(source)
    if orientation >= 5:  # a quarter turn
        height, width = width, height
    return preprocess.geometry(height, width, orientation)


def _read_size(source: Any) -> tuple[int, int, int]:
    """Width, height and EXIF orientation of an image as it is stored; of a file only the header is read."""
    from PIL import Image

    if not isinstance(source, Path):
        return (*source.size, _orientation(source))
    try:
        with Image.open(source) as image:
            return (*image.size, _orientation(image))
    except OSError as error:
        raise InputError(f"{source} cannot be read any more ({error}): explain it again") from error


def _orientation(image: Any) -> int:
    value = image.getexif().get(_EXIF_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
