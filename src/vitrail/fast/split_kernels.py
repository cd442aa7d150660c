"""Triton kernels that write float32 matrices as sums of float16 ones, and undo their scales; CUDA only."""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it
    triton = None

#: Entries of a product that one program scales.
ENTRIES = 2048


def split_rows(
    x: Tensor, factor: Tensor | None = None, left: bool = True, stacked: bool = False
) -> tuple[Tensor, Tensor]:
    """A matrix as float16 parts and a power of two for each row: x·factor = scale·(high + low), to 22 bits.

    The largest entry of each row of parts is between 2¹⁴ and 2¹⁵, so entries down to 2⁻¹⁷ of it keep all bits.

    Args:
        x: Shape (m, k), float32.
        factor: What to multiply the columns with first, shape (k,).
        left: Parts in the order of a left operand (high, low, high) or of a right one (low, high, high): the product of
            both is the sum of all products of parts but the smallest, small ones first, so that adding them up loses
            nothing beside the large ones.
        stacked: Parts below each other, shape (3m, k), instead of beside each other, shape (m, 3k).

    Returns:
        Parts, and scales of shape (m,).
    """
    m, k = x.shape
    x = x.contiguous()
    parts = x.new_empty((3 * m, k) if stacked else (m, 3 * k), dtype=torch.float16)
    scales = x.new_empty(m)
    between = (k, m * k) if stacked else (3 * k, k)
    _split_kernel[(m,)](
        x, x if factor is None else factor, parts, scales, k, *between, factor is not None, left,
        triton.next_power_of_2(k), num_warps=4 if k <= 2048 else 8,
    )  # fmt: skip
    return parts, scales


def scale_product_(product: Tensor, rows: Tensor, columns: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Multiply a product, shape (m, n), with scales of its rows and columns, and add a bias to each row, in place."""
    count, width = product.numel(), product.shape[1]
    _scale_kernel[(triton.cdiv(count, ENTRIES),)](
        product, rows, rows if columns is None else columns, rows if bias is None else bias, count, width,
        columns is not None, bias is not None, ENTRIES,
    )  # fmt: skip
    return product


if triton is not None:

    @triton.jit
    def _split_kernel(
        x, factor, parts, scales, k, row_stride, part_stride, factored: tl.constexpr, left: tl.constexpr,
        K: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, K)
        inside = at < k
        value = tl.load(x + row * k + at, mask=inside, other=0.0)
        if factored:
            value *= tl.load(factor + at, mask=inside, other=0.0)
        # The exponent of the largest entry, in the range in which both the scale and its inverse are normal numbers.
        exponent = (tl.max(tl.abs(value), 0).to(tl.int32, bitcast=True) >> 23) - 127
        exponent = tl.minimum(tl.maximum(exponent, -110), 126)
        scale = ((exponent - 14 + 127) << 23).to(tl.float32, bitcast=True)
        value *= ((14 - exponent + 127) << 23).to(tl.float32, bitcast=True)
        high = value.to(tl.float16)
        low = (value - high.to(tl.float32)).to(tl.float16)
        out = parts + row * row_stride + at
        if left:
            tl.store(out, high, mask=inside)
            tl.store(out + part_stride, low, mask=inside)
        else:
            tl.store(out, low, mask=inside)
            tl.store(out + part_stride, high, mask=inside)
        tl.store(out + 2 * part_stride, high, mask=inside)
        tl.store(scales + row, scale)

    @triton.jit
    def _scale_kernel(
        product, rows, columns, bias, count, width, scaled: tl.constexpr, biased: tl.constexpr, ENTRIES: tl.constexpr
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * ENTRIES + tl.arange(0, ENTRIES)
        inside = at < count
        column = at % width
        value = tl.load(product + at, mask=inside, other=0.0) * tl.load(rows + at // width, mask=inside, other=0.0)
        if scaled:
            value *= tl.load(columns + column, mask=inside, other=0.0)
        if biased:
            value += tl.load(bias + column, mask=inside, other=0.0)
        tl.store(product + at, value, mask=inside)
