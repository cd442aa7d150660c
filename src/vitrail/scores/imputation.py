"""Noisy linear imputation: replace removed pixels by a smooth interpolation of the pixels that are left."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError

#: Weight of a direct and of a diagonal neighbour; the eight weights sum to one.
DIRECT, DIAGONAL = 1 / 6, 1 / 12
TOLERANCE = 1e-5
MAX_ITERATIONS = 2000


def impute(
    images: Tensor,
    removed: Tensor,
    noise: float = 0.01,
    generator: torch.Generator | None = None,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Replace removed pixels by the weighted mean of their eight neighbours, plus Gaussian noise.

    Removed pixels that are neighbours depend on each other, so all values of an image solve one linear system. Outside
    of the image there are no neighbours, and the weights of the others are scaled to sum to one. The matrix of the
    system is symmetric and positive definite; it is solved by conjugate gradients for all images of the batch at once.

    Args:
        images: Shape (N, channels, height, width).
        removed: Pixels to replace, shape (N, height, width), bool.
        noise: Standard deviation of the noise, in units of the images.
        generator: Generator of the noise on the CPU; a new one with seed 0 by default.
        tolerance: Largest residual of the system at which the solver stops, in units of the images.

    Returns:
        Images of the same shape; pixels that are not removed are unchanged. An image without a pixel left becomes the
        mean of its channels.

    Example:
        >>> images = torch.tensor([[[[0.0, 9.0, 3.0]]]])
        >>> impute(images, torch.tensor([[[False, True, False]]]), noise=0).round(decimals=4)
        tensor([[[[0.0000, 1.5000, 3.0000]]]])
    """
    if images.dim() != 4 or removed.shape != (len(images), *images.shape[2:]):
        raise InputError(
            "expected images of shape (N, channels, height, width) and removed pixels of shape (N, height, width), got "
            f"{tuple(images.shape)} and {tuple(removed.shape)}"
        )
    hidden = removed[:, None]
    wide = images if images.dtype == torch.float64 else images.float()
    mean = wide.mean((2, 3), keepdim=True)
    nothing_left = hidden.all(2, keepdim=True).all(3, keepdim=True)
    solution = torch.where(
        nothing_left, mean.expand_as(wide), _solve(wide - mean, hidden & ~nothing_left, tolerance) + mean
    )
    if noise:
        own = generator or torch.Generator().manual_seed(0)
        solution = solution + noise * torch.randn(wide.shape, generator=own, dtype=wide.dtype).to(wide.device)
    return torch.where(hidden, solution.to(images.dtype), images)


def _solve(images: Tensor, hidden: Tensor, tolerance: float) -> Tensor:
    """Solve D·u − W·u = W·x at hidden pixels, where W sums up the weighted neighbours and D = W·1."""
    degree = _neighbours(torch.ones_like(images[:1, :1]))
    free = hidden.to(images.dtype)

    def system(u: Tensor) -> Tensor:
        return free * (degree * u - _neighbours(u))

    u = torch.zeros_like(images)
    residual = free * _neighbours(images * (1 - free))
    direction = residual / degree
    energy = _dot(residual, direction)
    # A solved image stays as it is while others are solved: its steps would be ratios of rounding errors.
    least = torch.finfo(images.dtype).tiny
    unsolved = _largest(residual) >= tolerance
    for step in range(MAX_ITERATIONS):
        moved = system(direction)
        curvature = _dot(direction, moved)
        length = unsolved * energy / curvature.where(curvature > 0, 1.0)
        u = u + length * direction
        residual = residual - length * moved
        unsolved = unsolved & (_largest(residual) >= tolerance)
        # Asking whether all are solved waits for a GPU, so it is asked from time to time.
        if step % 16 == 15 and not bool(unsolved.any()):
            break
        scaled = residual / degree
        before, energy = energy, _dot(residual, scaled)
        unsolved = unsolved & (energy > least)
        direction = scaled + energy / before.where(before > least, 1.0) * direction
    else:
        if bool(unsolved.any()):
            warnings.warn(
                f"imputed pixels of {int(unsolved.sum())} images are not exact: after {MAX_ITERATIONS} iterations the "
                f"residual is {float(_largest(residual).max()):.2g}, above the tolerance of {tolerance:.2g}; pass a "
                "larger tolerance= or images in double precision",
                RuntimeWarning,
                stacklevel=3,
            )
    return u


def _neighbours(images: Tensor) -> Tensor:
    """Sum of the eight neighbours of each pixel with their weights; zero outside of the image.

    Sums of shifted images, since a GPU may round the products of a convolution to 11 bits.
    """
    height, width = images.shape[2:]
    wide = F.pad(images, (1, 1, 1, 1))
    beside = wide[:, :, :, :width] + wide[:, :, :, 2:]  # to the left and to the right, in all rows
    middle = wide[:, :, :, 1 : 1 + width]
    rows = DIRECT * middle + DIAGONAL * beside
    return rows[:, :, :height] + rows[:, :, 2:] + DIRECT * beside[:, :, 1 : 1 + height]


def _largest(values: Tensor) -> Tensor:
    return values.abs().amax((2, 3), keepdim=True)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((2, 3), keepdim=True)
