"""Shapes: the outlines of the twelve things in a scene, how much of each pixel one covers, and a thing drawn.

Every outline is a list of closed polygons around the origin, about one unit from it at the farthest, in the picture's
axes (x to the right, y down). Polygons combine by the even-odd rule, so that a polygon inside another is a hole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vitrail.data import textures
from vitrail.data.textures import Field, between, direction, tint, whole

Floats = NDArray[np.float64]
Points = list[tuple[float, float]]
Box = tuple[int, int, int, int]
Slices = tuple[slice, slice]

FINE = 4
"""Rows and columns a pixel is divided into when its coverage is counted."""

LEAST_PIXELS = 60
"""Visible pixels of a thing, at least."""

TRIES = 12
"""Spots tried for a thing before it is drawn smaller."""


def coverage(outline: Sequence[Floats], radius: float, turn: tuple[float, float], side: int, centre: Floats) -> Floats:
    """How much of each pixel of a small square window an outline covers.

    Each of the FINE rows of a pixel row is crossed by the outline at a few exact places; between the first crossing and
    the second the row is inside, between the second and the third outside, and so on. So the work is one pass over the
    crossings, however many corners the outline has, and only sums, products and comparisons decide: no machine rounds
    them differently.

    Args:
        outline: Closed polygons in units of the radius, each of shape (corners, 2), as x and y.
        radius: Pixels in one unit.
        turn: Cosine and sine of the rotation.
        side: Height and width of the window in pixels.
        centre: Where the origin lies in the window, in pixels, shape (2,).

    Returns:
        Between 0 (outside) and 1 (inside), in steps of 1/16, shape (side, side).

    Example:
        >>> square = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
        >>> coverage([square], 1.5, (1.0, 0.0), 4, np.array([2.0, 2.0])).tolist()
        [[0.25, 0.5, 0.5, 0.25], [0.5, 1.0, 1.0, 0.5], [0.5, 1.0, 1.0, 0.5], [0.25, 0.5, 0.5, 0.25]]
    """
    fine = side * FINE
    cosine, sine = turn
    starts, ends = [], []
    for polygon in outline:
        x, y = polygon[:, 0] * radius, polygon[:, 1] * radius
        x, y = x * cosine - y * sine + centre[0], x * sine + y * cosine + centre[1]
        turned = np.stack([x, y]) * FINE
        starts.append(turned)
        ends.append(np.roll(turned, -1, axis=1))
    (x0, y0), (x1, y1) = np.concatenate(starts, 1), np.concatenate(ends, 1)
    rows = np.arange(fine) + 0.5
    edge, row = np.nonzero((y0[:, None] <= rows) != (y1[:, None] <= rows))
    along = (rows[row] - y0[edge]) / (y1[edge] - y0[edge])
    column = np.ceil(x0[edge] + along * (x1[edge] - x0[edge]) - 0.5).astype(np.int64)
    column = np.clip(column, 0, fine)
    flips = np.bincount(row * (fine + 1) + column, minlength=fine * (fine + 1)).reshape(fine, fine + 1)[:, :fine]
    inside = np.cumsum(flips.astype(np.uint8), axis=1, dtype=np.uint8) & 1
    tall = inside.reshape(side, FINE, fine).sum(1, dtype=np.uint8)
    covered: Floats = tall.reshape(side, side, FINE).sum(2, dtype=np.uint8).astype(np.float64) / (FINE * FINE)
    return covered


def _fixed(points: Points) -> Floats:
    """Corners as an array, rounded, because the last bit of a cosine is the machine's own."""
    return np.array([(round(x, 6), round(y, 6)) for x, y in points], dtype=np.float64)


def _arc(radius: float, start: float, end: float, corners: int, x: float = 0.0, y: float = 0.0) -> Points:
    """Points on a circle around (x, y), from one angle to another in degrees, both ends included."""
    steps = (math.radians(start + (end - start) * k / (corners - 1)) for k in range(corners))
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in steps]


def _circle(radius: float, corners: int = 48) -> Points:
    return _arc(radius, 0, 360 - 360 / corners, corners)


def _mirrored(half: Points) -> Points:
    """The upper half of an outline that is its own mirror image below the x axis, made whole."""
    return half + [(x, -y) for x, y in reversed(half) if y]


