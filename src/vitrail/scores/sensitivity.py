"""Does a map stay the same when the picture hardly changes?

Noise too small to change the answer is added to a picture and the map made again. With Φ the map, x the picture and δ
the noise, the change is ‖Φ(x + δ) − Φ(x)‖ over ‖Φ(x)‖ or over ‖x‖; the two cannot be compared, so the result's name
says which. The ratio is the relative change of the map over the relative change of the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError

#: Radius of the noise in normalised space: well below what changes an answer. Quantus takes 0.2.
RADIUS = 0.02


def noises(images: Tensor, radius: float, samples: int, seed: int = 0) -> Iterator[Tensor]:
    """Noise drawn evenly from [−radius, radius], one picture a sample, shape (1, channels, height, width).

    Every image gets the same draws, so that no value depends on which images share a batch.

    Example:
        >>> [bool(noise.abs().max() <= 0.1) for noise in noises(torch.zeros(2, 3, 4, 4), 0.1, 2)]
        [True, True]
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        drawn = torch.rand(1, *images.shape[1:], generator=generator)
        yield ((2 * drawn - 1) * radius).to(images)


def sensitivity(
    explain: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    radius: float = RADIUS,
    samples: int = 10,
    seed: int = 0,
    over: Literal["map", "input"] = "map",
    predict: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """How much maps change under small noise.

    Args:
        explain: From images to maps, shape (B, height, width); the class must be fixed.
        images: As the model takes them, shape (B, channels, height, width).
        radius: Of the noise, in the space of the images.
        samples: How many draws.
        seed: Of the draws.
        over: What a change is measured against: the size of the map, or of the input.
        predict: From images to classes, shape (B,); where it is given, draws that change an image's class do not count
            for that image.

    Returns:
        Of each image, shape (B,): ``max_…`` and ``mean_…`` change, ``ratio`` (the largest), and the ``samples`` that
        count; NaN where none does.

    Example:
        >>> images = torch.ones(1, 1, 2, 2)
        >>> found = sensitivity(lambda x: 2 * x[:, 0], images, radius=0.1, samples=3)
        >>> sorted(found), round(found["ratio"].item(), 4), found["samples"].item()
        (['max_over_map', 'mean_over_map', 'ratio', 'samples'], 1.0, 3.0)
    """
    if over not in ("map", "input"):
        raise OptionError(f"over={over!r} must be map or input")
    if samples < 1 or radius <= 0:
        raise OptionError(f"samples={samples} and radius={radius} must be above zero")
    before = explain(images).double()
    if len(before) != len(images):
        raise InputError(f"{len(images)} images gave {len(before)} maps")
    answer = None if predict is None else predict(images)
    size, weight = _norm(before), _norm(images)
    changes, ratios, counted = [], [], []
    for noise in noises(images, radius, samples, seed):
        noisy = images + noise
        change = _norm(explain(noisy).double() - before)
        changes.append(change / (size if over == "map" else weight))
        ratios.append((change / size) / (_norm(noise) / weight))
        same = torch.ones(len(images), dtype=torch.bool, device=change.device)
        counted.append(same if answer is None or predict is None else (predict(noisy) == answer).to(change.device))
    change, ratio, kept = torch.stack(changes), torch.stack(ratios), torch.stack(counted)
    return {
        f"max_over_{over}": _highest(change, kept),
        f"mean_over_{over}": torch.where(kept, change, 0).sum(0) / kept.sum(0),
        "ratio": _highest(ratio, kept),
        "samples": kept.sum(0).double(),
    }


def _norm(values: Tensor) -> Tensor:
    return values.flatten(1).double().square().sum(1).sqrt()


def _highest(values: Tensor, kept: Tensor) -> Tensor:
    top = torch.where(kept, values, -torch.inf).amax(0)
    return torch.where(kept.any(0), top, torch.nan)
