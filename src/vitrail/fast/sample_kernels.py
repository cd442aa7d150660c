"""Triton kernels for what relevance rules compute with a total for each input of a batch; CUDA only.

Each program adds up its own entries, and one program an input adds up those sums, in a fixed order: results do not
differ from run to run. The plain computation is in `vitrail.lrp.elementwise`; both agree to rounding.
"""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitrail.fast.elementwise_kernels import ENTRIES, LARGE, rows_of

try:
    import triton
    import triton.language as tl

    from vitrail.fast.elementwise_kernels import read, safe_quotient, signed, write
except ImportError:  # a build of torch without it
    triton = None

#: Sums that are added up at a time.
_SUMS = 1024


@dataclass(frozen=True)
class _Inputs:
    """The entries of each input of a batch, one input after the other, and the programs for them."""

    count: int
    entries: int
    blocks: int
    large: bool

    @classmethod
    def of(cls, t: Tensor, count: int) -> _Inputs:
        entries = t.numel() // count
        return cls(count, entries, triton.cdiv(entries, ENTRIES), t.numel() >= LARGE // 2)

    @property
    def grid(self) -> tuple[int]:
        return (self.count * self.blocks,)

    @property
    def rounds(self) -> int:
        """How often sums are added up."""
        return triton.cdiv(self.blocks, _SUMS)  # type: ignore[no-any-return]

    @property
    def last(self) -> tuple[int, int, bool, int]:
        """The last arguments of every kernel."""
        return self.entries, self.blocks, self.large, ENTRIES

    def sums(self, t: Tensor, kinds: int) -> Tensor:
        return torch.empty(kinds, self.count, self.blocks, device=t.device, dtype=torch.float32)


class BatchSamples(Protocol):
    """Where the inputs of a batch lie, see `vitrail.lrp.ops.Samples`."""

    @property
    def count(self) -> int:
        """Number of inputs."""

    def consecutive(self, t: Tensor, /) -> bool:
        """Whether the entries of each input lie one after the other once t is contiguous."""


def unit(t: Tensor, samples: BatchSamples) -> Tensor | None:
    """As `vitrail.lrp.elementwise.unit`, in place; the entries of an input lie one after the other."""
    if not (t.is_contiguous() and samples.consecutive(t)):
        return None
    inputs = _Inputs.of(t, samples.count)
    sums = inputs.sums(t, 1)
    _size_kernel[inputs.grid](t, sums, *inputs.last)
    return _divided(t, sums, inputs)


def signed_unit(x: Tensor, positive: Tensor, negative: Tensor | None, samples: BatchSamples) -> Tensor | None:
    """As `vitrail.lrp.elementwise.signed_unit`, or `positive_unit` without a factor for the negative part."""
    if not samples.consecutive(x):
        return None
    if _turned(x):
        turned = signed_unit(x.mT, positive.mT, None if negative is None else negative.mT, samples)
        return None if turned is None else turned.mT
    two = negative is not None
    x, (positive, negative, stride) = x.contiguous(), rows_of(positive, positive if negative is None else negative)
    inputs, out = _Inputs.of(x, samples.count), torch.empty_like(x)
    sums = inputs.sums(x, 1)
    width = x.shape[-1]
    _signed_kernel[inputs.grid](x, positive, negative, out, sums, width, stride, stride != width, two, *inputs.last)
    return _divided(out, sums, inputs)


def positive_unit(x: Tensor, factor: Tensor, samples: BatchSamples) -> Tensor | None:
    """As `vitrail.lrp.elementwise.positive_unit`."""
    return signed_unit(x, factor, None, samples)


def _turned(x: Tensor) -> bool:
    """Whether each matrix of x lies column by column: what is computed entry by entry can read it as it is."""
    return x.dim() > 3 and not x.is_contiguous() and x.mT.is_contiguous()


def norm_unit(
    R: Tensor, x: Tensor, y: Tensor, gain: Tensor | None, scale: Tensor, samples: BatchSamples, *, eps: float
) -> Tensor | None:
    """As `vitrail.lrp.elementwise.norm_unit`, for a norm over the last axis."""
    over_rows = scale.shape == (*x.shape[:-1], 1) and (gain is None or gain.dim() == 1)
    if not (over_rows and samples.consecutive(x)):
        return None
    R, x, y, scale = R.contiguous(), x.contiguous(), y.contiguous(), scale.contiguous()
    inputs, out = _Inputs.of(x, samples.count), torch.empty_like(x)
    sums = inputs.sums(x, 1)
    _norm_kernel[inputs.grid](
        R, x, y, scale if gain is None else gain, scale, out, sums, x.shape[-1], eps, gain is not None, *inputs.last
    )
    return _divided(out, sums, inputs)


def _divided(t: Tensor, sums: Tensor, inputs: _Inputs) -> Tensor:
    sizes = torch.empty(inputs.count, device=t.device, dtype=torch.float32)
    _sizes_kernel[(inputs.count,)](sums, sizes, inputs.blocks, inputs.rounds, _SUMS)
    _divide_kernel[inputs.grid](t, sizes, *inputs.last)
    return t


def sum_shares_normalised(
    R: Tensor, u: Tensor, v: Tensor, samples: BatchSamples, *, eps: float
) -> tuple[Tensor, Tensor] | None:
    """As `vitrail.lrp.elementwise.sum_shares_normalised`, for terms of one shape."""
    return _sums(R, u, v, samples, eps, False)


def sum_shares_absolute(
    R: Tensor, u: Tensor, v: Tensor, samples: BatchSamples, *, eps: float
) -> tuple[Tensor, Tensor] | None:
    """As `vitrail.lrp.elementwise.sum_shares_absolute`, for terms of one shape."""
    return _sums(R, u, v, samples, eps, True)


def _sums(
    R: Tensor, u: Tensor, v: Tensor, samples: BatchSamples, eps: float, absolute: bool
) -> tuple[Tensor, Tensor] | None:
    """Totals first, then shares that are scaled before they are written: shares are computed twice, never read."""
    if not (R.shape == u.shape == v.shape and samples.consecutive(R)):
        return None
    count = samples.count
    R, u, v = R.contiguous(), u.contiguous(), v.contiguous()
    inputs, one, two = _Inputs.of(R, count), torch.empty_like(u), torch.empty_like(v)
    sums, factors = inputs.sums(R, 3), torch.empty(2, count, device=R.device, dtype=torch.float32)
    _sum_kernel[inputs.grid](R, u, v, one, two, sums, factors, count, eps, absolute, False, *inputs.last)
    _factors_kernel[(count,)](sums, factors, count, inputs.blocks, eps, absolute, inputs.rounds, _SUMS)
    _sum_kernel[inputs.grid](R, u, v, one, two, sums, factors, count, eps, absolute, True, *inputs.last)
    return one, two


def positive_rows(v: Tensor, one: Tensor, two: Tensor) -> Tensor | None:
    """As `vitrail.lrp.elementwise.positive_rows`, in single precision."""
    if not v.dtype == one.dtype == two.dtype == torch.float32 or one.shape != two.shape:
        return None
    v = v.expand(len(one), -1)
    v, one, two = v.contiguous(), one.contiguous(), two.contiguous()
    batch, heads, queries, keys = one.shape
    N = min(256, triton.next_power_of_2(keys))
    M = 2 * ENTRIES // N
    out = torch.empty(batch, heads, keys, device=one.device, dtype=torch.float32)
    _rows_kernel[(batch * heads, triton.cdiv(keys, N))](
        v, one, two, out, heads, queries, keys, triton.cdiv(queries, M), M, N
    )
    return out


if triton is not None:

    @triton.jit
    def _input_places(entries, blocks, again: tl.constexpr, large: tl.constexpr, ENTRIES: tl.constexpr):
        """The entries of one program, whether they are its input's, and the input.

        Kernels that read again what the last one read or wrote start at its end, which is still in the cache.
        """
        program = tl.program_id(0)
        if again:
            program = tl.num_programs(0) - 1 - program
        sample = program // blocks
        within = (program % blocks) * ENTRIES + tl.arange(0, ENTRIES)
        first = sample * entries
        if large:
            first = sample.to(tl.int64) * entries
        return first + within, within < entries, sample

    @triton.jit
    def _total(sums, sample, blocks, rounds: tl.constexpr, SUMS: tl.constexpr):
        """The sum for one input."""
        total = tl.zeros((SUMS,), tl.float32)
        for start in range(rounds):
            block = start * SUMS + tl.arange(0, SUMS)
            total += tl.load(sums + sample * blocks + block, mask=block < blocks, other=0.0)
        return tl.sum(total, 0)

    @triton.jit
    def _size_kernel(t, sums, entries, blocks, large: tl.constexpr, ENTRIES: tl.constexpr):
        at, inside, _ = _input_places(entries, blocks, False, large, ENTRIES)
        tl.store(sums + tl.program_id(0), tl.sum(tl.abs(read(t, at, inside)), 0))

    @triton.jit
    def _sizes_kernel(sums, sizes, blocks, rounds: tl.constexpr, SUMS: tl.constexpr):
        sample = tl.program_id(0)
        total = _total(sums, sample, blocks, rounds, SUMS)
        tl.store(sizes + sample, tl.where(total == 0, 1.0, total))

    @triton.jit
    def _divide_kernel(t, sizes, entries, blocks, large: tl.constexpr, ENTRIES: tl.constexpr):
        at, inside, sample = _input_places(entries, blocks, True, large, ENTRIES)
        write(t, at, read(t, at, inside) / tl.load(sizes + sample), inside)

    @triton.jit
    def _signed_kernel(
        x, positive, negative, out, sums, width, stride, apart: tl.constexpr, two: tl.constexpr, entries, blocks,
        large: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at, inside, _ = _input_places(entries, blocks, False, large, ENTRIES)
        values = signed(x, positive, negative, at, inside, width, stride, apart, two)
        tl.store(sums + tl.program_id(0), tl.sum(tl.abs(values), 0))
        write(out, at, values, inside)

    @triton.jit
    def _norm_kernel(
        R, x, y, gain, scale, out, sums, width, eps, gained: tl.constexpr, entries, blocks, large: tl.constexpr,
        ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at, inside, _ = _input_places(entries, blocks, False, large, ENTRIES)
        share = read(x, at, inside)
        if gained:
            share *= read(gain, at % width, inside)
        share = share / tl.load(scale + at // width, mask=inside, other=1.0).to(tl.float32)
        share = tl.where(share < 0, 0.0, share) / (tl.abs(read(y, at, inside)) + eps) * read(R, at, inside)
        tl.store(sums + tl.program_id(0), tl.sum(tl.abs(share), 0))
        write(out, at, share, inside)

    @triton.jit
    def _sum_kernel(
        R, u, v, one, two, sums, factors, count, eps, absolute: tl.constexpr, scaled: tl.constexpr, entries, blocks,
        large: tl.constexpr, ENTRIES: tl.constexpr,
    ):  # fmt: skip
        at, inside, sample = _input_places(entries, blocks, scaled, large, ENTRIES)
        relevance = read(R, at, inside)
        first = read(u, at, inside)
        second = read(v, at, inside)
        z = first + second
        if absolute:
            share = relevance / (tl.abs(z) + eps)
            first = tl.where(first < 0, 0.0, first) * share
            second = tl.where(second < 0, 0.0, second) * share
        else:
            share = safe_quotient(relevance, z, eps)
            first = first * share
            second = second * share
        if scaled:
            write(one, at, first * tl.load(factors + sample), inside)
            write(two, at, second * tl.load(factors + count + sample), inside)
        else:
            if absolute:
                first = tl.abs(first)
                second = tl.abs(second)
            program = tl.program_id(0)
            programs = tl.num_programs(0)
            tl.store(sums + program, tl.sum(first, 0))
            tl.store(sums + programs + program, tl.sum(second, 0))
            tl.store(sums + 2 * programs + program, tl.sum(relevance, 0))

    @triton.jit
    def _factors_kernel(
        sums, factors, count, blocks, eps, absolute: tl.constexpr, rounds: tl.constexpr, SUMS: tl.constexpr
    ):  # fmt: skip
        """What the shares of both terms are multiplied with, for one input."""
        sample = tl.program_id(0)
        first = _total(sums, sample, blocks, rounds, SUMS)
        second = _total(sums, count + sample, blocks, rounds, SUMS)
        if absolute:
            one = 1 / tl.where(first == 0, 1.0, first)
            two = 1 / tl.where(second == 0, 1.0, second)
        else:
            total = _total(sums, 2 * count + sample, blocks, rounds, SUMS)
            both = tl.abs(first) + tl.abs(second)
            one = safe_quotient(safe_quotient(tl.abs(first), both, eps) * total, first, eps)
            two = safe_quotient(safe_quotient(tl.abs(second), both, eps) * total, second, eps)
        tl.store(factors + sample, one)
        tl.store(factors + count + sample, two)

    @triton.jit
    def _rows_kernel(
        v, one, two, out, heads, queries, keys, rounds: tl.constexpr, M: tl.constexpr, N: tl.constexpr
    ):  # fmt: skip
        matrix = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * N + tl.arange(0, N)
        total = tl.zeros((N,), tl.float32)
        for start in range(rounds):
            row = start * M + tl.arange(0, M)
            inside = (row[:, None] < queries) & (column[None, :] < keys)
            at = matrix * queries * keys + row[:, None] * keys + column[None, :]
            product = read(one, at, inside) * read(two, at, inside)
            weight = read(v, matrix // heads * queries + row, row < queries)
            total += tl.sum(tl.where(product < 0, 0.0, product) * weight[:, None], 0)
        tl.store(out + matrix * keys + column, total, mask=column < keys)
