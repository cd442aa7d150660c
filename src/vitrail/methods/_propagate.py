"""Propagation of a row of relevance through the blocks.

Every rollout-like method multiplies one matrix a block, last block on the left, and reads one row of the product. That
row can be carried from the last block to the first with one vector-matrix product a block, so no product of two
n×n matrices is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from vitrail.capture.trace import Block, Trace


def flow(trace: Trace, step: Callable[[Tensor, Block], Tensor], blocks: Iterable[Block] | None = None) -> Tensor:
    """rᵀ Π(I + M_l), one row at a time.

    Args:
        trace: The pass; its readout r starts the row.
        step: From the row v, shape (b, m), and a block to v·M, shape (b, n).
        blocks: Blocks to go through, in forward order; all of them by default.

    Returns:
        The row over all tokens, shape (b, n). An attention pool has no skip connection, so there I is left out.
    """
    v = trace.readout.expand(trace.blocks[-1].attention.size[0], -1)
    for block in reversed(list(trace.blocks if blocks is None else blocks)):
        moved = step(v, block)
        v = moved if block.pool else v + moved
    return v


def sum_columns(blocks: Sequence[Block], u: Tensor) -> Tensor:
    """The sum over blocks of u·Āᵀ, with Ā the mean of attention over heads: shape (b, k, n) to (b, k, n)."""
    return sum((block.attention.mean_columns(u) for block in blocks[1:]), start=blocks[0].attention.mean_columns(u))


def row(v: Tensor, matrix: Tensor) -> Tensor:
    """A row vector times a matrix for each sample: (b, m) and (b, m, n) to (b, n)."""
    return (v.unsqueeze(-2) @ matrix).squeeze(-2)


def rows(v: Tensor, matrices: Tensor) -> Tensor:
    """A row vector times each head's matrix: (b, m) and (b, H, m, n) to (b, H, n)."""
    return (v[:, None, None, :] @ matrices).squeeze(-2)
