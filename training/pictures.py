"""Pictures as batches: normalising, erasing, and predictions on bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (b, h, w, 3) or values in [0, 1] (b, 3, h, w) to what a model takes, (b, 3, h, w)."""
    if images.dtype == torch.uint8:
        images = images.permute(0, 3, 1, 2).contiguous().float() / 255
    # Plain numbers: a tensor made of them would have to be copied to the GPU, which a captured step cannot do.
    return torch.stack([(images[:, c] - mean[c]) / std[c] for c in range(3)], 1)


def reflect(index: Tensor, size: int) -> Tensor:
    """Indices outside ``0 … size - 1`` mirrored at the first and the last, as in padding by reflection."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)


def box_mask(top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int) -> Tensor:
    """True inside one box per sample; takes shapes (b,), gives (b, 1, size, size)."""
    line = torch.arange(size, device=top.device)
    rows = (line >= top[:, None]) & (line < (top + height)[:, None])
    columns = (line >= left[:, None]) & (line < (left + width)[:, None])
    return rows[:, None, :, None] & columns[:, None, None, :]


def erase(images: Tensor, probability: float, area: tuple[float, float], fill: Tensor) -> Tensor:
    """Random erasing: a box of a share of the picture in ``area``, aspect 0.3 to 3.3, replaced by ``fill``."""
    b, size, device = images.shape[0], images.shape[-1], images.device
    share = torch.empty(b, device=device).uniform_(*area)
    aspect = torch.empty(b, device=device).uniform_(-1.2, 1.2).exp()
    height = ((share * aspect).sqrt() * size).round().clamp(1, size)
    width = ((share / aspect).sqrt() * size).round().clamp(1, size)
    top = (torch.rand(b, device=device) * (size - height + 1)).floor()
    left = (torch.rand(b, device=device) * (size - width + 1)).floor()
    hit = box_mask(top, left, height, width, size) & (torch.rand(b, device=device) < probability).view(-1, 1, 1, 1)
    return torch.where(hit, fill, images)


def smooth(targets: Tensor, amount: float) -> Tensor:
    """Give a share of each target to all classes alike."""
    return targets * (1 - amount) + amount / targets.shape[1]


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, about: Mapping[str, Any], device: torch.device, fast: bool) -> Tensor:
    """Logits of byte pictures, shape (n, classes); ``fast`` uses bfloat16 on a GPU, otherwise all is float32."""
    logits = []
    for part in torch.split(images, 1000):
        with torch.autocast(device.type, torch.bfloat16, enabled=fast and device.type == "cuda"):
            logits.append(model(normalise(part.to(device), about["mean"], about["std"])).float())
    return torch.cat(logits)
