"""Whether a tensor is per example or shared by all: change it for one example and see whose output changes."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.output_tensors import any_output
from vitrail.capture.tensor_tree import named_tensors
from vitrail.errors import VitrailError

PER_EXAMPLE, SHARED_BY_ALL = "per example", "shared"
_log = logging.getLogger(__name__)
_HALF = (torch.float16, torch.bfloat16)


def measure_effects(model: nn.Module, model_inputs: ModelInputs, questions: list[int]) -> dict[int, str]:
    """For each tensor in question, whether its second entry changes the output of the first example as well.

    Two examples are run: the first two of the call, or the first one twice. Random numbers are the same in all runs.

    Returns:
        "per example" or "shared" for tensors whose change was seen in the output; others are left out.

    Example:
        >>> from torch import nn
        >>> class Similarity(nn.Module):
        ...     def forward(self, image, text):
        ...         return image.flatten(1)[:, :4] @ text.T
        >>> call = ModelInputs((), {"image": torch.rand(2, 3, 8, 8), "text": torch.rand(2, 4)})
        >>> measure_effects(Similarity(), call, [1])
        {1: 'shared'}
    """
    device = model_inputs.tensors[0].device
    rows = torch.tensor([0, min(1, model_inputs.batch - 1)], device=device)
    effects: dict[int, str] = {}
    try:
        pair = model_inputs.indexed(rows)
    except VitrailError:
        return effects  # its examples cannot be taken apart
    base = _outputs(model, pair)
    for index in questions if base else ():
        tensor = pair.tensors[index]
        changed = _outputs(model, pair.swap(tensor, _second_changed(tensor)))
        if len(changed) != len(base):
            continue
        first, second = (any(_differ(a[row], b[row]) for a, b in zip(base, changed, strict=True)) for row in (0, 1))
        if first or second:
            effects[index] = SHARED_BY_ALL if first else PER_EXAMPLE
    return effects


def _outputs(model: nn.Module, pair: ModelInputs) -> list[Tensor]:
    """The outputs for two examples: the scores, or else every tensor with one entry for each; none if it fails."""
    devices = [pair.tensors[0].device] if pair.tensors[0].is_cuda else []
    with frozen(model), torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        try:
            output = pair.into(model)
            scores = any_output(output)
        except Exception as error:  # noqa: BLE001 - the model takes no such pair, whatever its reason
            _log.debug("the effect of a tensor was not measured: %s", error)
            return []
    if scores.dim() and scores.shape[0] == 2:
        return [scores]
    return [t for _, t in named_tensors(output) if t.is_floating_point() and t.dim() and t.shape[0] == 2]


def _second_changed(tensor: Tensor) -> Tensor:
    """The same tensor with another second entry: of the same scale, or for integers of the same values."""
    new = tensor.clone()
    if tensor.is_floating_point():
        spread = float(tensor.float().std()) if tensor.numel() > 1 else 0.0
        noise = torch.randn(tensor[1].shape, generator=torch.Generator().manual_seed(0))
        new[1] += (spread or 1.0) * noise.to(tensor)
        return new
    if tensor.dtype is torch.bool:
        new[1] = ~tensor[1]
        return new
    new[1] = tensor[1].roll(1, -1) if tensor.dim() > 1 else tensor[0]
    if bool((new[1] == tensor[1]).all()):
        new[1] = 0
    if bool((new[1] == tensor[1]).all()):
        new[1] = 1
    return new


def _differ(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-2 if one.dtype in _HALF else 1e-5
    scale = one.float().abs().max().clamp_min(1e-12) if one.numel() else torch.ones(())
    return bool(one.numel()) and bool((one.float() - other.float()).abs().max() > tolerance * scale)
