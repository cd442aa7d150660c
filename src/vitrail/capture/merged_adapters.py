"""Linear layers with adapters (LoRA, DoRA) as the one linear map they are.

An unmerged adapter adds a second path to a linear layer. What the layer computes is still one affine map, and methods
that read its weight or propagate relevance through it need that map. While a model is read, such layers run with their
effective weight, found by passing the unit vectors through them; nothing in the layer itself is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import fast

#: Modules an adapted layer may be made of.
_PLAIN = (nn.Linear, nn.Dropout, nn.Identity, nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)
_Weights = tuple[Tensor, Tensor]
#: Types of attributes that may change what a layer computes.
_SETTINGS = (bool, int, float, str, list)
#: Relative difference between a layer and its effective weights that is rounding.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@contextmanager
def merged_linears(model: nn.Module) -> Iterator[None]:
    """Run linear layers with adapters as one linear map with their effective weight and bias.

    Example:
        >>> class Adapted(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.base, self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 1, False), nn.Linear(1, 4, False)
        ...     def forward(self, x):
        ...         return self.base(x) + 2 * self.up(self.down(x))
        >>> layer, x = Adapted().eval(), torch.randn(3, 4)
        >>> before = layer(x)
        >>> with merged_linears(layer):
        ...     bool(torch.allclose(layer(x), before, atol=1e-6)), "forward" in vars(layer)
        (True, True)
        >>> "forward" in vars(layer)
        False
    """
    changed: list[nn.Module] = []
    try:
        for module in _candidates(model):
            # A forward or hooks of the user's own are part of what the layer computes, and run as they are.
            if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:  # noqa: SLF001
                continue
            found = _effective(module)
            if found is not None:
                fast.keep(*found)
                module.__dict__["forward"] = _linear(*found)
                changed.append(module)
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _linear(weight: Tensor, bias: Tensor) -> Any:
    def forward(x: Tensor, *_: Any, **__: Any) -> Tensor:
        return F.linear(x, weight.to(x), bias.to(x))

    return forward


def _candidates(model: nn.Module) -> list[nn.Module]:
    """Modules made of linear layers alone that hold more parameters than one linear layer; the outermost of them."""
    modules = [(id(module), type(module)) for module in fast.modules_of(model)]
    kept: tuple[Any, list[nn.Module]] | None = fast.recall(model, "adapted layers")
    if kept is None or kept[0] != modules:
        kept = fast.remember(model, "adapted layers", (modules, _search(model)))
    assert kept is not None
    return kept[1]


def _search(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or isinstance(module, _PLAIN):
            continue
        linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
        adapted = isinstance(getattr(module, "base_layer", None), nn.Linear)
        if not linears or (not adapted and not _all_plain(module)):
            continue
        tensors = list(module.parameters())
        if len(tensors) < 2 + int(linears[0].bias is not None) and not adapted:
            continue
        found.append(module)
        inside.update(id(m) for m in module.modules())
    return found


def _all_plain(module: nn.Module) -> bool:
    return all(isinstance(m, _PLAIN) for m in module.modules() if m is not module)


def _effective(module: nn.Module) -> _Weights | None:
    """Effective weight and bias of a module if it is an affine map of its last axis, else None.

    What is known from an earlier call is compared with the layer itself on one random row, in each call.
    """
    return fast.call_cache("adapter", module, _confirmed)


def _confirmed(module: nn.Module) -> _Weights | None:
    held = vars(module).items()
    settings = [(k, type(v), str(v) if isinstance(v, list) else v) for k, v in held if isinstance(v, _SETTINGS)]
    state = (fast.weights_state(module), settings)
    kept: tuple[Any, _Weights | None] | None = fast.recall(module, "adapters")
    if kept is None or kept[0] != state or not _holds(module, kept[1]):
        kept = fast.remember(module, "adapters", (state, _measure(module)))
    assert kept is not None
    return kept[1]


def _holds(module: nn.Module, weights: _Weights | None) -> bool:
    """Whether a layer still is the affine map that it is known to be, on one random row.

    A layer that is no such map runs as it is, so there is nothing to confirm. While a pass is recorded nothing is read
    from the device: the same call has run the pass before.
    """
    if weights is None or fast.capturing():
        return True
    weight, bias = weights
    row = torch.randn(1, weight.shape[1], generator=torch.Generator().manual_seed(7)).to(weight)
    out = _run(module, row)
    if out is None or out.shape[-1] != len(bias):
        return False
    with torch.no_grad():
        error = (F.linear(row, weight, bias) - out).abs().max()
    return bool(error <= _ROUNDING.get(weight.dtype, 1e-2) * out.abs().max())


def _measure(module: nn.Module) -> _Weights | None:
    linear = getattr(module, "base_layer", None)
    if not isinstance(linear, nn.Linear):
        linear = next(m for m in module.modules() if isinstance(m, nn.Linear))
    weight = linear.weight
    if not weight.is_floating_point():
        return None
    width = linear.in_features
    trial = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(weight)
    trial = torch.cat([trial.new_zeros(1, width), trial, trial.sum(0, keepdim=True)])
    few = _run(module, trial)
    tolerance = 1e-2 if weight.dtype in (torch.float16, torch.bfloat16) else 1e-4
    if few is None:
        return None
    size = tolerance * float((few - few[0]).abs().max())
    if float((few[1] + few[2] - few[0] - few[3]).abs().max()) > size:
        return None
    # A linear layer treats rows one by one; attention that is still almost uniform would pass for linear otherwise.
    alone = _run(module, trial[1:2])
    if alone is None or float((few[1] - alone[0]).abs().max()) > size:
        return None
    out = _run(module, torch.cat([torch.eye(width, dtype=weight.dtype, device=weight.device), trial]))
    if out is None:
        return None
    bias = out[width]
    effective = (out[:width] - bias).mT.contiguous()
    with torch.no_grad():
        error = (F.linear(trial, effective, bias) - out[width:]).abs().max()
    return (effective, bias) if float(error) <= tolerance * float(out.abs().max()) else None


def _run(module: nn.Module, rows: Tensor) -> Tensor | None:
    """The module's result for some rows, or None where it takes or gives something else."""
    try:
        with torch.no_grad(), fast.without_autocast(rows.device):
            out = module(rows[None])
    except Exception:  # noqa: BLE001 - a module that cannot be called with one tensor is no linear layer
        return None
    fits = isinstance(out, Tensor) and out.dim() == 3 and out.shape[:2] == (1, len(rows))
    return out[0] if fits else None
