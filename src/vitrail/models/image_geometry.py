"""ImageGeometry: which part of an image a model saw, and how that part was turned and resized."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vitrail.models.percentages import percent

#: What applying the EXIF orientation does to an image, by the value of the tag; 1 leaves it as it is.
ORIENTATIONS = {
    2: "mirrored",
    3: "turned by 180°",
    4: "mirrored and turned by 180°",
    5: "mirrored and turned by 90°",
    6: "turned by 90°",
    7: "mirrored and turned by 90°",
    8: "turned by 90°",
}


@dataclass(frozen=True)
class ImageGeometry:
    """Where a model's input lies in the image it was made from.

    All coordinates are pixels of the image as it is displayed, which is after its EXIF orientation was applied.

    Attributes:
        size: Height and width of the image.
        box: Left, top, right and bottom of the part that became the model's input.
        input_size: Height and width of the model's input.
        orientation: EXIF orientation of the file, 1 to 8; 1 means that the pixels are stored as they are displayed.

    Example:
        >>> geometry = ImageGeometry((300, 400), (50.0, 0.0, 350.0, 300.0), (224, 224))
        >>> geometry.cropped, geometry.share
        (True, 0.75)
        >>> geometry.to_image(112, 112)
        (200.0, 150.0)
        >>> print(geometry)
        the model saw 75 % of the image: columns 50 to 350 of 400
    """

    size: tuple[int, int]
    box: tuple[float, float, float, float]
    input_size: tuple[int, int]
    orientation: int = 1

    @property
    def cropped(self) -> bool:
        """Whether at least half a pixel at some side was not part of the model's input."""
        (height, width), (left, top, right, bottom) = self.size, self.box
        return left >= 0.5 or top >= 0.5 or right <= width - 0.5 or bottom <= height - 0.5

    @property
    def rotated(self) -> bool:
        """Whether the file's EXIF orientation turned or mirrored the image."""
        return self.orientation in ORIENTATIONS

    @property
    def squashed(self) -> bool:
        """Whether height and width were scaled by factors that differ by more than 2 %."""
        left, top, right, bottom = self.box
        ratio = (right - left) / self.input_size[1] * self.input_size[0] / (bottom - top)
        return not 1 / 1.02 <= ratio <= 1.02

    @property
    def share(self) -> float:
        """Fraction of the image's area that was part of the model's input."""
        (height, width), (left, top, right, bottom) = self.size, self.box
        seen_width, seen_height = min(right, width) - max(left, 0.0), min(bottom, height) - max(top, 0.0)
        return max(seen_width, 0.0) * max(seen_height, 0.0) / (height * width)

    def to_image(self, x: float, y: float) -> tuple[float, float]:
        """Convert a position in the model's input to one in the image."""
        left, top, right, bottom = self.box
        height, width = self.input_size
        return left + x * (right - left) / width, top + y * (bottom - top) / height

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """Convert a position in the image to one in the model's input, which is outside of it if it was cropped."""
        left, top, right, bottom = self.box
        height, width = self.input_size
        return (x - left) * width / (right - left), (y - top) * height / (bottom - top)

    def to_dict(self) -> dict[str, Any]:
        """The attributes and what follows from them, as JSON values."""
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**lists, "cropped": self.cropped, "rotated": self.rotated, "squashed": self.squashed}

    def __str__(self) -> str:
        (height, width), (left, top, right, bottom) = self.size, self.box
        parts = []
        if self.cropped:
            columns = f"columns {round(left)} to {round(right)} of {width}" if right - left <= width - 1 else ""
            rows = f"rows {round(top)} to {round(bottom)} of {height}" if bottom - top <= height - 1 else ""
            where = " and ".join(filter(None, (columns, rows))) or "less than a pixel is missing"
            parts.append(f"the model saw {percent(self.share)} of the image: {where}")
        else:
            parts.append("the model saw the whole image")
        if self.squashed:
            parts.append("its aspect ratio was changed")
        if self.rotated:
            parts.append(f"the file was {ORIENTATIONS[self.orientation]}, according to its EXIF orientation")
        return "; ".join(parts)