def ball() -> list[Floats]:
    """A disc."""
    return [_fixed(_circle(0.92))]


def lifebelt() -> list[Floats]:
    """A ring."""
    return [_fixed(_circle(1.0)), _fixed(_circle(0.44))]


def star() -> list[Floats]:
    """A star of five points, the first to the right."""
    tips = _arc(1.12, 0, 288, 5)
    notches = _arc(0.50, 36, 324, 5)
    return [_fixed([point for pair in zip(tips, notches, strict=True) for point in pair])]


def heart() -> list[Floats]:
    """A heart, its point down."""
    points = []
    for k in range(48):
        a = 2 * math.pi * k / 48
        y = -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a))
        points.append((math.sin(a) ** 3 * 1.02, y / 16 * 1.02 - 0.12))
    return [_fixed(points)]


def leaf() -> list[Floats]:
    """A pointed oval with a stalk to the left."""
    half = [(-1.22, -0.06), (-0.86, -0.06)]
    half += [(x, -0.60 * (1 - ((x - 0.06) / 0.98) ** 2) ** 0.9) for x in (k / 10 for k in range(-8, 11))]
    return [_fixed(_mirrored([*half, (1.16, 0.0)]))]


def moon() -> list[Floats]:
    """A crescent, open to the right."""
    outer = _arc(1.05, 42, 318, 40, x=0.2)
    (x, y), middle = outer[0], 0.72
    lean = math.degrees(math.atan2(y, x - middle))
    return [_fixed(outer + _arc(math.hypot(x - middle, y), 360 - lean, lean, 30, x=middle)[1:-1])]


def cog() -> list[Floats]:
    """A wheel with eight teeth and a round hole."""
    points: Points = []
    for k in range(8):
        middle = 45 * k
        points += _arc(0.78, middle - 22.5, middle - 13, 3)
        points += _arc(1.06, middle - 9, middle + 9, 3)
        points += _arc(0.78, middle + 13, middle + 22.5, 3)[:-1]
    return [_fixed(points), _fixed(_circle(0.26, 32))]


def bolt() -> list[Floats]:
    """A flash of lightning, its point down."""
    half = [(-0.16, -1.14), (0.66, -1.14), (0.24, -0.34), (0.76, -0.34), (-0.42, 1.16), (-0.08, 0.10), (-0.66, 0.10)]
    return [_fixed(half)]


def kite() -> list[Floats]:
    """A kite of four corners, its long end down."""
    return [_fixed([(0.0, -0.94), (0.80, -0.24), (0.0, 1.20), (-0.80, -0.24)])]


def fish() -> list[Floats]:
    """A fish that swims to the right, with a forked tail and two fins."""
    half = [(-0.88, 0.0), (-1.18, -0.56), (-0.98, -0.56), (-0.56, -0.14), (-0.34, -0.38), (-0.28, -0.72), (0.02, -0.70)]
    half += [(0.26, -0.56), (0.48, -0.48), (0.68, -0.38), (0.86, -0.24), (0.98, -0.10), (1.02, 0.0)]
    return [_fixed(_mirrored(half))]


def house() -> list[Floats]:
    """The front of a house with a gable and a chimney."""
    left = [(-0.74, 0.88), (-0.74, -0.12), (-1.02, -0.12), (0.0, -1.04)]
    right = [(0.36, -0.715), (0.36, -1.0), (0.64, -1.0), (0.64, -0.463), (1.02, -0.12), (0.74, -0.12), (0.74, 0.88)]
    return [_fixed(left + right)]


def honeycomb() -> list[Floats]:
    """A hexagon."""
    return [_fixed(_arc(1.02, 0, 300, 6))]


