"""Triton kernels for what relevance rules compute entry by entry; CUDA only.

The plain computation is in `vitrail.lrp.elementwise`; both agree to rounding.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

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


def signed_parts(x: Tensor, axis: int = -1) -> Tensor:
    """As `vitrail.lrp.elementwise.signed_parts`."""
    if axis == -2 and x.mT.is_contiguous():
        return signed_parts(x.mT).mT
    x = x.detach().contiguous()
    shape, width = list(x.shape), x.shape[-1] if axis == -1 else x.shape[-1] * x.shape[-2]
    shape[axis] *= 2
    out = torch.empty(shape, device=x.device, dtype=x.dtype)
    _parts_kernel[grid(x)](x, out, x.numel(), width, width, width, out.numel() >= LARGE, ENTRIES)
    return out


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `vitrail.lrp.elementwise.halves`."""
    x = x.contiguous()
    out = torch.empty(2, *x.shape, device=x.device, dtype=x.dtype)
    _parts_kernel[grid(x)](x, out, x.numel(), 1, 0, x.numel(), out.numel() >= LARGE, ENTRIES)
    return out[0], out[1]


def share(R: Tensor, z: Tensor, factor: float = 1.0, safe: bool = True, *, eps: float) -> Tensor:  # noqa: ARG001
    """As `vitrail.lrp.elementwise.share`; the result is always 0 where z is."""
    return _share(R, z, eps, factor, False)


def absolute_share(R: Tensor, z: Tensor, *, eps: float) -> Tensor:
    """As `vitrail.lrp.elementwise.absolute_share`."""
    return _share(R, z, eps, 1.0, True)


def _share(R: Tensor, z: Tensor, eps: float, factor: float, absolute: bool) -> Tensor:
    strided = R.dim() == 4 and R.stride(-1) == 1 and not R.is_contiguous()  # heads that were merged
    R, z = R if strided else R.contiguous(), z.contiguous()
    out = torch.empty_like(z)
    heads, rows, strides = (R.shape[1], R.shape[2], R.stride()[:3]) if strided else (1, 1, (0, 0, 0))
    reach = sum((size - 1) * stride for size, stride in zip(R.shape, R.stride(), strict=True))
    _share_kernel[grid(z)](
        R, z, out, z.numel(), z.shape[-1], heads, rows, *strides, eps, factor, absolute, strided,
        max(z.numel(), reach) >= LARGE, ENTRIES,
    )  # fmt: skip
    return out


