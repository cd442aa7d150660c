"""Some bytes of each weight of a model on a GPU, read by one kernel for all; CUDA only.

A table holds where the weights lie. It keeps no weight alive, and is used only where they lie there still.
"""
# ruff: noqa: ANN001, ANN202 - Triton reads its own annotations
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.fast.kernels import run_kernel_or_none
from vitrail.fast.known_model import recall, remember
from vitrail.fast.module_walk import weights_of, weights_state
from vitrail.fast.switches import fast_paths_disabled

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without it
    triton = None

#: Pairs of bytes that are read of each weight, at equal distances.
PAIRS = 256


def sample_weights(model: nn.Module) -> Tensor | None:
    """A checksum of each weight and buffer, shape (tensors,), or None where the kernel cannot read them."""
    weights = weights_of(model)
    if not weights or not weights[0].is_cuda or fast_paths_disabled():
        return None
    state = weights_state(model)
    known: tuple[tuple[int, ...], Tensor] | None = recall(model, "weights table")
    if known is None or known[0] != state:
        table = _table(weights)
        if table is None:
            return None
        known = (state, table)
        remember(model, "weights table", known)
    return run_kernel_or_none("sample_weights", _checksums, known[1])


def _table(tensors: Sequence[Tensor]) -> Tensor | None:
    """Address and pairs of bytes of each tensor, shape (tensors, 2), on their GPU."""
    devices = {t.device for t in tensors}
    plain = all(type(t) in (Tensor, nn.Parameter) and t.layout == torch.strided and t.is_contiguous() for t in tensors)
    if not plain or len(devices) != 1 or next(iter(devices)).type != "cuda":
        return None
    rows = [(t.data_ptr(), t.numel() * t.element_size() // 2) for t in tensors]
    rows = [(address, pairs) for address, pairs in rows if pairs]
    return torch.tensor(rows, dtype=torch.int64, device=next(iter(devices))) if rows else None


def _checksums(table: Tensor) -> Tensor:
    sums = torch.empty(len(table), dtype=torch.int64, device=table.device)
    _checksum_kernel[(len(table),)](table, sums, PAIRS)
    return sums


if triton is not None:

    @triton.jit
    def _checksum_kernel(table, sums, count: tl.constexpr):
        i = tl.program_id(0)
        start = tl.load(table + 2 * i).to(tl.pointer_type(tl.int16))
        pairs = tl.load(table + 2 * i + 1)
        k = tl.arange(0, count)
        # Without repetition where there are fewer pairs than are read.
        at = tl.where(pairs <= count, k.to(tl.int64), k.to(tl.int64) * pairs // count)
        values = tl.load(start + at, mask=at < pairs, other=0).to(tl.int64)
        tl.store(sums + i, tl.sum((values + 1) * (2 * k.to(tl.int64) + 1), 0))
