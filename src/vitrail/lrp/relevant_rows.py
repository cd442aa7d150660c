"""Propagate relevance through the rows that hold any, where they are few.

A head that reads one token gives relevance to that token alone, down to the values of the last attention. Matrix
products with rows of zeros are zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail import fast
from vitrail.lrp.ops import Linear

#: From relevance and what was kept of the forward pass to the relevance of the input.
Backward = Callable[..., Tensor]


def on_relevant_rows(op: Linear, back: Backward) -> Backward:
    """The same backward, computed on rows with relevance only where they are few.

    Args:
        op: A linear map.
        back: Its backward from R, the input x and others of their rows; each row of the result depends on the same row
            of these alone, and is zero where R is.
    """
    if not op.rows:
        return back

    def reduced(R: Tensor, x: Tensor, *others: Tensor) -> Tensor:
        rows = few_rows(R)
        if rows is None:
            return back(R, x, *others)
        found = back(*(t.flatten(0, -2)[rows] for t in (R, x, *others)))
        return x.new_zeros(x.shape).view(-1, x.shape[-1]).index_copy_(0, rows, found).view(x.shape)

    return reduced


def few_rows(R: Tensor) -> Tensor | None:
    """Which rows of R, shape (…, d), are not zero; None where they are more than half, or not on a CPU.

    On a GPU, the answer would have to be waited for.

    Example:
        >>> few_rows(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
        tensor([1])
        >>> few_rows(torch.ones(2, 2)) is None
        True
    """
    if R.device.type != "cpu" or R.dim() < 2 or fast.capturing() or fast.fast_paths_disabled():
        return None
    sizes = torch.linalg.vector_norm(R.flatten(0, -2), 1, -1)
    rows = sizes.nonzero()[:, 0]
    return rows if 2 * len(rows) <= len(sizes) else None
