"""A convolution as a linear map that relevance rules know."""
# ruff: noqa: A002 - the handler takes what torch's functions take

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input

from vitrail.lrp.ops import Linear
from vitrail.lrp.relevance_state import RelevanceState

#: Padding and dilation of a convolution whose patches lie side by side.
PATCHES = ((0, 0), (1, 1))


def convolve(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution; one of three channels reads pixels."""
    rule = state.rule("pixels" if input.shape[1] == 3 else "conv")
    x = state.operand(input, weight)
    if rule is None or weight.requires_grad:
        return _stream(state, func(x, weight, bias, stride, padding, dilation, groups))
    if padding == "valid":
        padding = 0
    elif padding == "same":
        padding = tuple(d * (k - 1) // 2 for d, k in zip(_pair(dilation), weight.shape[2:], strict=True))
    shape, how = input.shape, (stride, padding, dilation, groups)
    # Patches that do not overlap and leave nothing out.
    patches = groups == 1 and _pair(stride) == tuple(weight.shape[2:]) and (_pair(padding), _pair(dilation)) == PATCHES
    patches = patches and all(size % step == 0 for size, step in zip(shape[2:], weight.shape[2:], strict=True))

    def adjoint(s: Tensor, w: Tensor) -> Tensor:
        if patches:
            return _patches_joined(s, w)
        return conv2d_input(shape, w, s, *how)  # type: ignore[no-untyped-call, no-any-return]

    return _stream(state, rule(Linear(
        lambda x: F.conv2d(x, weight, bias, *how), lambda x, w: F.conv2d(x, w, None, *how), adjoint, weight,
        None if bias is None else bias.view(-1, 1, 1), state.samples,
    ), x))  # fmt: skip


def _pair(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


def _patches_joined(s: Tensor, w: Tensor) -> Tensor:
    """The adjoint of a convolution whose patches lie side by side: a matrix product, then the patches put in place.

    Args:
        s: Shape (b, outputs, rows, columns).
        w: Shape (outputs, channels, height, width) of a patch.
    """
    (b, _, rows, columns), (_, channels, height, width) = s.shape, w.shape
    patches = (s.flatten(2).mT @ w.flatten(1)).reshape(b, rows, columns, channels, height, width)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(b, channels, rows * height, columns * width)


def _stream(state: RelevanceState, embedded: Tensor) -> Tensor:
    """Where a residual stream may begin: it is kept in single precision."""
    return embedded.float() if state.mixed_precision else embedded
