"""The original image of an upload or sample, which maps are drawn on, and which part of it the model sees."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitrail.web.served_model import ServedModel

if TYPE_CHECKING:
    from PIL.Image import Image

#: Longest side of a stored original in pixels; larger images are reduced to it.
MAX_SIDE = 2048
QUALITY = 90


def encode_original(image: Image) -> bytes:
    r"""Encode an image as JPEG without metadata, reduced to at most ``MAX_SIDE`` pixels a side.

    Example:
        >>> from PIL import Image
        >>> encode_original(Image.new("RGB", (8, 6)))[:2]
        b'\xff\xd8'
    """
    if max(image.size) > MAX_SIDE:
        scale = MAX_SIDE / max(image.size)
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    buffer = BytesIO()
    image.convert("RGB").save(buffer, format="JPEG", quality=QUALITY)
    return buffer.getvalue()


def geometry_json(served: ServedModel, width: int, height: int) -> dict[str, Any]:
    """The part of an image that a model sees, as JSON; width and height are those after EXIF rotation.

    Returns:
        ``box``: left, top, right and bottom as fractions of width and height; ``cropped``, ``squashed``, and a
        sentence, ``text``.
    """
    geometry = served.preprocess.geometry(height, width)
    left, top, right, bottom = geometry.box
    return {
        "box": [left / width, top / height, right / width, bottom / height], "cropped": geometry.cropped,
        "squashed": geometry.squashed, "text": str(geometry),
    }  # fmt: skip


def enlargement_notes(served: ServedModel, width: int, height: int) -> list[str]:
    """A note for an image that is smaller than the model's input; otherwise none."""
    rows, columns = served.preprocess.size
    if width >= columns and height >= rows:
        return []
    return [f"enlarged from {width} × {height} pixels to the model's input of {columns} × {rows}"]
