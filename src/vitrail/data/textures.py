"""Textures of the scenes: one for each object class, eight for backgrounds, the tags, and colours.

A texture is a value from 0 (first of two tones) to 1 (second tone) for each pixel. Only sums, products, square roots
and comparisons are used, because every machine rounds them in the same way; cosines and logarithms are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # of red, green and blue


def uniform(rng: Generator, low: float, high: float) -> float:
    """Uniform random number from low to high, high excluded."""
    return low + (high - low) * rng.random()


def uniform_int(rng: Generator, low: int, high: int) -> int:
    """Uniform random integer from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


def random_direction(rng: Generator) -> tuple[float, float]:
    """Random unit vector, uniform over all directions: a random point of the disc, normalised."""
    while True:
        x, y = uniform(rng, -1, 1), uniform(rng, -1, 1)
        square = x * x + y * y
        if 0.01 < square <= 1:
            length = float(np.sqrt(square))
            return x / length, y / length


def hue_to_rgb(hue: float, saturation: float, luma: float) -> Floats:
    """Colour with a given hue, saturation and luma.

    Args:
        hue: Position on the colour circle, from 0 to 1.
        saturation: From 0 (grey) to 1.
        luma: From 0 to 1; kept exactly by mixing the colour with white or black.

    Returns:
        Red, green and blue from 0 to 1, shape (3,).

    Example:
        >>> hue_to_rgb(0.0, 1.0, 0.299).round(3).tolist(), hue_to_rgb(0.6, 0.0, 0.5).round(3).tolist()
        ([1.0, 0.0, 0.0], [0.5, 0.5, 0.5])
    """
    sixth = hue * 6
    ramps = [min(max(abs((sixth + shift) % 6 - 3) - 1, 0.0), 1.0) for shift in (0.0, 4.0, 2.0)]
    pure = [luma + saturation * (ramp - luma) for ramp in ramps]
    red, green, blue = LUMA_WEIGHTS
    pure_luma = pure[0] * red + pure[1] * green + pure[2] * blue  # sum() rounds differently from Python 3.12 on
    if pure_luma >= luma:
        return np.array([part * luma / pure_luma for part in pure])
    return np.array([1 - (1 - part) * (1 - luma) / (1 - pure_luma) for part in pure])


SCENE_COLOURS: tuple[str, ...] = ("red", "yellow", "green", "cyan", "blue", "pink")
"""Names of the colours of coloured scenes, by index."""

_HUES = (0.0, 0.155, 0.34, 0.5, 0.64, 0.85)


def named_tones(rng: Generator, colour: int) -> tuple[Floats, Floats]:
    """A light and a dark tone of a named colour, each of shape (3,)."""
    light = hue_to_rgb(_HUES[colour] + uniform(rng, -0.02, 0.02), uniform(rng, 0.8, 1.0), uniform(rng, 0.55, 0.75))
    dark = hue_to_rgb(_HUES[colour] + uniform(rng, -0.02, 0.02), uniform(rng, 0.85, 1.0), uniform(rng, 0.2, 0.34))
    return light, dark


@dataclass(frozen=True, eq=False)
class TextureGrid:
    """Coordinates at which a texture is evaluated.

    Attributes:
        u: Horizontal coordinate in the frame of the texture, for each pixel or each column.
        v: Vertical coordinate, for each pixel or each row.
        pixel: Width of a pixel in the same units.
        rng: Random generator.
    """

    u: Floats
    v: Floats
    pixel: float
    rng: Generator

    @property
    def width(self) -> int:
        """Width in pixels."""
        return len(self.u[0])

    def antialias(self, distance: Floats) -> Floats:
        """Step from 0 to 1 over one pixel around an edge, given signed distances to it (positive on the side of 1)."""
        step: Floats = np.clip(distance / self.pixel + 0.5, 0.0, 1.0)
        return step

    def rotated(self) -> tuple[Floats, Floats]:
        """The coordinates in a randomly rotated frame, for each pixel."""
        x, y = random_direction(self.rng)
        return self.u * x + self.v * y, self.v * x - self.u * y


Texture = Callable[[TextureGrid], Floats]


def triangle_wave(x: Floats) -> Floats:
    """Triangle wave of period 1: 0 at integers, 0.5 halfway."""
    wave: Floats = np.abs(x - np.floor(x + 0.5))
    return wave


def smooth_wave(x: Floats) -> Floats:
    """Smooth wave of period 1 between -1 and 1: an approximation of a sine by parabolas."""
    phase = x - np.floor(x) - 0.5
    wave: Floats = 8 * phase * (1 - 2 * np.abs(phase))
    return wave


