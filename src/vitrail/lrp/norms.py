"""Handlers of norms and means."""
# ruff: noqa: A002, ARG001 - handlers take what torch's functions take

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.lrp.operands import widened
from vitrail.lrp.ops import Mean, Norm, standard_deviation
from vitrail.lrp.relevance_state import RelevanceState


def layer_norm(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """A layer norm."""
    dims = tuple(range(-len(normalized_shape), 0))
    weight, bias = widened(state, weight), widened(state, bias)
    return _norm(state, Norm(
        lambda x: F.layer_norm(x, normalized_shape, weight, bias, eps),
        lambda x: standard_deviation(x, dims, eps), weight, dims, True, state.samples,
    ), input)  # fmt: skip


def rms_norm(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """A norm by the root mean square."""
    dims = tuple(range(-len(normalized_shape), 0))
    small = torch.finfo(input.dtype).eps if eps is None else eps
    weight = widened(state, weight)
    return _norm(state, Norm(
        lambda x: F.rms_norm(x, normalized_shape, weight, eps),
        lambda x: (x.pow(2).mean(dims, keepdim=True) + small).sqrt(), weight, dims, False, state.samples,
    ), input)  # fmt: skip


def normalise(
    state: RelevanceState, func: Any, input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    """A vector brought to length 1."""
    return _norm(state, Norm(
        lambda x: F.normalize(x, p, dim, eps), lambda x: x.norm(p, dim, keepdim=True).clamp_min(eps), None, (dim,),
        False, state.samples,
    ), input)  # fmt: skip


def _norm(state: RelevanceState, op: Norm, x: Tensor) -> Tensor:
    rule = state.rule("norm")
    if not state.mixed_precision:
        return op.run(x) if rule is None else rule(op, x)
    return op.run(x.float()) if rule is None else rule(replace(op, mixed_precision=True), x.float())


def mean(
    state: RelevanceState, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """A mean over anything but the width is one over tokens."""
    rule = state.rule("mean")
    if dim is None:
        dim = kwargs.pop("axis", None)  # numpy's name, which torch accepts
    dims = () if dim is None else tuple(d % input.dim() for d in (dim if isinstance(dim, tuple | list) else (dim,)))
    if rule is None or not dims or input.dim() - 1 in dims:
        return func(input, dim, keepdim, **kwargs) if dims else func(input, **kwargs)  # type: ignore[no-any-return]
    run = lambda x: func(x, dims, keepdim, **kwargs)  # noqa: E731
    return rule(Mean(run, dims, keepdim, state.samples), input)
