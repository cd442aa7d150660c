"""Drawing on original images: a map at full resolution, with the part that the model saw outlined; a box."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.models.image_geometry import ImageGeometry
from vitrail.viz.colormap import blend, stretch, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

#: Pixels that are blended at a time, which bounds memory for large photographs.
STRIP_PIXELS = 1 << 20
#: Brightness of what the model did not see.
DIM = 0.45
#: Colour of the outline; a dark line around it separates it from bright images.
OUTLINE, EDGE = (255, 255, 255), (0, 0, 0)


def original_overlay(
    image: Image, relevance: np.ndarray[Any, Any], geometry: ImageGeometry, signed: bool = False, opacity: float = 0.75
) -> Image:
    """Draw a map over the image it explains, before resizing and cropping.

    What was cropped away is dimmed, and the part that the model saw is outlined.

    Args:
        image: The original image, RGB, with its EXIF orientation applied.
        relevance: Map at the model's input size, in [0, 1], or [-1, 1] if signed, shape (height, width).
        geometry: Where the model's input lies in the image.
        signed: Whether zero is in the middle of the colour map.
        opacity: Opacity of the colour where relevance is highest.

    Returns:
        An RGB image of the same size.

    Example:
        >>> from PIL import Image
        >>> geometry = ImageGeometry((30, 60), (15.0, 0.0, 45.0, 30.0), (8, 8))
        >>> drawn = original_overlay(Image.new("RGB", (60, 30), "white"), np.eye(8), geometry)
        >>> drawn.size, drawn.getpixel((2, 2))
        ((60, 30), (115, 115, 115))
    """
    from PIL import Image as PILImage

    height, width = geometry.size
    left, top, right, bottom = geometry.box
    # A pixel belongs to the part that was seen if its centre does.
    columns = _covered(left, right, width)
    rows = _covered(top, bottom, height)
    pixels = (np.asarray(image) * DIM).round().astype(np.uint8)
    source = PILImage.fromarray(stretch(relevance).astype(np.float32))
    original = np.asarray(image)
    step = max(1, STRIP_PIXELS // max(1, len(columns)))
    for start in range(rows.start, rows.stop, step) if columns else ():
        stop = min(start + step, rows.stop)
        first, last = geometry.to_input(columns.start, start), geometry.to_input(columns.stop, stop)
        box = (max(first[0], 0.0), max(first[1], 0.0), min(last[0], source.width), min(last[1], source.height))
        strip = source.resize((len(columns), stop - start), PILImage.Resampling.BILINEAR, box=box)
        seen = original[start:stop, columns.start : columns.stop]
        pixels[start:stop, columns.start : columns.stop] = blend(seen, np.asarray(strip), signed, opacity)
    drawn = to_image(pixels)
    if geometry.cropped:
        _outline(drawn, (columns.start, rows.start, columns.stop, rows.stop))
    return drawn


def _covered(low: float, high: float, length: int) -> range:
    """Pixels of a side whose centres lie between two positions."""
    return range(max(0, ceil(low - 0.5)), min(length, ceil(high - 0.5)))


def _outline(image: Image, box: tuple[int, int, int, int]) -> None:
    """Draw a light line with a dark edge around a part of an image, just outside of it where there is room."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(image)
    thickness = max(1, min(image.size) // 250)
    left, top, right, bottom = box
    for distance, colour in ((2 * thickness, EDGE), (thickness, OUTLINE)):
        around = (
            max(0, left - distance), max(0, top - distance),
            min(image.width, right + distance) - 1, min(image.height, bottom + distance) - 1,
        )  # fmt: skip
        draw.rectangle(around, outline=colour, width=thickness)


def outline_box(image: Image, corners: Sequence[float], geometry: ImageGeometry | None = None) -> Image:
    """A copy of an image with the outline of a box.

    Args:
        image: The image.
        corners: Left, top, right and bottom as shares of the model's input.
        geometry: Where the model's input lies in the image, or None if it is the image.

    Example:
        >>> from PIL import Image
        >>> outline_box(Image.new("RGB", (40, 40)), (0.25, 0.25, 0.75, 0.75)).getpixel((10, 20))
        (255, 255, 255)
    """
    from PIL import ImageDraw

    x0, y0, x1, y1 = corners
    low, high = (x0 * image.width, y0 * image.height), (x1 * image.width, y1 * image.height)
    if geometry is not None:
        height, width = geometry.input_size
        low, high = geometry.to_image(x0 * width, y0 * height), geometry.to_image(x1 * width, y1 * height)
    left, top = max(low[0], 0.0), max(low[1], 0.0)
    right, bottom = min(high[0], image.width) - 1, min(high[1], image.height) - 1
    drawn = image.copy()
    if right <= left or bottom <= top:
        return drawn
    draw, line = ImageDraw.Draw(drawn), max(1, round(min(image.size) / 200))
    draw.rectangle((left - line, top - line, right + line, bottom + line), outline=EDGE, width=line)
    draw.rectangle((left, top, right, bottom), outline=OUTLINE, width=line)
    return drawn