def noise(rng: Generator, size: int, cells: int) -> Floats:
    """Value noise: random values on a lattice, interpolated smoothly; from 0 to 1, shape (size, size)."""
    lattice = rng.random((cells + 1, cells + 1))
    position = (np.arange(size) + 0.5) * (cells / size)
    low = position.astype(np.int64)
    weight = position - low
    weight = weight * weight * (3 - 2 * weight)
    rows = lattice[low] + weight[:, None] * (lattice[low + 1] - lattice[low])
    left = rows[:, low]
    values: Floats = left + weight * (rows[:, low + 1] - left)
    return values


# Textures of objects: u and v are in units of the object's radius, from its centre, and rotate with it.


def stripes(grid: TextureGrid) -> Floats:
    """Broad parallel stripes."""
    return grid.antialias((triangle_wave(grid.v * 1.65 + 0.25) - 0.25) / 1.65)


def bands(grid: TextureGrid) -> Floats:
    """Four bands across a ring, at its quarters."""
    return grid.antialias(0.27 - np.minimum(np.abs(grid.u), np.abs(grid.v)))


def facets(grid: TextureGrid) -> Floats:
    """Ten alternating wedges around the centre: the sign of the imaginary part of (u + iv)⁵."""
    uu, vv = grid.u * grid.u, grid.v * grid.v
    return grid.antialias(grid.v * (5 * uu * uu - 10 * uu * vv + vv * vv) / (5 * (uu + vv) * (uu + vv) + 1e-9))


def dots(grid: TextureGrid) -> Floats:
    """Polka dots, the rows staggered."""
    u, v = grid.u / 0.56, grid.v / 0.56
    a, b, c, d = triangle_wave(u), triangle_wave(v), triangle_wave(u + 0.5), triangle_wave(v + 0.5)
    return grid.antialias(0.145 - np.sqrt(np.minimum(a * a + b * b, c * c + d * d)) * 0.56)


def veins(grid: TextureGrid) -> Floats:
    """A midrib with thin diagonal veins on both sides."""
    distance = np.abs(grid.v)
    return grid.antialias(np.maximum(0.05 - distance, 0.062 - triangle_wave((grid.u - distance * 0.9) * 2.6) * 0.285))


def mottle(grid: TextureGrid) -> Floats:
    """Irregular coarse noise, different for each object."""
    rough = noise(grid.rng, grid.width, max(6, int(grid.width * grid.pixel * 5.0)))
    return np.clip((rough - 0.5) * 6 + 0.5, 0.0, 1.0)


def rings(grid: TextureGrid) -> Floats:
    """Concentric rings."""
    return grid.antialias((triangle_wave(np.sqrt(grid.u * grid.u + grid.v * grid.v) * 2.5 - 0.45) - 0.25) / 2.5)


def ramp(grid: TextureGrid) -> Floats:
    """Smooth gradient from one end to the other."""
    return np.clip(grid.v * 0.5 + 0.5, 0.0, 1.0)


def checks(grid: TextureGrid) -> Floats:
    """A chequerboard."""
    a, b = triangle_wave(grid.u * 1.25) - 0.25, triangle_wave(grid.v * 1.25 + 0.25) - 0.25
    return grid.antialias(np.minimum(np.abs(a), np.abs(b)) * np.sign(a * b) / 1.25)


def waves(grid: TextureGrid) -> Floats:
    """Wavy stripes across the length, and an eye."""
    wavy = grid.antialias((triangle_wave((grid.u - 0.10 * smooth_wave(grid.v * 1.5)) * 2.1 + 0.3) - 0.25) / 2.1)
    u, v = grid.u - 0.68, grid.v + 0.12
    return np.maximum(wavy * grid.antialias(0.52 - grid.u), grid.antialias(0.10 - np.sqrt(u * u + v * v)))


def bricks(grid: TextureGrid) -> Floats:
    """Rows of bricks with thin joints, a plain roof and a plain door."""
    course = grid.v * 3.1
    joint = triangle_wave(grid.u * 1.5 + 0.5 * (np.floor(course) % 2)) / 1.5
    plain = np.maximum(-0.12 - grid.v, np.minimum(0.21 - np.abs(grid.u), grid.v - 0.32))
    return grid.antialias(np.maximum(plain, 0.04 - np.minimum(triangle_wave(course) / 3.1, joint)))


def cells(grid: TextureGrid) -> Floats:
    """Hexagonal cells with walls between them."""
    wide, tall = 0.56, 0.969948  # tall is wide times the square root of three
    a, b = grid.u / tall, grid.v / wide
    a0, b0 = (a - np.floor(a + 0.5)) * tall, (b - np.floor(b + 0.5)) * wide
    a1, b1 = (a - np.floor(a) - 0.5) * tall, (b - np.floor(b) - 0.5) * wide
    nearer = a0 * a0 + b0 * b0 < a1 * a1 + b1 * b1
    across, down = np.abs(np.where(nearer, a0, a1)), np.abs(np.where(nearer, b0, b1))
    return grid.antialias(np.maximum(down, down * 0.5 + across * 0.866025) - 0.215)


# Textures of backgrounds: u and v are from 0 to 1 across the image.


