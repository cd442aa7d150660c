"""Triton kernels for what relevance rules compute entry by entry in half precision; CUDA only.

The plain computation is in `half`; both agree to rounding.
"""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it
    triton = None

#: Entries of a tensor that one program computes.
ENTRIES = 2048
#: Entries of a tensor from which on places in it are 64-bit numbers.
LARGE = 2**31 - ENTRIES
#: Longest rows of norms that are computed in one piece.
LONGEST_ROW = 8192
_failed: list[str] = []
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def attempt(compute: Callable[..., Result], *args: Any) -> Result | None:
    """The result of a kernel, or None where it cannot be compiled, as without a C compiler; then never again."""
    if triton is None or _failed:
        return None
    try:
        return compute(*args)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Triton raises many kinds
        _failed.append(repr(error))
        _log.warning("Triton kernels are not used, relevance in half precision takes longer: %s", error)
        return None


def gamma_shares(
    R: Tensor, y: Tensor, size: Tensor, bias: Tensor | None, gamma: float, eps: float
) -> tuple[Tensor, Tensor]:
    """As `vitrail.lrp.half.gamma_shares`; the bias has one axis."""
    R, y, size = R.contiguous(), y.contiguous(), size.contiguous()
    one, two = torch.empty_like(y), torch.empty_like(y)
    _shares_kernel[_grid(y)](
        R, y, size, y if bias is None else bias, one, two, y.numel(), y.shape[-1], gamma / 2, eps,
        bias is not None, y.numel() >= LARGE, ENTRIES,
    )  # fmt: skip
    return one, two


def gamma_gradient(x: Tensor, G: Tensor, H: Tensor, gamma: float, eps: float) -> Tensor:
    """As `vitrail.lrp.half.gamma_gradient`."""
    x, G, H = x.contiguous(), G.contiguous(), H.contiguous()
    out = torch.empty_like(x)
    _gradient_kernel[_grid(x)](x, G, H, out, x.numel(), gamma / 2, eps, x.numel() >= LARGE, ENTRIES)
    return out


def activation_share(R: Tensor, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """As `vitrail.lrp.half.activation_share`."""
    R, x, y = R.contiguous(), x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    _activation_kernel[_grid(x)](R, x, y, out, x.numel(), eps, x.numel() >= LARGE, ENTRIES)
    return out


def norm_gradient(R: Tensor, gain: Tensor | None, scale: Tensor, centred: bool) -> Tensor:
    """As `vitrail.lrp.half.norm_gradient`; the norm is over the last axis."""
    R, scale = R.contiguous(), scale.contiguous()
    out = torch.empty_like(R, dtype=torch.float32)
    width = R.shape[-1]
    _norm_kernel[(R.numel() // width,)](
        R, scale if gain is None else gain, scale, out, width, gain is not None, centred, triton.next_power_of_2(width)
    )
    return out


def _grid(t: Tensor) -> tuple[int]:
    return (triton.cdiv(t.numel(), ENTRIES),)


if triton is not None:

    @triton.jit
    def _places(large: tl.constexpr, ENTRIES: tl.constexpr):
        """The entries of one program."""
        program = tl.program_id(0)
        if large:
            program = program.to(tl.int64)
        return program * ENTRIES + tl.arange(0, ENTRIES)

    @triton.jit
    def _shares_kernel(
        R, y, size, bias, one, two, count, width, half, eps, biased: tl.constexpr, large: tl.constexpr,
        ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at = _places(large, ENTRIES)
        inside = at < count
        result = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(size + at, mask=inside, other=0.0).to(tl.float32)
        if biased:
            total += tl.abs(tl.load(bias + at % width, mask=inside, other=0.0).to(tl.float32))
        divisor = total * half + tl.abs(result) * (1 + half) + eps
        share = tl.load(R + at, mask=inside, other=0.0).to(tl.float32) / divisor
        tl.store(one + at, (share * tl.abs(result)).to(one.dtype.element_ty), mask=inside)
        tl.store(two + at, (share * result).to(two.dtype.element_ty), mask=inside)

    @triton.jit
    def _gradient_kernel(x, G, H, out, count, half, eps, large: tl.constexpr, ENTRIES: tl.constexpr):
        at = _places(large, ENTRIES)
        inside = at < count
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        plain = tl.load(G + at, mask=inside, other=0.0).to(tl.float32)
        raised = tl.load(H + at, mask=inside, other=0.0).to(tl.float32)
        raised = tl.where(value < 0, -raised, raised)
        size = tl.abs(value)
        total = (plain * (1 + half) + raised * half) * (size / (size + eps))
        tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _activation_kernel(R, x, y, out, count, eps, large: tl.constexpr, ENTRIES: tl.constexpr):
        at = _places(large, ENTRIES)
        inside = at < count
        value = tl.load(x + at, mask=inside, other=1.0).to(tl.float32)
        result = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        share = tl.load(R + at, mask=inside, other=0.0).to(tl.float32) * result / (value + eps)
        tl.store(out + at, share.to(out.dtype.element_ty), mask=inside)

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