LOOKS: tuple[tuple[Callable[[], list[Floats]], textures.Texture], ...] = (
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
"""What each class looks like: its outline, whose name is the class's own, and its texture."""

CLASSES: tuple[str, ...] = tuple(outline.__name__ for outline, _ in LOOKS)
"""The twelve classes, by name; a class is its place in this tuple."""

_OUTLINES = [outline() for outline, _ in LOOKS]
_REACH = 1.34  # no corner of any outline is farther from the origin


@dataclass(frozen=True, eq=False)
class Thing:
    """A thing drawn in a window of its own, before it has a place in the picture.

    Attributes:
        kind: Its class.
        cover: How much of each pixel it covers, from 0 to 1, shape (side, side).
        paint: Its colours from 0 to 1, shape (3, side, side).
        solid: Where it covers half a pixel or more, shape (side, side).
        area: How many pixels are solid.
    """

    kind: int
    cover: Floats
    paint: Floats
    solid: NDArray[np.bool_]
    area: int


def draw(rng: Generator, kind: int, radius: float) -> Thing:
    """Draw a thing at a random angle, in two random tones that have nothing to do with its class.

    Args:
        rng: Where angle, tones and the rest come from.
        kind: The class.
        radius: Its radius in pixels.

    Returns:
        The thing, in a window that holds it whole.

    Example:
        >>> thing = draw(np.random.default_rng(0), CLASSES.index("star"), 20.0)
        >>> thing.cover.shape, thing.paint.shape
        ((57, 57), (3, 57, 57))
    """
    side = int(2 * _REACH * radius) + 4
    centre = np.array([side / 2 + between(rng, -0.5, 0.5), side / 2 + between(rng, -0.5, 0.5)])
    cosine, sine = direction(rng)
    cover = coverage(_OUTLINES[kind], radius, (cosine, sine), side, centre)
    x = (np.arange(side)[None, :] + 0.5 - centre[0]) / radius
    y = (np.arange(side)[:, None] + 0.5 - centre[1]) / radius
    _, texture = LOOKS[kind]
    mix = texture(Field(x * cosine + y * sine, y * cosine - x * sine, 1 / radius, rng))
    light = tint(rng.random(), between(rng, 0.35, 1.0), between(rng, 0.62, 0.90))
    dark = tint(rng.random(), between(rng, 0.45, 1.0), between(rng, 0.12, 0.32))
    first, second = (light, dark) if rng.random() < 0.5 else (dark, light)
    paint = first[:, None, None] + mix * (second - first)[:, None, None]
    paint *= 1 - 0.09 * (x + y)  # lit from the upper left
    # A thin dark rim keeps the outline clear where a tone happens to match what lies behind.
    inner = np.minimum(np.minimum(cover[:-2, 1:-1], cover[2:, 1:-1]), np.minimum(cover[1:-1, :-2], cover[1:-1, 2:]))
    rim = 0.7 * (1 - inner)
    edge = paint[:, 1:-1, 1:-1]
    edge += rim * (dark[:, None, None] * 0.4 - edge)
    solid = cover >= 0.5
    return Thing(kind, cover, paint, solid, int(solid.sum()))


def place(
    rng: Generator, thing: Thing, taken: NDArray[np.bool_], kept_free: NDArray[np.bool_], least: float
) -> tuple[tuple[int, int], NDArray[np.bool_]] | None:
    """A spot where enough of a thing is seen, and the pixels it is seen in; None if a few tries find none."""
    size = len(taken)
    left, top, right, bottom = box(thing.solid)
    slack = (right - left + bottom - top) // 32  # a sixteenth of a thing may hang over the picture's edge
    for _ in range(TRIES):
        spot = (whole(rng, -left - slack, size - right + slack), whole(rng, -top - slack, size - bottom + slack))
        here, own = overlap(spot, len(thing.solid), size)
        solid = thing.solid[own]
        seen = solid & ~taken[here]
        if seen.sum() >= max(least * thing.area, LEAST_PIXELS) and not (solid & kept_free[here]).any():
            mask = np.zeros_like(taken)
            mask[here] = seen
            return spot, mask
    return None


def overlap(spot: tuple[int, int], side: int, size: int) -> tuple[Slices, Slices]:
    """Where a window lies in the picture, and which part of the window that is: rows and columns of each."""
    here, own = [], []
    for start in reversed(spot):
        low, high = max(start, 0), min(start + side, size)
        here.append(slice(low, high))
        own.append(slice(low - start, high - start))
    return (here[0], here[1]), (own[0], own[1])


def box(mask: NDArray[np.bool_]) -> Box:
    """x0, y0, x1, y1 around the pixels of a mask, the ends left out."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
