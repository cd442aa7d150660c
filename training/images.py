"""Batches of images: normalisation, random erasing, label smoothing, and predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.runtime import autocast


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise uint8 images (b, h, w, 3) or values in [0, 1] (b, 3, h, w); returns (b, 3, h, w)."""
    if images.dtype == torch.uint8:
        images = images.permute(0, 3, 1, 2).contiguous().float() / 255
    # Python numbers, because a captured CUDA graph cannot copy a tensor of them to the GPU.
    return torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(3)], 1)


def reflect(index: Tensor, size: int) -> Tensor:
    """Mirror indices outside ``0 … size - 1`` at the borders, as reflection padding does."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)


def box_mask(top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int) -> Tensor:
    """Mask of one box per image; arguments of shape (b,), result (b, 1, size, size)."""
    line = torch.arange(size, device=top.device)
    rows = (line >= top[:, None]) & (line < (top + height)[:, None])
    columns = (line >= left[:, None]) & (line < (left + width)[:, None])
    return rows[:, None, :, None] & columns[:, None, None, :]


def random_erase(images: Tensor, probability: float, area: tuple[float, float], fill: Tensor) -> Tensor:
    """Replace a random box of each image by ``fill``.

    Args:
        images: Shape (b, 3, size, size).
        probability: Probability for each image.
        area: Range of the box's fraction of the image; its aspect ratio is from 0.3 to 3.3.
        fill: Values that replace the box.
    """
    b, size, device = images.shape[0], images.shape[-1], images.device
    fraction = torch.empty(b, device=device).uniform_(*area)
    aspect = torch.empty(b, device=device).uniform_(-1.2, 1.2).exp()
    height = ((fraction * aspect).sqrt() * size).round().clamp(1, size)
    width = ((fraction / aspect).sqrt() * size).round().clamp(1, size)
    top = (torch.rand(b, device=device) * (size - height + 1)).floor()
    left = (torch.rand(b, device=device) * (size - width + 1)).floor()
    erased = box_mask(top, left, height, width, size) & (torch.rand(b, device=device) < probability).view(-1, 1, 1, 1)
    return torch.where(erased, fill, images)


def smooth_labels(targets: Tensor, amount: float) -> Tensor:
    """Label smoothing of target distributions, shape (b, classes)."""
    return targets * (1 - amount) + amount / targets.shape[1]


@torch.no_grad()
def predict(
    model: nn.Module, images: Tensor, mean: Sequence[float], std: Sequence[float], device: torch.device, fast: bool
) -> Tensor:
    """Logits of uint8 images, shape (n, classes), in float32; ``fast`` uses bfloat16 on a GPU."""
    logits = []
    for part in torch.split(images, 1000):
        with autocast(device, enabled=fast):
            logits.append(model(normalise(part.to(device), mean, std)).float())
    return torch.cat(logits)
