"""Colour for relevance, and maps laid over pictures: numpy and Pillow only."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

# Corner colours in Oklab (lightness, green-red, blue-yellow). Lightness rises in equal steps, so equal steps of
# relevance look equal, also in grey print and to colour-blind eyes.
_GLOW = (
    (0.16, 0.02, -0.07), (0.34, 0.11, -0.13), (0.52, 0.19, -0.01), (0.70, 0.14, 0.12), (0.88, 0.0, 0.16),
    (0.98, -0.01, 0.05),
)  # fmt: skip
_COLD_WARM = ((0.40, -0.03, -0.17), (0.68, -0.05, -0.11), (0.97, 0.0, 0.0), (0.68, 0.13, 0.08), (0.42, 0.16, 0.08))


@lru_cache(maxsize=2)
def colours(signed: bool = False) -> Array:
    """256 colours from none to most relevant, or from against (blue) through nothing (white) to for (red).

    Returns:
        Values in [0, 1], shape (256, 3).

    Example:
        >>> table = colours()
        >>> table.shape, bool((table.sum(1)[1:] >= table.sum(1)[:-1] - 0.02).all())
        ((256, 3), True)
    """
    corners = np.asarray(_COLD_WARM if signed else _GLOW)
    at = np.linspace(0, len(corners) - 1, 256)
    lab = np.stack([np.interp(at, range(len(corners)), corners[:, i]) for i in range(3)], 1)
    return _srgb(lab)


def paint(relevance: Array, signed: bool = False) -> Array:
    """A map in [0, 1] (or [-1, 1] if signed) as colours: (h, w) to (h, w, 3), values in [0, 1]."""
    unit = (relevance + 1) / 2 if signed else relevance
    table: Array = colours(signed)
    painted: Array = table[np.clip(np.nan_to_num(unit) * 255, 0, 255).round().astype(int)]
    return painted


def overlay(picture: Array, relevance: Array, signed: bool = False, opacity: float = 0.75) -> Array:
    """A map over a picture: the picture in quiet greys shows through, most where there is little relevance.

    A few pixels hold most of what a map of pixels says, and the rest would not be seen: where all but one pixel in a
    hundred lie below a quarter of the greatest, colours end at the hundredth.

    Args:
        picture: Bytes, shape (h, w, 3).
        relevance: In [0, 1], or [-1, 1] if signed, shape (h, w).
        signed: Whether zero is in the middle.
        opacity: How much the colour covers where relevance is greatest.

    Returns:
        Bytes, shape (h, w, 3).

    Example:
        >>> black, few = np.zeros((20, 20, 3), np.uint8), np.full((20, 20), 0.02)
        >>> few[0, 0] = 1.0
        >>> bool((overlay(black, few)[10, 10] == overlay(black, few)[0, 0]).all())
        True
    """
    relevance = np.nan_to_num(relevance)
    end = float(np.quantile(np.abs(relevance), 0.99))
    if 0 < end < 0.25:
        relevance = np.clip(relevance / end, -1, 1)
    grey = picture.astype(np.float64).mean(-1, keepdims=True) / 255
    quiet = 0.55 * grey + 0.25 * picture / 255 if not signed else 0.25 + 0.7 * grey
    strength = np.abs(relevance)[..., None]
    cover = opacity * (0.25 + 0.75 * np.sqrt(strength)) if not signed else opacity * np.sqrt(strength)
    mixed = (1 - cover) * quiet + cover * paint(relevance, signed)
    covered: Array = (np.clip(mixed, 0, 1) * 255).round().astype(np.uint8)
    return covered


def to_image(pixels: Array) -> Image:
    """Bytes, shape (h, w, 3), as a PIL image."""
    from PIL import Image as Images

    return Images.fromarray(pixels, "RGB") if pixels.ndim == 3 else Images.fromarray(pixels)


def _srgb(lab: Array) -> Array:
    """Oklab to sRGB, both with channels last."""
    to_cone = np.array([
        [1, 0.3963377774, 0.2158037573],
        [1, -0.1055613458, -0.0638541728],
        [1, -0.0894841775, -1.2914855480],
    ])  # fmt: skip
    to_linear = np.array([
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ])  # fmt: skip
    linear = np.clip(((lab @ to_cone.T) ** 3) @ to_linear.T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)  # type: ignore[no-any-return]