def shares(R: Tensor, first: Tensor, second: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """As `vitrail.lrp.elementwise.shares`."""
    R, first, second = R.contiguous(), first.contiguous(), second.contiguous()
    one, two = torch.empty_like(first), torch.empty_like(first)
    _shares_kernel[grid(R)](R, first, second, one, two, R.numel(), eps, R.numel() >= LARGE, ENTRIES)
    return one, two


def signed_product(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """As `vitrail.lrp.elementwise.signed_product`."""
    x, (positive, negative, stride) = x.contiguous(), rows_of(positive, negative)
    out = torch.empty_like(x)
    _signed_kernel[grid(x)](
        x, positive, negative, out, x.numel(), x.shape[-1], stride, stride != x.shape[-1],
        x.numel() * stride >= LARGE * x.shape[-1], ENTRIES,
    )  # fmt: skip
    return out


def sum_shares(R: Tensor, u: Tensor, v: Tensor, *, eps: float) -> tuple[Tensor, Tensor] | None:
    """As `vitrail.lrp.elementwise.sum_shares`, for terms of one shape."""
    if not R.shape == u.shape == v.shape:
        return None
    R, u, v = R.contiguous(), u.contiguous(), v.contiguous()
    one, two = torch.empty_like(u), torch.empty_like(v)
    _sum_kernel[grid(R)](R, u, v, one, two, R.numel(), eps, R.numel() >= LARGE, ENTRIES)
    return one, two


def grid(t: Tensor) -> tuple[int]:
    """Programs for all entries of a tensor."""
    return (triton.cdiv(t.numel(), ENTRIES),)


def rows_of(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, int]:
    """Two tensors whose rows lie equally far apart, and how far: as they are where they are halves of wider rows."""
    if one.stride() == two.stride() and one.stride(-1) == 1:
        apart, rows = one.stride(-2) if one.dim() > 1 else one.shape[-1], 1
        for size, stride in zip(reversed(one.shape[:-1]), reversed(one.stride()[:-1]), strict=True):
            if size > 1 and stride != rows * apart:
                break
            rows *= size
        else:
            return one, two, apart
    return one.contiguous(), two.contiguous(), one.shape[-1]


if triton is not None:

    @triton.jit
    def places(large: tl.constexpr, ENTRIES: tl.constexpr):
        """The entries of one program."""
        program = tl.program_id(0)
        if large:
            program = program.to(tl.int64)
        return program * ENTRIES + tl.arange(0, ENTRIES)

    @triton.jit
    def read(tensor, at, inside):
        """Entries in single precision; 0 outside."""
        return tl.load(tensor + at, mask=inside, other=0.0).to(tl.float32)

    @triton.jit
    def write(tensor, at, values, inside):
        """Store entries in the tensor's own precision."""
        tl.store(tensor + at, values.to(tensor.dtype.element_ty), mask=inside)

    @triton.jit
    def safe_quotient(a, b, eps):
        """The quotient a / (b + eps), and 0 where b is exactly 0."""
        return tl.where(b == 0, 0.0, a / (b + eps))

    @triton.jit
    def _parts_kernel(x, out, count, width, gap, to_negative, large: tl.constexpr, ENTRIES: tl.constexpr):
        """The parts of both signs: rows of a width with a gap after each, and how far the negative ones are behind."""
        at = places(large, ENTRIES)
        inside = at < count
        values = read(x, at, inside)
        to = at + at // width * gap
        # Comparisons are written so that a NaN is in both parts.
        write(out, to, tl.where(values < 0, 0.0, values), inside)
        write(out, to + to_negative, tl.where(values > 0, 0.0, values), inside)

    @triton.jit
    def _share_kernel(
        R, z, out, count, width, heads, rows, input_stride, head_stride, row_stride, eps, factor,
        absolute: tl.constexpr, strided: tl.constexpr, large: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at = places(large, ENTRIES)
        inside = at < count
        source = at
        if strided:
            row = at // width
            source = at % width + row % rows * row_stride + row // rows % heads * head_stride
            source += row // (rows * heads) * input_stride
        relevance = read(R, source, inside) * factor
        divisor = read(z, at, inside)
        if absolute:
            write(out, at, relevance / (tl.abs(divisor) + eps), inside)
        else:
            write(out, at, safe_quotient(relevance, divisor, eps), inside)

    @triton.jit
    def _shares_kernel(
        R, first, second, one, two, count, eps, large: tl.constexpr, ENTRIES: tl.constexpr
    ):  # fmt: skip
        at = places(large, ENTRIES)
        inside = at < count
        relevance = read(R, at, inside)
        write(one, at, safe_quotient(relevance, read(first, at, inside), eps), inside)
        write(two, at, safe_quotient(relevance, read(second, at, inside), eps), inside)

    @triton.jit
    def signed(x, positive, negative, at, inside, width, stride, apart: tl.constexpr, two: tl.constexpr):
        """Multiply x by the factor that its sign chooses, of two or of one and 0; the other is not read."""
        values = read(x, at, inside)
        to = at
        if apart:
            to = at // width * stride + at % width
        factor = read(positive, to, inside & (values > 0))
        if two:
            factor += read(negative, to, inside & (values < 0))
        return values * factor

    @triton.jit
    def _signed_kernel(
        x, positive, negative, out, count, width, stride, apart: tl.constexpr, large: tl.constexpr,
        ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at = places(large, ENTRIES)
        inside = at < count
        write(out, at, signed(x, positive, negative, at, inside, width, stride, apart, True), inside)

    @triton.jit
    def _sum_kernel(R, u, v, one, two, count, eps, large: tl.constexpr, ENTRIES: tl.constexpr):
        at = places(large, ENTRIES)
        inside = at < count
        first = read(u, at, inside)
        second = read(v, at, inside)
        share = safe_quotient(read(R, at, inside), first + second, eps)
        write(one, at, first * share, inside)
        write(two, at, second * share, inside)
