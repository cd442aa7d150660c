"""Smoothing: the mean relevance over changed copies of each image, for any method on images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.errors import InputError, NotApplicableError, OptionError

FLIPS, NOISE = "flips", "noise"
KINDS = (FLIPS, NOISE)
#: Factors on the model's input for "flips", each with and without a horizontal flip.
FACTORS = (1.0, 0.9, 1.1)
SAMPLES, SIGMA = 16, 0.15


@dataclass(frozen=True)
class Smoothing:
    """How the maps of a call are smoothed.

    Attributes:
        kind: "flips": each image and its mirror image, times 0.9, 1 and 1.1. "noise": noisy copies of each image.
        samples: Number of noisy copies.
        noise: Standard deviation of the noise, as a share of the image's range of values.
        seed: Of the noise, which is the same for every image.

    Example:
        >>> Smoothing("flips").copies, Smoothing("noise", samples=4).copies
        (6, 4)
    """

    kind: str
    samples: int = SAMPLES
    noise: float = SIGMA
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"smooth={self.kind!r} is not one of {', '.join(map(repr, KINDS))} or None")
        for name, value, least in (("smooth_samples", self.samples, 1), ("smooth_seed", self.seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r} must be an integer of at least {least}")
        if isinstance(self.noise, bool) or not isinstance(self.noise, int | float) or not self.noise >= 0:
            raise OptionError(f"smooth_noise={self.noise!r} is a standard deviation: it must be a number, at least 0")

    @property
    def copies(self) -> int:
        """Copies of each image."""
        return 2 * len(FACTORS) if self.kind == FLIPS else self.samples

    def settings(self) -> dict[str, str | int | float]:
        """What determines the maps, as arguments of `vitrail.explain`."""
        if self.kind == FLIPS:
            return {"smooth": FLIPS}
        noise = {"smooth_samples": self.samples, "smooth_noise": self.noise, "smooth_seed": self.seed}
        return {"smooth": NOISE, **noise}


class ImageCopy(NamedTuple):
    """One way to change images, and how to bring relevance back to the place of the original.

    Attributes:
        change: From images, shape (b, channels, height, width), to changed ones.
        restore: From the relevance of changed images, shape (b, K, rows, columns), to that of the originals.
    """

    change: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]


def image_copies(smoothing: Smoothing, images: Tensor, layout: Layout) -> Iterator[ImageCopy]:
    """The changes to average over.

    Raises:
        NotApplicableError: The patches reach beyond the image, so that a mirror image is cut into other patches.
    """
    if smoothing.kind == NOISE:
        yield from _noisy(smoothing, images)
        return
    mirror = Mirror.of(images, layout)
    for factor in FACTORS:
        yield ImageCopy(_times(factor), _unchanged)
    for factor in FACTORS:
        yield ImageCopy(_mirrored_times(mirror, factor), mirror.relevance)


def _noisy(smoothing: Smoothing, images: Tensor) -> Iterator[ImageCopy]:
    generator = torch.Generator().manual_seed(smoothing.seed)
    for _ in range(smoothing.samples):
        yield ImageCopy(_plus(torch.randn(images.shape[1:], generator=generator), smoothing.noise), _unchanged)


def _plus(noise: Tensor, share: float) -> Callable[[Tensor], Tensor]:
    def change(images: Tensor) -> Tensor:
        spread = share * (images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True))
        return images + spread * noise.to(images)

    return change


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda images: images * factor


def _mirrored_times(mirror: Mirror, factor: float) -> Callable[[Tensor], Tensor]:
    return lambda images: mirror.pixels(images) * factor


def _unchanged(relevance: Tensor) -> Tensor:
    return relevance


@dataclass(frozen=True)
class Mirror:
    """A horizontal flip of the columns that patches cover; columns beside them, which the model drops, stay.

    So each patch of the mirror image holds the mirrored pixels of one patch of the image.

    Attributes:
        size: Height and width of the images.
        columns: First column that is mirrored, and the one after the last.
        grid: Rows and columns of the patches, or None.
    """

    size: tuple[int, int]
    columns: tuple[int, int]
    grid: tuple[int, int] | None

    @classmethod
    def of(cls, images: Tensor, layout: Layout) -> Mirror:
        """The flip for images of a size and a layout of patches."""
        height, width = int(images.shape[2]), int(images.shape[3])
        area = layout.area
        if area is None:
            return cls((height, width), (0, width), layout.plane)
        left, right = area.start[-1], area.start[-1] + area.size[-1]
        if left < 0 or right > width:
            raise NotApplicableError(
                f"smooth='flips' does not apply: the model pads its {height}×{width} images to whole patches, so a "
                "mirror image is cut into other patches; use images whose width is a multiple of the patch size, or "
                "smooth='noise'"
            )
        return cls((height, width), (left, right), layout.plane)

    def pixels(self, images: Tensor) -> Tensor:
        """Mirror images, or maps at their resolution."""
        first, last = self.columns
        return torch.cat([images[..., :first], images[..., first:last].flip(-1), images[..., last:]], -1)

    def relevance(self, grid: Tensor) -> Tensor:
        """Mirror relevance on the patches, on the pixels, or on a coarser grid of the whole image."""
        shape = tuple(grid.shape[-2:])
        if shape == self.size and shape != self.grid:
            return self.pixels(grid)
        if shape != self.grid and self.columns != (0, self.size[1]):
            raise NotApplicableError(
                f"smooth='flips' does not apply: the method's {shape[0]}×{shape[1]} grid covers more of the image than "
                "the patches do; use images whose width is a multiple of the patch size, or smooth='noise'"
            )
        return grid.flip(-1)


def images_to_smooth(model_inputs: ModelInputs) -> Tensor:
    """The images of a call."""
    images = model_inputs.image
    if images is None:
        raise InputError(
            "smooth= needs images of shape (batch, channels, height, width): a text cannot be mirrored, and noise on "
            "the numbers of its tokens would make other words of them"
        )
    return images


def copy_batches(batch: int, copies: Sequence[ImageCopy], size: int | None) -> Iterator[list[tuple[int, slice]]]:
    """Which copies of which images are explained together: one copy of all images, or ``size`` images at a time.

    Example:
        >>> twice = [ImageCopy(torch.Tensor.clone, torch.Tensor.clone)] * 2
        >>> list(copy_batches(3, twice, 4))
        [[(0, slice(0, 3, None)), (1, slice(0, 1, None))], [(1, slice(1, 3, None))]]
    """
    room = size or batch
    group: list[tuple[int, slice]] = []
    free = room
    for copy in range(len(copies)):
        start = 0
        while start < batch:
            stop = min(batch, start + free)
            group.append((copy, slice(start, stop)))
            free -= stop - start
            start = stop
            if not free:
                yield group
                group, free = [], room
    if group:
        yield group
