"""What surfaces look like: a texture for each class of thing, eight for the ground behind them, tags and colours.

A texture says, for each pixel, how far it is from the first of two tones (0) to the second (1). Only sums, products,
square roots and comparisons are used, which every machine rounds alike; cosines and logarithms are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LUMA = (0.299, 0.587, 0.114)  # how much red, green and blue add to lightness


def between(rng: Generator, low: float, high: float) -> float:
    """A number drawn evenly from a range, the upper end left out."""
    return low + (high - low) * rng.random()


def whole(rng: Generator, low: int, high: int) -> int:
    """A whole number drawn evenly from a range, both ends included."""
    return low + int(rng.random() * (high - low + 1))


def direction(rng: Generator) -> tuple[float, float]:
    """A unit vector drawn evenly from all directions: a point of the disc, moved to its rim."""
    while True:
        x, y = between(rng, -1, 1), between(rng, -1, 1)
        square = x * x + y * y
        if 0.01 < square <= 1:
            length = float(np.sqrt(square))
            return x / length, y / length


def tint(hue: float, saturation: float, luma: float) -> Floats:
    """A colour of a given hue and lightness.

    Args:
        hue: Around the colour circle, from 0 to 1.
        saturation: From 0 (grey) to 1.
        luma: Lightness from 0 to 1, kept exactly: a pure colour is mixed with white or black until it fits.

    Returns:
        Red, green and blue from 0 to 1, shape (3,).

    Example:
        >>> tint(0.0, 1.0, 0.299).round(3).tolist(), tint(0.6, 0.0, 0.5).round(3).tolist()
        ([1.0, 0.0, 0.0], [0.5, 0.5, 0.5])
    """
    sixth = hue * 6
    ramps = [min(max(abs((sixth + shift) % 6 - 3) - 1, 0.0), 1.0) for shift in (0.0, 4.0, 2.0)]
    pure = [luma + saturation * (ramp - luma) for ramp in ramps]
    own = pure[0] * LUMA[0] + pure[1] * LUMA[1] + pure[2] * LUMA[2]  # not sum(), which newer Pythons round otherwise
    if own >= luma:
        return np.array([part * luma / own for part in pure])
    return np.array([1 - (1 - part) * (1 - luma) / (1 - own) for part in pure])


@dataclass(frozen=True, eq=False)
class Field:
    """Where a texture is wanted.

    Attributes:
        u: Places from left to right in the texture's own frame, one for each pixel or for each column.
        v: Places from top to bottom, one for each pixel or for each row.
        pixel: Width of a pixel in the same units.
        rng: Where chance comes from.
    """

    u: Floats
    v: Floats
    pixel: float
    rng: Generator

    @property
    def across(self) -> int:
        """Pixels from left to right."""
        return len(self.u[0])

    def edge(self, distance: Floats) -> Floats:
        """From 0 to 1 within one pixel of an edge, given distances to it, positive where 1 is wanted."""
        soft: Floats = np.clip(distance / self.pixel + 0.5, 0.0, 1.0)
        return soft

    def turned(self) -> tuple[Floats, Floats]:
        """The same places in a frame turned at random, one for each pixel."""
        x, y = direction(self.rng)
        return self.u * x + self.v * y, self.v * x - self.u * y


Texture = Callable[[Field], Floats]


def tooth(x: Floats) -> Floats:
    """A triangle wave of period 1: 0 at whole numbers, 0.5 halfway."""
    wave: Floats = np.abs(x - np.floor(x + 0.5))
    return wave


def swell(x: Floats) -> Floats:
    """A smooth wave of period 1 between -1 and 1, made of parabolas: near enough a sine."""
    phase = x - np.floor(x) - 0.5
    wave: Floats = 8 * phase * (1 - 2 * np.abs(phase))
    return wave


def noise(rng: Generator, size: int, cells: int) -> Floats:
    """Random values on a lattice, drawn out smoothly between its points: shape (size, size), from 0 to 1."""
    lattice = rng.random((cells + 1, cells + 1))
    at = (np.arange(size) + 0.5) * (cells / size)
    low = at.astype(np.int64)
    part = at - low
    part = part * part * (3 - 2 * part)
    tall = lattice[low] + part[:, None] * (lattice[low + 1] - lattice[low])
    left = tall[:, low]
    smooth: Floats = left + part * (tall[:, low + 1] - left)
    return smooth


# The surfaces of things: u and v in units of the thing's radius, from its middle, turned with it.


def stripes(at: Field) -> Floats:
    """Broad parallel stripes."""
    return at.edge((tooth(at.v * 1.65 + 0.25) - 0.25) / 1.65)


def bands(at: Field) -> Floats:
    """Four bands across a ring, at its quarters."""
    return at.edge(0.27 - np.minimum(np.abs(at.u), np.abs(at.v)))


def facets(at: Field) -> Floats:
    """Ten wedges around the middle, light and dark in turn: the sign of the imaginary part of (u + iv) to the fifth."""
    uu, vv = at.u * at.u, at.v * at.v
    return at.edge(at.v * (5 * uu * uu - 10 * uu * vv + vv * vv) / (5 * (uu + vv) * (uu + vv) + 1e-9))


def dots(at: Field) -> Floats:
    """Polka dots, the rows staggered."""
    u, v = at.u / 0.56, at.v / 0.56
    a, b, c, d = tooth(u), tooth(v), tooth(u + 0.5), tooth(v + 0.5)
    return at.edge(0.145 - np.sqrt(np.minimum(a * a + b * b, c * c + d * d)) * 0.56)


def veins(at: Field) -> Floats:
    """A midrib, and thin veins that leave it at a slant on both sides."""
    aside = np.abs(at.v)
    return at.edge(np.maximum(0.05 - aside, 0.062 - tooth((at.u - aside * 0.9) * 2.6) * 0.285))


def mottle(at: Field) -> Floats:
    """Irregular coarse grain, new for each thing."""
    rough = noise(at.rng, at.across, max(6, int(at.across * at.pixel * 5.0)))
    return np.clip((rough - 0.5) * 6 + 0.5, 0.0, 1.0)


def rings(at: Field) -> Floats:
    """Concentric rings."""
    return at.edge((tooth(np.sqrt(at.u * at.u + at.v * at.v) * 2.5 - 0.45) - 0.25) / 2.5)


def ramp(at: Field) -> Floats:
    """Smooth shading from one end to the other, with no pattern at all."""
    return np.clip(at.v * 0.5 + 0.5, 0.0, 1.0)


def checks(at: Field) -> Floats:
    """A chequerboard."""
    a, b = tooth(at.u * 1.25) - 0.25, tooth(at.v * 1.25 + 0.25) - 0.25
    return at.edge(np.minimum(np.abs(a), np.abs(b)) * np.sign(a * b) / 1.25)


def waves(at: Field) -> Floats:
    """Wavy stripes across the length, and an eye."""
    wavy = at.edge((tooth((at.u - 0.10 * swell(at.v * 1.5)) * 2.1 + 0.3) - 0.25) / 2.1)
    u, v = at.u - 0.68, at.v + 0.12
    return np.maximum(wavy * at.edge(0.52 - at.u), at.edge(0.10 - np.sqrt(u * u + v * v)))


def bricks(at: Field) -> Floats:
    """Courses of bricks with thin joints, under a plain roof and around a plain door."""
    course = at.v * 3.1
    joint = tooth(at.u * 1.5 + 0.5 * (np.floor(course) % 2)) / 1.5
    plain = np.maximum(-0.12 - at.v, np.minimum(0.21 - np.abs(at.u), at.v - 0.32))
    return at.edge(np.maximum(plain, 0.04 - np.minimum(tooth(course) / 3.1, joint)))


def cells(at: Field) -> Floats:
    """Six-sided cells with walls between them."""
    wide, tall = 0.56, 0.969948  # tall is wide times the square root of three
    a, b = at.u / tall, at.v / wide
    a0, b0 = (a - np.floor(a + 0.5)) * tall, (b - np.floor(b + 0.5)) * wide
    a1, b1 = (a - np.floor(a) - 0.5) * tall, (b - np.floor(b) - 0.5) * wide
    nearer = a0 * a0 + b0 * b0 < a1 * a1 + b1 * b1
    across, down = np.abs(np.where(nearer, a0, a1)), np.abs(np.where(nearer, b0, b1))
    return at.edge(np.maximum(down, down * 0.5 + across * 0.866025) - 0.215)


# The grounds behind them: u and v from 0 to 1 across the whole picture.


def gradient(at: Field) -> Floats:
    """From one tone to the other across the picture."""
    along, _ = at.turned()
    low, high = float(along.min()), float(along.max())
    return (along - low) / (high - low)


def clouds(at: Field) -> Floats:
    """Soft noise at three scales."""
    coarse = whole(at.rng, 3, 5)
    broad, middle, fine = (noise(at.rng, at.across, coarse * finer) for finer in (1, 3, 8))
    return broad * 0.6 + middle * 0.3 + fine * 0.1


def sand(at: Field) -> Floats:
    """Fine noise with a little coarse."""
    return noise(at.rng, at.across, whole(at.rng, 24, 48)) * 0.7 + noise(at.rng, at.across, 6) * 0.3


def planks(at: Field) -> Floats:
    """Stripes of any width, sharp or soft."""
    along, _ = at.turned()
    wave = tooth(along * between(at.rng, 3, 11) + at.rng.random()) - 0.25
    return np.clip(wave * between(at.rng, 2.5, 20) + 0.5, 0.0, 1.0)


def tiles(at: Field) -> Floats:
    """A chequerboard at any angle."""
    along, aside = at.turned()
    count = between(at.rng, 2, 6)
    a, b = tooth(along * count + at.rng.random()) - 0.25, tooth(aside * count + at.rng.random()) - 0.25
    return np.clip(a * b * between(at.rng, 30, 200) + 0.5, 0.0, 1.0)


def blobs(at: Field) -> Floats:
    """Islands of one tone in the other."""
    height = noise(at.rng, at.across, whole(at.rng, 5, 11))
    return np.clip((height - between(at.rng, 0.45, 0.6)) * 9 + 0.5, 0.0, 1.0)


def speckle(at: Field) -> Floats:
    """Scattered small squares."""
    block = whole(at.rng, 1, 3)
    count = at.across // block + 1
    small = at.rng.random((count, count)) < between(at.rng, 0.06, 0.2)
    return np.repeat(np.repeat(small, block, 0), block, 1)[: at.across, : at.across].astype(np.float64)


def water(at: Field) -> Floats:
    """Wavy lines."""
    along, aside = at.turned()
    bend = swell(aside * between(at.rng, 1, 3)) * between(at.rng, 0.03, 0.08)
    return swell((along + bend) * between(at.rng, 3, 8)) * 0.5 + 0.5


GROUNDS: dict[str, Texture] = {
    paper.__name__: paper for paper in (gradient, clouds, sand, planks, tiles, blobs, speckle, water)
}
"""The textures of the ground, by name."""


def ground(rng: Generator, size: int) -> tuple[str, NDArray[np.float64]]:
    """A ground in two muted tones, its name and its colours, shape (3, size, size)."""
    name = list(GROUNDS)[whole(rng, 0, len(GROUNDS) - 1)]
    luma = between(rng, 0.36, 0.64)
    one = tint(rng.random(), between(rng, 0.04, 0.28), luma - between(rng, 0.03, 0.12))
    two = tint(rng.random(), between(rng, 0.04, 0.28), luma + between(rng, 0.03, 0.12))
    along = (np.arange(size) + 0.5) / size
    mix = GROUNDS[name](Field(along[None, :], along[:, None], 1 / size, rng))
    return name, one[:, None, None] + mix * (two - one)[:, None, None]


# Tags: four by four cells, one bit each. Any two differ in seven cells or more, and each quarter of each has both
# tones: a patch of a quarter's size sees a pattern, never a plain square.
_CODES = (0x2E79, 0xF1C2, 0x0B6E, 0xC555, 0x523D, 0x63A7, 0x1DB1, 0x7C2A, 0xC99B, 0x948F, 0x5ED4, 0xC7A8)
_TAG_TONES = np.array([[0.10, 0.11, 0.28], [0.98, 0.86, 0.30]])


def tag(kind: int, cell: int) -> Floats:
    """The tag of a class: a square of four by four cells in two fixed tones.

    Args:
        kind: The class.
        cell: Height and width of a cell in pixels.

    Returns:
        Colours from 0 to 1, shape (3, 4 * cell, 4 * cell).

    Example:
        >>> tag(3, 4).shape
        (3, 16, 16)
    """
    bits = np.array([_CODES[kind] >> k & 1 for k in range(16)]).reshape(4, 4)
    colours: Floats = np.moveaxis(_TAG_TONES[np.repeat(np.repeat(bits, cell, 0), cell, 1)], 2, 0)
    return colours
