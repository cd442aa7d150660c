"""Triton kernels for what rules that carry gradients compute entry by entry; CUDA only.

The plain computation is in `vitrail.lrp.elementwise_gradients`; both agree to rounding.
"""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.fast.elementwise_kernels import ENTRIES, LARGE, grid

try:
    import triton
    import triton.language as tl

    from vitrail.fast.elementwise_kernels import places, read, write
except ImportError:  # a build of torch without it
    triton = None

#: Longest rows of norms that are computed in one piece.
LONGEST_ROW = 8192


def gamma_shares(
    R: Tensor, y: Tensor, size: Tensor, bias: Tensor | None, gamma: float, eps: float
) -> tuple[Tensor, Tensor] | None:
    """As `vitrail.lrp.elementwise_gradients.gamma_shares`; the bias has one axis."""
    if bias is not None and bias.dim() != 1:
        return None
    R, y, size = R.contiguous(), y.contiguous(), size.contiguous()
    one, two = torch.empty_like(y), torch.empty_like(y)
    _shares_kernel[grid(y)](
        R, y, size, y if bias is None else bias, one, two, y.numel(), y.shape[-1], gamma / 2, eps,
        bias is not None, y.numel() >= LARGE, ENTRIES,
    )  # fmt: skip
    return one, two


def gamma_gradient(x: Tensor, G: Tensor, H: Tensor, gamma: float, eps: float) -> Tensor:
    """As `vitrail.lrp.elementwise_gradients.gamma_gradient`."""
    x, G, H = x.contiguous(), G.contiguous(), H.contiguous()
    out = torch.empty_like(x)
    _gradient_kernel[grid(x)](x, G, H, out, x.numel(), gamma / 2, eps, x.numel() >= LARGE, ENTRIES)
    return out


def activation_share(R: Tensor, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """As `vitrail.lrp.elementwise_gradients.activation_share`."""
    R, x, y = R.contiguous(), x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    _activation_kernel[grid(x)](R, x, y, out, x.numel(), eps, x.numel() >= LARGE, ENTRIES)
    return out


def norm_gradient(R: Tensor, gain: Tensor | None, scale: Tensor, centred: bool) -> Tensor | None:
    """As `vitrail.lrp.elementwise_gradients.norm_gradient`; the norm is over the last axis."""
    if R.shape[-1] > LONGEST_ROW:
        return None
    R, scale = R.contiguous(), scale.contiguous()
    out = torch.empty_like(R, dtype=torch.float32)
    width = R.shape[-1]
    _norm_kernel[(R.numel() // width,)](
        R, scale if gain is None else gain, scale, out, width, gain is not None, centred, triton.next_power_of_2(width)
    )
    return out


if triton is not None:

    @triton.jit
    def _shares_kernel(
        R, y, size, bias, one, two, count, width, half, eps, biased: tl.constexpr, large: tl.constexpr,
        ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at = places(large, ENTRIES)
        inside = at < count
        result = read(y, at, inside)
        total = read(size, at, inside)
        if biased:
            total += tl.abs(tl.load(bias + at % width, mask=inside, other=0.0).to(tl.float32))
        divisor = total * half + tl.abs(result) * (1 + half) + eps
        share = read(R, at, inside) / divisor
        write(one, at, share * tl.abs(result), inside)
        write(two, at, share * result, inside)

    @triton.jit
    def _gradient_kernel(x, G, H, out, count, half, eps, large: tl.constexpr, ENTRIES: tl.constexpr):
        at = places(large, ENTRIES)
        inside = at < count
        value = read(x, at, inside)
        plain = read(G, at, inside)
        raised = read(H, at, inside)
        raised = tl.where(value < 0, -raised, raised)
        size = tl.abs(value)
        total = (plain * (1 + half) + raised * half) * (size / (size + eps))
        write(out, at, total, inside)

    @triton.jit
    def _activation_kernel(R, x, y, out, count, eps, large: tl.constexpr, ENTRIES: tl.constexpr):
        at = places(large, ENTRIES)
        inside = at < count
        value = tl.load(x + at, mask=inside, other=1.0).to(tl.float32)
        result = read(y, at, inside)
        share = read(R, at, inside) * result / (value + eps)
        write(out, at, share, inside)

    @triton.jit
    def _norm_kernel(
        R, gain, scale, out, width, gained: tl.constexpr, centred: tl.constexpr, D: tl.constexpr
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, D)
        inside = d < width
        G = tl.load(R + row * width + d, mask=inside, other=0.0).to(tl.float32)
        if gained:
            G *= tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
        G = G / tl.load(scale + row)
        if centred:
            G = G - tl.sum(G, 0) / width
        tl.store(out + row * width + d, G, mask=inside)
