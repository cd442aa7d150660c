"""Fills: the values that replace removed pixels.

A fill gives an image of the shape of the inputs, in the normalised space the model reads. Removed pixels take the
values of the fill image. "Zero" has two meanings in papers: before normalisation it is black, after it the mean colour
of the training set. Scores under the two fills cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, OptionError

#: Radius of the Gaussian filter of RISE's code, in standard deviations (``truncate`` in SciPy).
_TRUNCATE = 4.0


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, for pixel values in [0, 1]; empty if unknown."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def colour(self, value: float, like: Tensor) -> Tensor:
        """Normalise a grey value of [0, 1], shape (1, channels, 1, 1).

        Example:
            >>> Normalisation((0.5,), (0.25,)).colour(0.0, torch.zeros(1, 1, 2, 2)).item()
            -2.0
        """
        if not self.mean:
            raise InputError("this fill needs the normalisation of the images, which is unknown: pass preprocess=")
        if len(self.mean) != like.shape[1]:
            raise InputError(
                f"the normalisation has {len(self.mean)} channels, the images have {like.shape[1]}: pass preprocess="
            )
        colour = [(value - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        return torch.tensor(colour, dtype=torch.float64).to(like).view(1, -1, 1, 1)


@dataclass(frozen=True)
class Fill:
    """A fill.

    Attributes:
        name: Key in records and labels.
        title: Description for tables.
        function: From the images, their normalisation and a seed to a fill image that broadcasts over the images.
        shared: Whether the fill image is the same for all inputs. An input without any pixel left is then one image
            for the whole data set.
    """

    name: str
    title: str
    function: Callable[[Tensor, Normalisation, int], Tensor]
    shared: bool = True

    def fill_image(self, images: Tensor, normalisation: Normalisation, seed: int = 0) -> Tensor:
        """Compute the fill image, in a shape that broadcasts over the images.

        Example:
            >>> images = torch.ones(2, 3, 4, 4)
            >>> half = Normalisation((0.5,) * 3, (0.5,) * 3)
            >>> [FILLS[name].fill_image(images, half)[0, 0, 0, 0].item() for name in ("black", "mean")]
            [-1.0, 0.0]
        """
        return self.function(images, normalisation, seed)


def rise_kernel(size: int = 11, sigma: float = 5.0) -> Tensor:
    """Blur kernel of RISE's code, shape (size, size): a Gaussian-filtered delta on a square with reflecting borders.

    Weights beyond the square are reflected back, so the kernel is almost uniform; it differs from a sampled Gaussian.

    Example:
        >>> kernel = rise_kernel()
        >>> round(kernel.min().item(), 5), round(kernel.max().item(), 5)
        (0.00774, 0.00883)
    """
    radius = int(_TRUNCATE * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    weights /= weights.sum()
    # Reflection that repeats the border: the period is the square and its mirror image.
    index = (size // 2 + offsets) % (2 * size)
    index = torch.where(index < size, index, 2 * size - 1 - index)
    line = torch.zeros(size, dtype=torch.float64).index_add_(0, index, weights)
    return torch.outer(line, line)


def gaussian_kernel(size: int, sigma: float) -> Tensor:
    """Sampled Gaussian kernel that sums to one, shape (size, size).

    Example:
        >>> gaussian_kernel(3, 1e9).unique().numel()
        1
    """
    line = torch.exp(-0.5 * ((torch.arange(size).double() - size // 2) / sigma) ** 2)
    line /= line.sum()
    return torch.outer(line, line)


def blur(images: Tensor, kernel: Tensor, padding: str = "constant") -> Tensor:
    """Filter each channel of the images with a kernel; the shape is kept.

    Args:
        images: Shape (b, channels, height, width).
        kernel: Shape (size, size), of odd size.
        padding: "constant" for zeros (the mean colour) beyond the border, or "reflect".

    Example:
        >>> round(blur(torch.ones(1, 1, 5, 5), gaussian_kernel(3, 1.0))[0, 0, 2, 2].item(), 6)
        1.0
    """
    half = kernel.shape[0] // 2
    padded = F.pad(images.flatten(0, 1)[:, None].float(), (half,) * 4, mode=padding)
    return F.conv2d(padded, kernel.to(padded)[None, None]).view_as(images).to(images.dtype)


def _noise_image(images: Tensor, normalisation: Normalisation, seed: int) -> Tensor:
    """Uniform noise in [0, 1], the same for all images, so that no score depends on the composition of a batch."""
    noise = torch.rand(1, *images.shape[1:], generator=torch.Generator().manual_seed(seed)).to(images)
    black, white = normalisation.colour(0.0, images), normalisation.colour(1.0, images)
    return black + noise * (white - black)


FILLS: dict[str, Fill] = {
    fill.name: fill
    for fill in (
        Fill("black", "black: 0 before normalisation", lambda x, n, _: n.colour(0.0, x)),
        Fill("mean", "mean colour: 0 after normalisation", lambda x, _n, _s: x.new_zeros(1, x.shape[1], 1, 1)),
        Fill("grey", "grey: 127/255 before normalisation", lambda x, n, _: n.colour(127 / 255, x)),
        Fill("noise", "uniform noise in [0, 1], seeded, the same for all images", _noise_image),
        Fill(
            "blur", "the image blurred with RISE's 11×11 kernel", lambda x, _n, _s: blur(x, rise_kernel()),
            shared=False,
        ),
        Fill(
            "blur15", "the image blurred with a 15×15 Gaussian, σ = 5",
            lambda x, _n, _s: blur(x, gaussian_kernel(15, 5.0), "reflect"), shared=False,
        ),
    )
}  # fmt: skip

#: Key for dropping the tokens of removed patches instead of filling pixels; see `vitrail.capture.removal`.
TOKENS = "tokens"


def find_fill(name: str) -> Fill:
    """Look up a fill by name.

    Example:
        >>> find_fill("grey").shared
        True
    """
    if name not in FILLS:
        raise OptionError(f"unknown fill {name!r}: choose from {', '.join((*FILLS, TOKENS))}")
    return FILLS[name]
