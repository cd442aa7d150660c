"""ViT Shapley: Shapley values of patches, predicted by an explainer that was trained for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.errors import InputError, NotApplicableError, TargetError
from vitrail.methods.cost import forward_passes
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, register
from vitrail.methods.shapley_explainer.explainer_network import normalise_values
from vitrail.methods.shapley_explainer.weights import find_explainer, load_explainer
from vitrail.models.class_group import membership


def _check_weights(model: nn.Module, options: Mapping[str, Any]) -> None:
    find_explainer(model, options["weights"])


@register(
    "vit_shapley",
    "ViT Shapley",
    "trained",
    cite="covert2023learning",
    takes="probe",
    signed=True,
    applies=Applies(excluded={"text": "its explainers are trained on images"}),
    cost=forward_passes(lambda _, __: 1),
    check_weights=_check_weights,
)
def vit_shapley(probe: Probe, *, weights: str = "") -> Tensor:
    """Shapley values of the patches for the class's probability, predicted with one forward pass of an explainer.

    The values of a class sum to its probability minus the one that the explainer's surrogate gives without patches.

    Args:
        probe: The model and its inputs.
        weights: File that ``vitrail train-explainer`` wrote for this model; "" for one that is part of the package.

    Returns:
        Relevance of patches, shape (b, K, S), signed.
    """
    if probe.classes is None:
        raise TargetError("vit_shapley explains classes: the target must be a class, not a function of the output")
    trained = load_explainer(probe.model, probe.structure, weights)
    record, size = trained.record, tuple(probe.images.shape[2:])
    if size != record.size:
        raise InputError(
            f"the explainer of vit_shapley was trained on images of {record.size[0]}×{record.size[1]} pixels, these "
            f"have {size[0]}×{size[1]}: resize them, or train another one with `vitrail train-explainer`"
        )
    highest = int(probe.classes.max())
    if highest >= record.classes + len(probe.groups):
        raise NotApplicableError(
            f"the explainer of vit_shapley was trained for {record.classes} classes, class {highest} is none of them: "
            "train another one with `vitrail train-explainer`"
        )
    # Shapley values are linear in the game, so those of a group of classes are the sum of its classes' values.
    members = torch.stack([membership(classes, probe.groups, record.classes) for classes in probe.classes.unbind(1)], 2)
    members = members.to(trained.empty.dtype)  # (b, classes, K)
    values = []
    with frozen(trained.module):
        for piece in probe.pieces(probe.batch):
            values.append(trained.module(probe.images[piece].to(trained.empty.dtype)) @ members[piece])
            probe.advance(len(values[-1]))
    total = probe.unchanged() - trained.empty @ members
    return normalise_values(torch.cat(values), total.to(trained.empty.dtype)).transpose(1, 2)
