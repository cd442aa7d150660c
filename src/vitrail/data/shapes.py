"""Objects of the scenes: outlines of the twelve classes, antialiased drawing, and placement in the image.

An outline is a list of closed polygons around the origin with a radius of about 1, in image axes (x to the right, y
down). Polygons combine by the even-odd rule: a polygon inside another is a hole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vitrail.data import textures
from vitrail.data.textures import TextureGrid, hue_to_rgb, random_direction, uniform, uniform_int

Floats = NDArray[np.float64]
Points = list[tuple[float, float]]
Box = tuple[int, int, int, int]
Slices = tuple[slice, slice]

SUBSAMPLES = 4
"""Rows and columns of samples in each pixel for antialiasing."""

MIN_VISIBLE_PIXELS = 60
"""Minimum number of visible pixels of an object."""

MAX_PLACEMENT_TRIES = 12
"""Positions tried for an object before it is drawn at a smaller size."""


def coverage(
    outline: Sequence[Floats], radius: float, rotation: tuple[float, float], side: int, centre: Floats
) -> Floats:
    """Compute how much of each pixel of a square window an outline covers.

    This is scanline rasterisation: the outline crosses each of the SUBSAMPLES lines of a pixel row at a few exact
    columns, and the inside alternates between them. The cost depends on the number of crossings, not of corners. Only
    sums, products and comparisons are used, which every machine rounds in the same way.

    Args:
        outline: Closed polygons in units of the radius, each of shape (corners, 2), as x and y.
        radius: Pixels in one unit.
        rotation: Cosine and sine of the rotation angle.
        side: Height and width of the window in pixels.
        centre: Position of the origin in the window in pixels, shape (2,).

    Returns:
        Values from 0 (outside) to 1 (inside) in steps of 1/16, shape (side, side).

    Example:
        >>> square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
        >>> coverage([square], 1.5, (1.0, 0.0), 4, np.array([2.0, 2.0])).tolist()
        [[0.25, 0.5, 0.5, 0.25], [0.5, 1.0, 1.0, 0.5], [0.5, 1.0, 1.0, 0.5], [0.25, 0.5, 0.5, 0.25]]
    """
    fine = side * SUBSAMPLES
    cosine, sine = rotation
    starts, ends = [], []
    for polygon in outline:
        x, y = polygon[:, 0] * radius, polygon[:, 1] * radius
        x, y = x * cosine - y * sine + centre[0], x * sine + y * cosine + centre[1]
        corners = np.stack([x, y]) * SUBSAMPLES
        starts.append(corners)
        ends.append(np.roll(corners, -1, axis=1))
    (x0, y0), (x1, y1) = np.concatenate(starts, 1), np.concatenate(ends, 1)
    rows = np.arange(fine) + 0.5
    edge, row = np.nonzero((y0[:, None] <= rows) != (y1[:, None] <= rows))
    along = (rows[row] - y0[edge]) / (y1[edge] - y0[edge])
    column = np.ceil(x0[edge] + along * (x1[edge] - x0[edge]) - 0.5).astype(np.int64)
    column = np.clip(column, 0, fine)
    crossings = np.bincount(row * (fine + 1) + column, minlength=fine * (fine + 1)).reshape(fine, fine + 1)[:, :fine]
    inside = np.cumsum(crossings.astype(np.uint8), axis=1, dtype=np.uint8) & 1
    row_sums = inside.reshape(side, SUBSAMPLES, fine).sum(1, dtype=np.uint8)
    counts = row_sums.reshape(side, side, SUBSAMPLES).sum(2, dtype=np.uint8)
    covered: Floats = counts.astype(np.float64) / (SUBSAMPLES * SUBSAMPLES)
    return covered


def _rounded(points: Points) -> Floats:
    """Corners as an array, rounded because the last bit of a cosine differs between machines."""
    return np.array([(round(x, 6), round(y, 6)) for x, y in points], dtype=np.float64)


def _arc(radius: float, start: float, end: float, corners: int, x: float = 0.0, y: float = 0.0) -> Points:
    """Points on a circle around (x, y) from one angle to another in degrees, both ends included."""
    steps = (math.radians(start + (end - start) * k / (corners - 1)) for k in range(corners))
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in steps]


def _circle(radius: float, corners: int = 48) -> Points:
    return _arc(radius, 0, 360 - 360 / corners, corners)


def _mirrored(half: Points) -> Points:
    """Complete an outline that is symmetric about the x axis from its upper half."""
    return half + [(x, -y) for x, y in reversed(half) if y]


def ball() -> list[Floats]:
    """A disc."""
    return [_rounded(_circle(0.92))]


def lifebelt() -> list[Floats]:
    """A ring."""
    return [_rounded(_circle(1.0)), _rounded(_circle(0.44))]


def star() -> list[Floats]:
    """A star with five points, the first to the right."""
    tips = _arc(1.12, 0, 288, 5)
    notches = _arc(0.50, 36, 324, 5)
    return [_rounded([point for pair in zip(tips, notches, strict=True) for point in pair])]


def heart() -> list[Floats]:
    """A heart, its point down."""
    points = []
    for k in range(48):
        a = 2 * math.pi * k / 48
        y = -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a))
        points.append((math.sin(a) ** 3 * 1.02, y / 16 * 1.02 - 0.12))
    return [_rounded(points)]


def leaf() -> list[Floats]:
    """A pointed oval with a stalk to the left."""
    half = [(-1.22, -0.06), (-0.86, -0.06)]
    half += [(x, -0.60 * (1 - ((x - 0.06) / 0.98) ** 2) ** 0.9) for x in (k / 10 for k in range(-8, 11))]
    return [_rounded(_mirrored([*half, (1.16, 0.0)]))]


def moon() -> list[Floats]:
    """A crescent, open to the right."""
    outer = _arc(1.05, 42, 318, 40, x=0.2)
    (x, y), middle = outer[0], 0.72
    lean = math.degrees(math.atan2(y, x - middle))
    return [_rounded(outer + _arc(math.hypot(x - middle, y), 360 - lean, lean, 30, x=middle)[1:-1])]


def cog() -> list[Floats]:
    """A wheel with eight teeth and a round hole."""
    points: Points = []
    for k in range(8):
        middle = 45 * k
        points += _arc(0.78, middle - 22.5, middle - 13, 3)
        points += _arc(1.06, middle - 9, middle + 9, 3)
        points += _arc(0.78, middle + 13, middle + 22.5, 3)[:-1]
    return [_rounded(points), _rounded(_circle(0.26, 32))]


def bolt() -> list[Floats]:
    """A lightning bolt, its point down."""
    half = [(-0.16, -1.14), (0.66, -1.14), (0.24, -0.34), (0.76, -0.34), (-0.42, 1.16), (-0.08, 0.10), (-0.66, 0.10)]
    return [_rounded(half)]


def kite() -> list[Floats]:
    """A kite of four corners, its long end down."""
    return [_rounded([(0.0, -0.94), (0.80, -0.24), (0.0, 1.20), (-0.80, -0.24)])]


def fish() -> list[Floats]:
    """A fish facing right, with a forked tail and two fins."""
    half = [(-0.88, 0.0), (-1.18, -0.56), (-0.98, -0.56), (-0.56, -0.14), (-0.34, -0.38), (-0.28, -0.72), (0.02, -0.70)]
    half += [(0.26, -0.56), (0.48, -0.48), (0.68, -0.38), (0.86, -0.24), (0.98, -0.10), (1.02, 0.0)]
    return [_rounded(_mirrored(half))]


def house() -> list[Floats]:
    """The front of a house with a gable and a chimney."""
    left = [(-0.74, 0.88), (-0.74, -0.12), (-1.02, -0.12), (0.0, -1.04)]
    right = [(0.36, -0.715), (0.36, -1.0), (0.64, -1.0), (0.64, -0.463), (1.02, -0.12), (0.74, -0.12), (0.74, 0.88)]
    return [_rounded(left + right)]


def honeycomb() -> list[Floats]:
    """A hexagon."""
    return [_rounded(_arc(1.02, 0, 300, 6))]


CLASS_APPEARANCE: tuple[tuple[Callable[[], list[Floats]], textures.Texture], ...] = (
    (ball, textures.stripes),
    (lifebelt, textures.bands),
    (star, textures.facets),
    (heart, textures.dots),
    (leaf, textures.veins),
    (moon, textures.mottle),
    (cog, textures.rings),
    (bolt, textures.ramp),
    (kite, textures.checks),
    (fish, textures.waves),
    (house, textures.bricks),
    (honeycomb, textures.cells),
)
"""Outline and texture of each class; the name of the outline function is the name of the class."""

SCENE_CLASSES: tuple[str, ...] = tuple(outline.__name__ for outline, _ in CLASS_APPEARANCE)
"""Names of the twelve classes, by index."""

_OUTLINES = [outline() for outline, _ in CLASS_APPEARANCE]
_MAX_RADIUS = 1.34  # no corner of any outline is farther from the origin


@dataclass(frozen=True, eq=False)
class DrawnObject:
    """An object drawn in a window, not yet placed in the image.

    Attributes:
        label: Its class.
        alpha: How much of each pixel it covers, from 0 to 1, shape (side, side).
        colours: Its colours from 0 to 1, shape (3, side, side).
        mask: Pixels it covers by half or more, shape (side, side).
        area: Number of pixels in the mask.
    """

    label: int
    alpha: Floats
    colours: Floats
    mask: NDArray[np.bool_]
    area: int


def draw_object(rng: Generator, label: int, radius: float, colour: int | None = None) -> DrawnObject:
    """Draw an object at a random angle, in two random tones that do not depend on its class.

    Args:
        rng: Random generator.
        label: The class.
        radius: Radius in pixels.
        colour: Index of the colour in `vitrail.data.textures.SCENE_COLOURS` that both tones have; by default two
            random hues.

    Returns:
        The object, in a window that contains all of it.

    Example:
        >>> drawn = draw_object(np.random.default_rng(0), SCENE_CLASSES.index("star"), 20.0)
        >>> drawn.alpha.shape, drawn.colours.shape
        ((57, 57), (3, 57, 57))
    """
    side = int(2 * _MAX_RADIUS * radius) + 4
    centre = np.array([side / 2 + uniform(rng, -0.5, 0.5), side / 2 + uniform(rng, -0.5, 0.5)])
    cosine, sine = random_direction(rng)
    alpha = coverage(_OUTLINES[label], radius, (cosine, sine), side, centre)
    x = (np.arange(side)[None, :] + 0.5 - centre[0]) / radius
    y = (np.arange(side)[:, None] + 0.5 - centre[1]) / radius
    _, texture = CLASS_APPEARANCE[label]
    mix = texture(TextureGrid(x * cosine + y * sine, y * cosine - x * sine, 1 / radius, rng))
    if colour is None:
        light = hue_to_rgb(rng.random(), uniform(rng, 0.35, 1.0), uniform(rng, 0.62, 0.90))
        dark = hue_to_rgb(rng.random(), uniform(rng, 0.45, 1.0), uniform(rng, 0.12, 0.32))
    else:
        light, dark = textures.named_tones(rng, colour)
    first, second = (light, dark) if rng.random() < 0.5 else (dark, light)
    colours = first[:, None, None] + mix * (second - first)[:, None, None]
    colours *= 1 - 0.09 * (x + y)  # shading: light from the upper left
    # A thin dark border keeps the outline visible where the object has the tone of the background.
    inner = np.minimum(np.minimum(alpha[:-2, 1:-1], alpha[2:, 1:-1]), np.minimum(alpha[1:-1, :-2], alpha[1:-1, 2:]))
    border = 0.7 * (1 - inner)
    interior = colours[:, 1:-1, 1:-1]
    interior += border * (dark[:, None, None] * 0.4 - interior)
    mask = alpha >= 0.5
    return DrawnObject(label, alpha, colours, mask, int(mask.sum()))


def place_object(
    rng: Generator,
    drawn: DrawnObject,
    occupied: NDArray[np.bool_],
    reserved: NDArray[np.bool_],
    min_visible: float,
) -> tuple[tuple[int, int], NDArray[np.bool_]] | None:
    """Find a random position where enough of an object is visible.

    Args:
        rng: Random generator.
        drawn: The object.
        occupied: Pixels of objects in front, shape (size, size).
        reserved: Pixels that must stay free, shape (size, size).
        min_visible: Minimum visible fraction.

    Returns:
        The position (x, y) of the window and the visible pixels, shape (size, size); None if no try succeeds.
    """
    size = len(occupied)
    left, top, right, bottom = bounding_box(drawn.mask)
    slack = (right - left + bottom - top) // 32  # a sixteenth of an object may be outside the image
    for _ in range(MAX_PLACEMENT_TRIES):
        x = uniform_int(rng, -left - slack, size - right + slack)
        y = uniform_int(rng, -top - slack, size - bottom + slack)
        in_image, in_window = window_slices((x, y), len(drawn.mask), size)
        object_mask = drawn.mask[in_window]
        visible = object_mask & ~occupied[in_image]
        enough = visible.sum() >= max(min_visible * drawn.area, MIN_VISIBLE_PIXELS)
        if enough and not (object_mask & reserved[in_image]).any():
            mask = np.zeros_like(occupied)
            mask[in_image] = visible
            return (x, y), mask
    return None


def window_slices(position: tuple[int, int], side: int, size: int) -> tuple[Slices, Slices]:
    """Rows and columns of the image that a window covers, and the same rows and columns within the window."""
    in_image, in_window = [], []
    for start in reversed(position):
        low, high = max(start, 0), min(start + side, size)
        in_image.append(slice(low, high))
        in_window.append(slice(low - start, high - start))
    return (in_image[0], in_image[1]), (in_window[0], in_window[1])


def bounding_box(mask: NDArray[np.bool_]) -> Box:
    """x0, y0, x1, y1 around the pixels of a mask, with exclusive ends."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
