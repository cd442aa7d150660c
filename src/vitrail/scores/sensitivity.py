"""Sensitivity: how much a map changes under small noise on the image.

With Φ the map, x the image and δ noise too small to change the prediction, the change is ‖Φ(x + δ) − Φ(x)‖ divided by
‖Φ(x)‖ or by ‖x‖. The two cannot be compared, so the score is named after the divisor. The ratio is the relative change
of the map divided by the relative change of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError

#: Radius of the noise in normalised space, small enough to change few predictions. Quantus uses 0.2.
RADIUS = 0.02


def noise_samples(images: Tensor, radius: float, samples: int, seed: int = 0) -> Iterator[Tensor]:
    """Draw uniform noise from [−radius, radius], shape (1, channels, height, width) per sample.

    All images share the draws, so that no value depends on the composition of a batch.

    Example:
        >>> [bool(noise.abs().max() <= 0.1) for noise in noise_samples(torch.zeros(2, 3, 4, 4), 0.1, 2)]
        [True, True]
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        drawn = torch.rand(1, *images.shape[1:], generator=generator)
        yield ((2 * drawn - 1) * radius).to(images)


def score_sensitivity(
    explain: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    radius: float = RADIUS,
    samples: int = 10,
    seed: int = 0,
    over: Literal["map", "input"] = "map",
    predict: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Measure how much maps change under small noise.

    Args:
        explain: From images to maps of a fixed class, shape (B, height, width).
        images: Normalised for the model, shape (B, channels, height, width).
        radius: Largest noise value, in the space of the images.
        samples: Number of noise draws.
        seed: Seed of the draws.
        over: What a change is divided by: the norm of the "map" or of the "input".
        predict: From images to classes, shape (B,). If given, a draw that changes the class of an image does not count
            for it.

    Returns:
        For each image, shape (B,): largest change ``max_over_…``, mean change ``mean_over_…``, largest ``ratio``, and
        the number of ``samples`` that count; NaN where none does.

    Example:
        >>> images = torch.ones(1, 1, 2, 2)
        >>> found = score_sensitivity(lambda x: 2 * x[:, 0], images, radius=0.1, samples=3)
        >>> sorted(found), round(found["ratio"].item(), 4), found["samples"].item()
        (['max_over_map', 'mean_over_map', 'ratio', 'samples'], 1.0, 3.0)
    """
    if over not in ("map", "input"):
        raise OptionError(f"over={over!r} must be 'map' or 'input'")
    if samples < 1 or radius <= 0:
        raise OptionError(f"samples={samples} must be at least 1 and radius={radius} above 0")
    before = explain(images).double()
    if len(before) != len(images):
        raise InputError(f"explain must return one map per image, got {len(before)} maps for {len(images)} images")
    predicted = None if predict is None else predict(images)
    map_norm, image_norm = _norm(before), _norm(images)
    changes, ratios, counted = [], [], []
    for noise in noise_samples(images, radius, samples, seed):
        noisy = images + noise
        change = _norm(explain(noisy).double() - before)
        changes.append(change / (map_norm if over == "map" else image_norm))
        ratios.append((change / map_norm) / (_norm(noise) / image_norm))
        if predicted is None or predict is None:
            counted.append(torch.ones(len(images), dtype=torch.bool, device=change.device))
        else:
            counted.append((predict(noisy) == predicted).to(change.device))
    change, ratio, counts = torch.stack(changes), torch.stack(ratios), torch.stack(counted)
    return {
        f"max_over_{over}": _masked_max(change, counts),
        f"mean_over_{over}": torch.where(counts, change, 0).sum(0) / counts.sum(0),
        "ratio": _masked_max(ratio, counts),
        "samples": counts.sum(0).double(),
    }


def _norm(values: Tensor) -> Tensor:
    return values.flatten(1).double().square().sum(1).sqrt()


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    top = torch.where(mask, values, -torch.inf).amax(0)
    return torch.where(mask.any(0), top, torch.nan)
