"""Similarity of the masks of an image, for transformers and convolutional networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import ModelError, NotApplicableError, OptionError
from vitrail.methods._masks import similarity, stretched
from vitrail.models import LoadedModel, describe, load
from vitrail.models.preprocess import Preprocess
from vitrail.tools.figures.prepare import probe_without_target
from vitrail.viz.colormap import Array

#: Masks that are enlarged at a time.
PIECE = 256


def pairwise_cosines(features: Tensor, size: tuple[int, int]) -> Array:
    """Cosines between all pairs of masks made from feature maps.

    Args:
        features: Feature maps of one image, shape (channels, rows, columns); constant ones are left out.
        size: Height and width of the masks.

    Returns:
        One value per pair, shape (pairs,).

    Example:
        >>> features = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 2.0]]])
        >>> pairwise_cosines(features, (2, 4)).round(2).tolist()
        [0.23, 1.0, 0.23]
    """
    masks = stretched(features, size, lambda count: (slice(i, i + PIECE) for i in range(0, count, PIECE)))
    cosines = similarity(masks)
    first, second = torch.triu_indices(len(cosines), len(cosines), 1)
    if not len(first):
        raise NotApplicableError("an image has fewer than two feature maps that are not constant: no pairs to compare")
    pairs: Array = cosines[first, second].cpu().numpy()
    return pairs


def feature_maps(loaded: LoadedModel, image: Tensor, kind: str) -> Tensor:
    """Feature maps of one image, shape (channels, rows, columns).

    Args:
        loaded: The model; one without attention gives the output of its last layer on a grid, as Grad-CAM uses it.
        image: Model input, shape (1, 3, height, width).
        kind: Features of a transformer, as for ``Probe.features``.
    """
    structure = read_structure(unwrap(loaded.module), ModelInputs((image,)))
    if structure.kind == "none":
        return convolutional_features(unwrap(loaded.module), image)[0]
    return probe_without_target(loaded, image).features(kind, stage=-2)[0]


def convolutional_features(model: nn.Module, images: Tensor) -> Tensor:
    """Output of the last layer whose output is on a grid of more than one cell, shape (b, channels, rows, columns)."""
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and min(output.shape[2:]) > 1:
            outputs[:] = [output]

    handles = [module.register_forward_hook(keep) for module in model.modules()]
    try:
        with frozen(model), torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    if not outputs:
        raise NotApplicableError(
            f"{type(model).__name__} has no feature maps: no layer has an output of shape (b, channels, rows, columns)"
        )
    return outputs[0]


def load_compared(model: str | nn.Module | LoadedModel, weights: str | Path | None) -> LoadedModel:
    """Load the second model of a comparison by name, with the library's weights or a file; describe a model object."""
    if not isinstance(model, str):
        if weights is not None:
            raise OptionError("compare_weights= goes with the name of a model in compare=, got a model object")
        return describe(model)
    return load(model, weights=weights)


def convert_images(images: Tensor, loaded: LoadedModel, other: LoadedModel) -> Tensor:
    """Convert the input of one model to that of another: undo the normalisation, resize, normalise."""
    first, second = loaded.preprocess, other.preprocess
    if not (isinstance(first, Preprocess) and isinstance(second, Preprocess)):
        unknown = loaded if not isinstance(first, Preprocess) else other
        raise ModelError(
            f"the preprocessing of {unknown.name or 'a model'} is unknown, so that images cannot be converted: pass "
            "LoadedModel(model, vitrail.Preprocess(size, mean, std))"
        )

    def channels(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, device=images.device).view(1, -1, 1, 1)

    pixels = (images.float() * channels(first.std) + channels(first.mean)).clamp(0, 1)
    if pixels.shape[2:] != torch.Size(second.size):
        pixels = F.interpolate(pixels, second.size, mode="bilinear", antialias=True)
    return (pixels - channels(second.mean)) / channels(second.std)
