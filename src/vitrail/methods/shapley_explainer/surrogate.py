"""The surrogate: a copy of the model, fine-tuned to predict from some of the patches what the model predicts from all.

A model was trained on whole images, so its predictions on parts of them are arbitrary. The surrogate's prediction on a
coalition approximates the model's expected prediction given these patches, and is the value of the coalition.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ModelError
from vitrail.methods.shapley_explainer.partial_images import PartialImages, split_patches, uniform_sizes


def trainable_copy(model: nn.Module) -> nn.Module:
    """Copy a model in single precision and evaluation mode, with all floating-point parameters trainable."""
    try:
        copy = deepcopy(model).float().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ModelError(
            f"{type(model).__name__} cannot be copied ({str(error).splitlines()[0]}): use a model with plain weights"
        ) from error
    for parameter in copy.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return copy


def surrogate_loss(
    partial: PartialImages,
    model: nn.Module,
    surrogate: nn.Module,
    images: Tensor,
    groups: int,
    generator: torch.Generator,
) -> Tensor:
    """Mean KL divergence of the surrogate's predictions on random coalitions from the model's on whole images.

    Coalition sizes are uniform on 0 … S. Images are split into groups of one size, so that batches have no padding.
    """
    expected = partial.probabilities(model, images)
    sizes = uniform_sizes(partial.players, min(groups, len(images)), generator)
    losses = []
    for rows, size in zip(torch.arange(len(images), device=images.device).tensor_split(len(sizes)), sizes, strict=True):
        keep, _ = split_patches(len(rows), partial.players, size, generator)
        predicted = partial.logits(surrogate, images[rows], keep).float().log_softmax(-1)
        losses.append(F.kl_div(predicted, expected[rows], reduction="sum"))
    return torch.stack(losses).sum() / len(images)
