"""Colour maps for relevance and overlays on images, with numpy and Pillow only."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

# Control points in Oklab (lightness, green-red, blue-yellow). Lightness changes in nearly equal steps, so equal steps
# of relevance look equal, also in greyscale and with colour-vision deficiency; diverging maps are symmetric in it.
_CONTROL_POINTS = {
    "glow": ((0.16, 0.02, -0.07), (0.34, 0.11, -0.13), (0.52, 0.19, -0.01), (0.70, 0.14, 0.12), (0.88, 0.0, 0.16),
             (0.98, -0.01, 0.05)),
    "meadow": ((0.2, 0.03, -0.1), (0.38, -0.01, -0.11), (0.55, -0.09, -0.02), (0.73, -0.12, 0.1), (0.92, -0.05, 0.17)),
    "frost": ((0.14, 0.0, -0.03), (0.34, 0.02, -0.13), (0.54, -0.03, -0.13), (0.76, -0.07, -0.06), (0.98, -0.01, 0.01)),
    "ash": ((0.12, 0.0, 0.0), (0.98, 0.0, 0.0)),
    "coldwarm": ((0.40, -0.03, -0.17), (0.68, -0.05, -0.11), (0.97, 0.0, 0.0), (0.68, 0.13, 0.08), (0.42, 0.16, 0.08)),
    "plumfern": ((0.4, 0.12, -0.13), (0.68, 0.09, -0.09), (0.97, 0.0, 0.0), (0.68, -0.13, 0.09), (0.42, -0.1, 0.08)),
}  # fmt: skip


def colours(signed: bool = False) -> Array:
    """Colour table of 256 entries: sequential (dark to light), or diverging (blue, white, red) if signed.

    Returns:
        Values in [0, 1], shape (256, 3).

    Example:
        >>> table = colours()
        >>> table.shape, bool((table.sum(1)[1:] >= table.sum(1)[:-1] - 0.02).all())
        ((256, 3), True)
    """
    return _table("coldwarm" if signed else "glow")


@lru_cache
def _table(name: str) -> Array:
    points = np.asarray(_CONTROL_POINTS[name])
    positions = np.linspace(0, len(points) - 1, 256)
    lab = np.stack([np.interp(positions, range(len(points)), points[:, i]) for i in range(3)], 1)
    return _oklab_to_srgb(lab)


@lru_cache
def colour_tables() -> str:
    """All colour tables as JSON for web pages: by name, 256 colours of six hexadecimal digits each.

    Example:
        >>> import json
        >>> tables = json.loads(colour_tables())
        >>> list(tables), tables["ash"][:6], len(tables["glow"])
        (['glow', 'meadow', 'frost', 'ash', 'coldwarm', 'plumfern'], '060606', 1536)
    """
    tables = {name: (_table(name) * 255).round().astype(np.uint8).tobytes().hex() for name in _CONTROL_POINTS}
    return json.dumps(tables)


def colourise(relevance: Array, signed: bool = False) -> Array:
    """Colour a map in [0, 1] (or [-1, 1] if signed): (h, w) to (h, w, 3), values in [0, 1]."""
    unit = (relevance + 1) / 2 if signed else relevance
    table: Array = colours(signed)
    coloured: Array = table[np.clip(np.nan_to_num(unit) * 255, 0, 255).round().astype(int)]
    return coloured


def overlay(image: Array, relevance: Array, signed: bool = False, opacity: float = 0.75) -> Array:
    """Draw a map over a desaturated image, more opaque where relevance is higher.

    If the 99th percentile of the magnitudes is below 0.25, as in sparse pixel-level maps, the map is divided by it and
    clipped, so that more than a few pixels are visible.

    Args:
        image: uint8, shape (h, w, 3).
        relevance: In [0, 1], or [-1, 1] if signed, shape (h, w).
        signed: Whether zero is in the middle of the colour map.
        opacity: Opacity of the colour where relevance is highest.

    Returns:
        uint8, shape (h, w, 3).

    Example:
        >>> image, sparse = np.zeros((20, 20, 3), np.uint8), np.full((20, 20), 0.02)
        >>> sparse[0, 0] = 1.0
        >>> bool((overlay(image, sparse)[10, 10] == overlay(image, sparse)[0, 0]).all())
        True
    """
    return blend(image, stretch(relevance), signed, opacity)


def stretch(relevance: Array) -> Array:
    """Divide a sparse map by the 99th percentile of its magnitudes, as `overlay` does; other maps stay unchanged."""
    relevance = np.nan_to_num(relevance)
    percentile = float(np.quantile(np.abs(relevance), 0.99))
    return np.clip(relevance / percentile, -1, 1) if 0 < percentile < 0.25 else relevance


def blend(image: Array, relevance: Array, signed: bool = False, opacity: float = 0.75) -> Array:
    """Draw a map over a desaturated image without changing its contrast; arguments and result as of `overlay`."""
    grey = image.astype(np.float64).mean(-1, keepdims=True) / 255
    background = 0.55 * grey + 0.25 * image / 255 if not signed else 0.25 + 0.7 * grey
    magnitude = np.abs(relevance)[..., None]
    alpha = opacity * (0.25 + 0.75 * np.sqrt(magnitude)) if not signed else opacity * np.sqrt(magnitude)
    blended = (1 - alpha) * background + alpha * colourise(relevance, signed)
    result: Array = (np.clip(blended, 0, 1) * 255).round().astype(np.uint8)
    return result


def mark_failure(image: Image, verdict: str) -> Image:
    """Write a verdict into the lower left corner of an image, in letters that grow with it."""
    from PIL import ImageDraw, ImageFont

    marked = image.copy()
    draw = ImageDraw.Draw(marked, "RGBA")
    font = ImageFont.load_default(max(10, min(image.size) // 40))
    left, top, right, bottom = draw.textbbox((0, 0), verdict, font=font)
    height = bottom - top + 4
    draw.rectangle((0, marked.height - height, right - left + 5, marked.height), fill=(0, 0, 0, 150))
    draw.text((2 - left, marked.height - height + 2 - top), verdict, fill=(255, 255, 255, 255), font=font)
    return marked


def to_image(pixels: Array) -> Image:
    """Convert uint8 pixels, shape (h, w, 3) or (h, w), to a PIL image."""
    from PIL import Image as PILImage

    return PILImage.fromarray(pixels, "RGB") if pixels.ndim == 3 else PILImage.fromarray(pixels)


def _oklab_to_srgb(lab: Array) -> Array:
    """Convert Oklab to sRGB, both with channels last."""
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
