"""How strongly the features of each token respond to images that are perturbed more towards one side.

A ramp of noise rises exponentially from one side of the image to the other. A token whose features see a part of the
image responds to the ramp that rises to the right, and to the one that rises to the left: the logarithm of the ratio
of both grows with the column of what it sees, by the same amount per column whatever else the token sees around it.
So few perturbed images place all tokens at once, also where features see most of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode
from vitrail.capture.features import FeatureMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.errors import InputError, ModelError

#: A ramp rises from exp(−STEEPNESS) · STRENGTH to STRENGTH.
STEEPNESS, STRENGTH = 6.0, 0.3
#: Share of noise in the image that the ramps perturb.
BASE = 0.6
#: Noise fields; each is used with four ramps.
DRAWS = 2
#: Images that are evaluated: the image with noise, and one for each noise field and ramp.
PASSES = 1 + 4 * DRAWS
#: Responses below this share of the largest are none.
SILENT = 1e-24


def response_ratios(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    prefix: int,
    grids: Sequence[tuple[int, int]],
) -> list[Tensor | None]:
    """Logarithm of the responses to ramps that rise, over those to ramps that fall, along rows and along columns.

    Args:
        model: The user's model, unwrapped.
        model_inputs: One input on its device.
        structure: As read from it.
        prefix: Number of tokens before the first one of a grid.
        grids: Rows and columns of the features.

    Returns:
        For each grid a tensor of shape (`DRAWS`, 2, rows, columns) in double precision, NaN where features do not
        respond; None where no features of this grid were found or they are not finite.
    """
    counts = [prefix + rows * columns for rows, columns in grids]
    found = _perturbed_features(model, model_inputs, structure, counts)
    return [
        None if features is None else _ratios(features[:, prefix:].reshape(PASSES, *grid, -1))
        for grid, features in zip(grids, found, strict=True)
    ]


def perturbed_images(image: Tensor) -> Tensor:
    """An image mixed with noise, and the same mixed with more noise by each ramp, (`PASSES`, channels, height, width).

    The noise is uniform between the smallest and the largest value of the image, because some models check the range of
    their pixels. The ramps are weak, because the responses of norms to strong noise saturate; where an image is black
    they saturate with any noise, so noise of the same strength everywhere is added first. An image of one value is
    mixed with noise around it.

    Example:
        >>> image = torch.rand(1, 3, 8, 8)
        >>> images = perturbed_images(image)
        >>> images.shape, bool(images.min() >= image.min())
        (torch.Size([9, 3, 8, 8]), True)
    """
    generator = torch.Generator().manual_seed(0)
    low, high = image.amin(), image.amax()
    low, high = torch.where(high > low, low, low - 1), torch.where(high > low, high, high + 1)

    def drawn() -> Tensor:
        return torch.rand(image.shape, generator=generator).to(image) * (high - low) + low

    image = (image + BASE * (drawn() - image)).clamp(low, high)
    images = [image]
    for _ in range(DRAWS):
        noise = drawn()
        for axis in (2, 3):
            length = image.shape[axis]
            place = (torch.arange(length, device=image.device, dtype=torch.float64) + 0.5) / length
            shape = [length if i == axis else 1 for i in range(4)]
            for rising in (place, 1 - place):
                ramp = STRENGTH * torch.exp(STEEPNESS * (rising - 1)).view(shape).to(image)
                images.append((image + ramp * (noise - image)).clamp(low, high))
    return torch.cat(images)


def _perturbed_features(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, counts: Sequence[int]
) -> list[Tensor | None]:
    """Features of the perturbed images with each number of tokens, shape (`PASSES`, count, width)."""
    image = model_inputs.image
    assert image is not None
    images = perturbed_images(image)
    rows = torch.zeros(len(images), dtype=torch.long)
    try:
        return _features(model, model_inputs.pick(rows, images), structure, counts)
    except (ModelError, InputError):  # a model of one image
        pass
    try:
        alone = [_features(model, model_inputs.swap(image, one[None]), structure, counts) for one in images]
    except (ModelError, InputError):  # a model that fails on noise
        return [None] * len(counts)
    return [None if any(one is None for one in each) else torch.cat(each) for each in zip(*alone, strict=True)]


def _features(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, counts: Sequence[int]
) -> list[Tensor | None]:
    """What the last attention with a number of tokens reads, or the last feature map of a model without any.

    They are found as in the passes of methods, by the graph; nothing is kept for a backward pass.
    """
    image = model_inputs.image
    assert image is not None
    leaf, batch = image.detach().clone().requires_grad_(), len(image)
    nodes: list[Tensor]
    with frozen(model), torch.autograd.graph.saved_tensors_hooks(_nothing, _nothing):
        if structure.layers:
            mode = AttentionMode({"dY": frozenset(o.call for o in structure.layers)}, batch)
            with mode:
                run_model(model, model_inputs.swap(image, leaf))
            nodes = list(mode.nodes.values())
        else:
            last = FeatureMode(batch)
            with last:
                run_model(model, model_inputs.swap(image, leaf))
            nodes = [] if last.features is None else [last.as_rows(last.features)]
    rows = [node.detach().flatten(1, 2) if node.dim() == 4 else node.detach() for node in nodes if node.dim() in (3, 4)]
    return [next((node for node in reversed(rows) if node.shape[:2] == (batch, count)), None) for count in counts]


def _nothing(tensor: Tensor) -> Tensor:
    """What is kept of a tensor for a backward pass that is never made."""
    return tensor.new_empty(0)


def _ratios(features: Tensor) -> Tensor | None:
    """Ratios for each noise field, from features of the perturbed images of shape (`PASSES`, rows, columns, width)."""
    change = (features[1:].double() - features[:1].double()).square().sum(-1)
    if not bool(change.isfinite().all()):
        return None
    response = change.masked_fill(change <= SILENT * change.amax(), torch.nan).log()
    pairs = response.view(DRAWS, 2, 2, *response.shape[1:])  # rising and falling ramps, along each axis
    return pairs[:, :, 0] - pairs[:, :, 1]
