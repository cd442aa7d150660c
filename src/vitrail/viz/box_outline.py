"""Draw the outline of a box on an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrail.models.image_geometry import ImageGeometry

if TYPE_CHECKING:
    from PIL.Image import Image

#: Colour of the outline; a dark line around it separates it from bright images.
COLOUR, EDGE = (255, 255, 255), (0, 0, 0)


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
    draw.rectangle((left, top, right, bottom), outline=COLOUR, width=line)
    return drawn