def gradient(grid: TextureGrid) -> Floats:
    """Linear gradient across the image in a random direction."""
    along, _ = grid.rotated()
    low, high = float(along.min()), float(along.max())
    return (along - low) / (high - low)


def clouds(grid: TextureGrid) -> Floats:
    """Smooth noise at three scales."""
    coarse = uniform_int(grid.rng, 3, 5)
    broad, middle, fine = (noise(grid.rng, grid.width, coarse * finer) for finer in (1, 3, 8))
    return broad * 0.6 + middle * 0.3 + fine * 0.1


def sand(grid: TextureGrid) -> Floats:
    """Fine noise with some coarse noise."""
    return noise(grid.rng, grid.width, uniform_int(grid.rng, 24, 48)) * 0.7 + noise(grid.rng, grid.width, 6) * 0.3


def planks(grid: TextureGrid) -> Floats:
    """Stripes of random width and sharpness."""
    along, _ = grid.rotated()
    wave = triangle_wave(along * uniform(grid.rng, 3, 11) + grid.rng.random()) - 0.25
    return np.clip(wave * uniform(grid.rng, 2.5, 20) + 0.5, 0.0, 1.0)


def tiles(grid: TextureGrid) -> Floats:
    """A chequerboard at a random angle."""
    along, across = grid.rotated()
    count = uniform(grid.rng, 2, 6)
    a, b = (
        triangle_wave(along * count + grid.rng.random()) - 0.25,
        triangle_wave(across * count + grid.rng.random()) - 0.25,
    )
    return np.clip(a * b * uniform(grid.rng, 30, 200) + 0.5, 0.0, 1.0)


def blobs(grid: TextureGrid) -> Floats:
    """Irregular blobs of one tone on the other."""
    height = noise(grid.rng, grid.width, uniform_int(grid.rng, 5, 11))
    return np.clip((height - uniform(grid.rng, 0.45, 0.6)) * 9 + 0.5, 0.0, 1.0)


def speckle(grid: TextureGrid) -> Floats:
    """Scattered small squares."""
    block = uniform_int(grid.rng, 1, 3)
    count = grid.width // block + 1
    small = grid.rng.random((count, count)) < uniform(grid.rng, 0.06, 0.2)
    return np.repeat(np.repeat(small, block, 0), block, 1)[: grid.width, : grid.width].astype(np.float64)


def water(grid: TextureGrid) -> Floats:
    """Wavy lines."""
    along, across = grid.rotated()
    bend = smooth_wave(across * uniform(grid.rng, 1, 3)) * uniform(grid.rng, 0.03, 0.08)
    return smooth_wave((along + bend) * uniform(grid.rng, 3, 8)) * 0.5 + 0.5


BACKGROUNDS: dict[str, Texture] = {
    texture.__name__: texture for texture in (gradient, clouds, sand, planks, tiles, blobs, speckle, water)
}
"""Background textures by name."""


def background(rng: Generator, size: int) -> tuple[str, NDArray[np.float64]]:
    """Random background in two muted tones: its name and its colours, shape (3, size, size)."""
    name = list(BACKGROUNDS)[uniform_int(rng, 0, len(BACKGROUNDS) - 1)]
    luma = uniform(rng, 0.36, 0.64)
    one = hue_to_rgb(rng.random(), uniform(rng, 0.04, 0.28), luma - uniform(rng, 0.03, 0.12))
    two = hue_to_rgb(rng.random(), uniform(rng, 0.04, 0.28), luma + uniform(rng, 0.03, 0.12))
    along = (np.arange(size) + 0.5) / size
    mix = BACKGROUNDS[name](TextureGrid(along[None, :], along[:, None], 1 / size, rng))
    return name, one[:, None, None] + mix * (two - one)[:, None, None]


# Tags: 4×4 cells of one bit each. Any two differ in at least seven cells, and each quarter has both tones, so that a
# patch of the size of a quarter never shows a uniform square.
_TAG_CODES = (0x2E79, 0xF1C2, 0x0B6E, 0xC555, 0x523D, 0x63A7, 0x1DB1, 0x7C2A, 0xC99B, 0x948F, 0x5ED4, 0xC7A8)
_TAG_TONES = np.array([[0.10, 0.11, 0.28], [0.98, 0.86, 0.30]])


def tag_pattern(label: int, cell: int) -> Floats:
    """Tag of a class: a square of 4×4 cells in two fixed tones.

    Returns:
        Colours from 0 to 1, shape (3, 4 * cell, 4 * cell).

    Example:
        >>> tag_pattern(3, 4).shape
        (3, 16, 16)
    """
    bits = np.array([_TAG_CODES[label] >> k & 1 for k in range(16)]).reshape(4, 4)
    colours: Floats = np.moveaxis(_TAG_TONES[np.repeat(np.repeat(bits, cell, 0), cell, 1)], 2, 0)
    return colours
