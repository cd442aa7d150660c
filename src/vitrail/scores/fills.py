"""What stands where a pixel was removed.

A fill gives a canvas of the shape of the images, in the normalised space the model reads; removed pixels are taken from
the canvas, the others from the image. Papers that say "zero" mean different things by it: before normalisation it is
black, after it the mean colour of the training set. Scores under the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, OptionError

#: Of Gaussian-filtered pictures, how many deviations the filter of RISE's code reaches.
_REACH = 4.0


@dataclass(frozen=True)
class Normal:
    """The normalisation of the images: mean and deviation of each channel, over values in [0, 1]; empty if unknown."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def colour(self, value: float, like: Tensor) -> Tensor:
        """A grey of [0, 1] in normalised space, shape (1, channels, 1, 1).

        Example:
            >>> Normal((0.5,), (0.25,)).colour(0.0, torch.zeros(1, 1, 2, 2)).item()
            -2.0
        """
        if not self.mean:
            raise InputError("no colour can be filled in without the normalisation of the images: give preprocess=")
        if len(self.mean) != like.shape[1]:
            raise InputError(f"the normalisation has {len(self.mean)} channels, the images have {like.shape[1]}")
        wide = [(value - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        return torch.tensor(wide, dtype=torch.float64).to(like).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Fill:
    """One way to fill.

    Attributes:
        name: Its name in records and labels.
        title: What it is, for tables.
        paint: From the images, their normalisation and a seed to a canvas that broadcasts over the images.
        shared: Whether the canvas is the same for all images, so that an image without any pixel left is one image
            for the whole data set.
        seeded: Whether the seed matters.
    """

    name: str
    title: str
    paint: Callable[[Tensor, Normal, int], Tensor]
    shared: bool = True
    seeded: bool = False

    def canvas(self, images: Tensor, normal: Normal, seed: int = 0) -> Tensor:
        """The canvas, shape (b, channels, height, width).

        Example:
            >>> images = torch.ones(2, 3, 4, 4)
            >>> half = Normal((0.5,) * 3, (0.5,) * 3)
            >>> [FILLS[name].canvas(images, half)[0, 0, 0, 0].item() for name in ("black", "mean")]
            [-1.0, 0.0]
        """
        return self.paint(images, normal, seed).expand_as(images)


def rise_kernel(size: int = 11, sigma: float = 5.0) -> Tensor:
    """The blur of RISE's code, shape (size, size): a delta, Gaussian-filtered on a square that reflects at its borders.

    What would leave the square folds back, so that the weights are nearly even; a sampled Gaussian is another kernel.

    Example:
        >>> kernel = rise_kernel()
        >>> round(kernel.min().item(), 5), round(kernel.max().item(), 5)
        (0.00774, 0.00883)
    """
    reach = int(_REACH * sigma + 0.5)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    weights /= weights.sum()
    # Reflection with the border repeated: the square and its mirror image make one period.
    place = (size // 2 + offsets) % (2 * size)
    place = torch.where(place < size, place, 2 * size - 1 - place)
    line = torch.zeros(size, dtype=torch.float64).index_add_(0, place, weights)
    return torch.outer(line, line)


def gaussian_kernel(size: int, sigma: float) -> Tensor:
    """A sampled Gaussian that sums to one, shape (size, size).

    Example:
        >>> gaussian_kernel(3, 1e9).unique().numel()
        1
    """
    line = torch.exp(-0.5 * ((torch.arange(size).double() - size // 2) / sigma) ** 2)
    line /= line.sum()
    return torch.outer(line, line)


def blur(images: Tensor, kernel: Tensor, padding: str = "constant") -> Tensor:
    """Each channel of the images filtered, in the shape of the images.

    Args:
        images: Shape (b, channels, height, width).
        kernel: Shape (size, size), of odd size.
        padding: "constant" for zeros beyond the border, which is the mean colour, or "reflect".

    Example:
        >>> blur(torch.ones(1, 1, 5, 5), gaussian_kernel(3, 1.0))[0, 0, 2, 2].item()
        1.0
    """
    half = kernel.shape[0] // 2
    padded = F.pad(images.flatten(0, 1)[:, None].float(), (half,) * 4, mode=padding)
    return F.conv2d(padded, kernel.to(padded)[None, None]).view_as(images).to(images.dtype)


def _noise(images: Tensor, normal: Normal, seed: int) -> Tensor:
    """Colours drawn evenly from [0, 1], one picture for all, so that no score depends on what shares a batch."""
    drawn = torch.rand(1, *images.shape[1:], generator=torch.Generator().manual_seed(seed)).to(images)
    mean, unit = normal.colour(0.0, images), normal.colour(1.0, images)
    return mean + drawn * (unit - mean)


FILLS: dict[str, Fill] = {
    fill.name: fill
    for fill in (
        Fill("black", "black: 0 before normalisation", lambda x, n, _: n.colour(0.0, x)),
        Fill("mean", "mean colour: 0 after normalisation", lambda x, _n, _s: x.new_zeros(1, x.shape[1], 1, 1)),
        Fill("grey", "grey: 127/255 before normalisation", lambda x, n, _: n.colour(127 / 255, x)),
        Fill("noise", "seeded noise, even in [0, 1], one for all images", _noise, seeded=True),
        Fill("blur", "the image under RISE's 11×11 blur", lambda x, _n, _s: blur(x, rise_kernel()), shared=False),
        Fill(
            "blur15", "the image under a 15×15 Gaussian of deviation 5",
            lambda x, _n, _s: blur(x, gaussian_kernel(15, 5.0), "reflect"), shared=False,
        ),
    )
}  # fmt: skip

#: The name under which removed patches are left out instead of filled; see `vitrail.scores.tokens`.
TOKENS = "tokens"


def find_fill(name: str) -> Fill:
    """A fill by its name.

    Example:
        >>> find_fill("grey").shared
        True
    """
    if name not in FILLS:
        raise OptionError(f"unknown fill {name!r}: choose from {', '.join((*FILLS, TOKENS))}")
    return FILLS[name]
