"""A small chart with two labelled axes, drawn with Pillow only."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

PAPER, INK, FAINT = (255, 255, 255), (60, 60, 60), (205, 205, 205)
#: Room around the plot: left, top, right, bottom.
MARGINS = (64, 12, 16, 42)
_FONT = 12


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two ends, about as many as asked for.

    Example:
        >>> round_ticks(0.0, 10.24)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if not span > 0:
        return [low]
    rough = span / count
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.8)
    first = ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, floor(high / step + 1e-9) + 1)]


def tick_label(value: float, unit: str = "") -> str:
    """A tick in few characters: thousands of hertz are written with a k.

    Example:
        >>> tick_label(2500.0, "Hz"), tick_label(0.25, "s"), tick_label(4.0)
        ('2.5k', '0.25', '4')
    """
    if unit == "Hz" and abs(value) >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


class AxisPlot:
    """A white chart: an area of some pixels with room for axes.

    Attributes:
        image: The PIL image.
        draw: Draws on it.
        box: Left, top, right and bottom of the area.
    """

    def __init__(self, width: int, height: int, left: int = MARGINS[0]) -> None:
        _, top, right, bottom = MARGINS
        self.image: PILImage = Image.new("RGB", (left + width + right, top + height + bottom), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.box = (left, top, left + width, top + height)
        self._font = ImageFont.load_default(_FONT)

    def horizontal(self, ticks: Sequence[tuple[float, str]], title: str) -> None:
        """Draw the axis below: ticks as (position between 0 and 1, label), and a title."""
        left, _, right, bottom = self.box
        for place, label in ticks:
            x = left + place * (right - left)
            self.draw.line((x, bottom, x, bottom + 4), fill=INK)
            width = self.draw.textlength(label, font=self._font)
            self.draw.text((x - width / 2, bottom + 6), label, fill=INK, font=self._font)
        width = self.draw.textlength(title, font=self._font)
        self.draw.text(((left + right - width) / 2, bottom + 23), title, fill=INK, font=self._font)

    def vertical(self, ticks: Sequence[tuple[float, str]], title: str = "") -> None:
        """Draw the axis on the left: ticks as (position between 0, below, and 1, label), and a title."""
        left, top, _, bottom = self.box
        for place, label in ticks:
            y = bottom - place * (bottom - top)
            self.draw.line((left - 4, y, left, y), fill=INK)
            width = self.draw.textlength(label, font=self._font)
            self.draw.text((left - 7 - width, y - _FONT / 2 - 1), label, fill=INK, font=self._font)
        if title:
            width = round(self.draw.textlength(title, font=self._font)) + 2
            text = Image.new("RGB", (width, _FONT + 4), PAPER)
            ImageDraw.Draw(text).text((1, 0), title, fill=INK, font=self._font)
            turned = text.rotate(90, expand=True)
            self.image.paste(turned, (2, round((top + bottom - turned.height) / 2)))

    def frame(self) -> None:
        """Draw a line around the area."""
        self.draw.rectangle(self.box, outline=FAINT)
