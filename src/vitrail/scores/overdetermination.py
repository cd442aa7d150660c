"""Causal overdetermination: whether almost every mask of an image leaves enough to recognise the class.

ViT-CX scores each mask of an image by its causal impact, the probability of the class when only what the mask shows is
left. An image whose impacts have a mean μ close to 1 and a small variance is overdetermined: many small parts of it
suffice for the prediction, and a sum of masks weighted by their impact mostly shows how often the masks cover a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.statistics import SampleScores

THRESHOLD = 0.9
"""Mean impact above which an image counts as overdetermined."""


def score_overdetermination(impacts: list[Tensor]) -> dict[str, Tensor]:
    """Compute mean and variance of the causal impacts of each image's masks.

    Args:
        impacts: For each image, the impact of each of its masks, shape (masks,), such as the first row of each entry of
            ``explanation.intermediates["impact"][0]`` of `vit_cx` with ``keep=True``.

    Returns:
        For each image, float64: ``mean`` of the impacts (μ), their ``variance`` (the mean of β²), and the number of
        ``masks``.

    Example:
        >>> score_overdetermination([torch.tensor([0.9, 1.0]), torch.tensor([0.2, 0.4])])["mean"]
        tensor([0.9500, 0.3000], dtype=torch.float64)
    """
    empty = [i for i, values in enumerate(impacts) if values.dim() != 1 or not len(values)]
    if empty:
        shape = tuple(impacts[empty[0]].shape)
        raise InputError(f"the impacts of image {empty[0]} have shape {shape}; expected (masks,), at least one mask")
    rows = [values.double().cpu() for values in impacts]
    return {
        "mean": torch.stack([values.mean() for values in rows]),
        "variance": torch.stack([values.var(unbiased=False) for values in rows]),
        "masks": torch.tensor([float(len(values)) for values in rows], dtype=torch.float64),
    }


@dataclass
class OverdeterminationScores(SampleScores):
    """Accumulates the results of `score_overdetermination`.

    Example:
        >>> scores = OverdeterminationScores()
        >>> scores.add(["a", "b"], score_overdetermination([torch.tensor([0.9, 1.0]), torch.tensor([0.2, 0.4])]))
        >>> summary = scores.summary()
        >>> summary["images"], summary["share"], round(summary["variance"], 4), summary["masks"]
        (2, 0.5, 0.0025, 2.0)
    """

    def summary(self) -> dict[str, Any]:
        """Summarise the data set.

        Returns:
            Number of ``images``; ``share`` of overdetermined images, those with a mean above ``THRESHOLD``; mean of the
            ``variance`` over these, NaN without any; mean over all images of the ``mean`` and of the number of
            ``masks``, with its standard deviation ``masks_std``.
        """
        mean, masks = self.column("mean"), self.column("masks")
        over = mean > THRESHOLD
        return {
            "images": len(self),
            "share": float(over.mean()),
            "variance": float(self.column("variance")[over].mean()) if over.any() else float("nan"),
            "mean": float(mean.mean()),
            "masks": float(masks.mean()),
            "masks_std": float(masks.std()),
        }
