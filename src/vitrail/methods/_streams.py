"""Relevance across streams of tokens, such as those of an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.capture.streams import StreamLayer, Streams


def updated_relevance(
    streams: Streams, matrices: Sequence[Tensor], readouts: Sequence[Tensor], explained: int | None = None
) -> Tensor:
    """Relevance by the update rules of Transformer-MM, shape (b, n of the explained stream).

    R[s, t] is the relevance of the tokens of stream t for those of stream s. Self-attention in s adds Ā·R[s, t] for
    every t. Attention of s to k adds R̄[s, s]ᵀ·Ā·R̄[k, k] to R[s, k] and Ā·R[k, s] to R[s, s], where R̄ has the rows of
    R − I scaled to sum one. Layers of one step read the same R.

    Args:
        streams: The streams.
        matrices: Ā of each layer, shape (b, m, n), not negative.
        readouts: Weights over the queries of the layers that are read, shape (b, m) each.
        explained: The stream whose relevance is wanted; that of the input by default.
    """
    matrices, readouts = _placed(streams, matrices, readouts)
    batch, like, count = len(matrices[0]), matrices[0], len(streams.sizes)
    R = {
        (s, t): torch.eye(n, dtype=like.dtype, device=like.device).expand(batch, n, n)
        if s == t
        else like.new_zeros(batch, n, streams.sizes[t])
        for s, n in enumerate(streams.sizes)
        for t in range(count)
    }
    for step in streams.steps():
        added = dict(R)
        for i in step:
            s, k, A = streams.layers[i].queries, streams.layers[i].keys, matrices[i]
            for t in range(count):
                # Of two streams, the first rule of cross-attention replaces this one for t = k.
                change = scaled(R[s, s]).mT @ A @ scaled(R[k, k]) if s != k == t else A @ R[k, t]
                added[s, t] = added[s, t] + change
        R = added
    wanted = streams.explained if explained is None else explained
    rows = [
        (r[:, None] @ R[streams.layers[i].queries, wanted])[:, 0] for r, i in zip(readouts, streams.read, strict=True)
    ]
    return sum(rows[1:], start=rows[0])


def _placed(
    streams: Streams, matrices: Sequence[Tensor], readouts: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices and readouts over all tokens of their streams: zero for tokens that a layer does not read."""
    found = []
    for layer, matrix in zip(streams.layers, matrices, strict=True):
        rows = _spread(matrix, -2, layer.queries_at, streams.sizes[layer.queries])
        found.append(_spread(rows, -1, layer.keys_at, streams.sizes[layer.keys]))
    read = [streams.layers[i] for i in streams.read]
    return found, [
        _spread(r, -1, one.queries_at, streams.sizes[one.queries]) for r, one in zip(readouts, read, strict=True)
    ]


def _spread(values: Tensor, axis: int, places: tuple[int, ...] | None, size: int) -> Tensor:
    """Values at their places along an axis, among zeros."""
    if places is None:
        return values
    shape = list(values.shape)
    shape[axis] = size
    return values.new_zeros(shape).index_copy(axis, torch.tensor(places, device=values.device), values)


def scaled(R: Tensor) -> Tensor:
    """The rows of R − I scaled to sum one, plus I; rows that are zero stay so."""
    own = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    rest = R - own
    total = rest.sum(-1, keepdim=True)
    return rest / torch.where(total == 0, 1.0, total) + own


def rolled_relevance(streams: Streams, matrices: Sequence[Tensor], readouts: Sequence[Tensor]) -> Tensor:
    """The row of rollout through all streams, shape (b, n of the explained stream).

    Each layer makes a token the sum of itself and of the tokens it attends to, with weights scaled to sum one. The row
    is carried from the last step to the first.

    Args:
        streams: The streams.
        matrices: Attention of each layer, shape (b, m, n), not negative.
        readouts: Weights over the queries of the layers that are read, shape (b, m) each.
    """
    matrices, readouts = _placed(streams, matrices, readouts)
    batch, like = len(matrices[0]), matrices[0]
    rows = [like.new_zeros(batch, n) for n in streams.sizes]
    for r, i in zip(readouts, streams.read, strict=True):
        rows[streams.layers[i].queries] = rows[streams.layers[i].queries] + r
    for step in reversed(streams.steps()):
        totals = {
            s: 1 + sum(matrices[i].sum(-1) for i in found) for s, found in by_stream(streams.layers, step).items()
        }
        shares = [row / totals[s] if s in totals else row for s, row in enumerate(rows)]
        rows = list(shares)
        for i in step:
            s, k = streams.layers[i].queries, streams.layers[i].keys
            rows[k] = rows[k] + (shares[s][:, None] @ matrices[i])[:, 0]
    return rows[streams.explained]


def by_stream(layers: Sequence[StreamLayer], step: Sequence[int]) -> dict[int, list[int]]:
    """The layers of a step by the stream that they change."""
    found: dict[int, list[int]] = {}
    for i in step:
        found.setdefault(layers[i].queries, []).append(i)
    return found
