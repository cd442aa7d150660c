"""Products with attention that is never in memory as a whole: its rows are computed again from queries and keys.

With Z = A·V the attention's output and dZ the gradient at it, dA = dZ·Vᵀ. So queries, keys, values and dZ, whose size
is linear in the number of tokens, determine every product that methods take with A and dA. Rows are computed in pieces
of bounded size; on CUDA, kernels do it without writing the matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vitrail import fast
from vitrail.capture.attention_products import AttentionProducts, logit_gradient
from vitrail.capture.explicit_attention import attention_logits, attention_weights

#: Most numbers of a piece of attention that is in memory at a time, by device.
PIECE = {"cpu": 2**19, "cuda": 2**25}


@dataclass(frozen=True)
class RowwiseProducts(AttentionProducts):
    """Products with the attention softmax(QKᵀ·scale + mask), recomputed row by row.

    Attributes:
        Q: Queries, shape (b, H, m, dh), in the model's precision.
        K: Keys, shape (b, H, n, dh).
        V: Values, shape (b, H, n, dh).
        dtype: Precision of the results.
        mask: What the model passed as mask, boolean or additive; it broadcasts to (b, H, m, n).
        causal: Whether each query sees only the keys up to its own position.
        scale: Factor of the logits; None for 1/√dh.
        valid: Which tokens are no padding, shape (b, n), or None; attention from and to padding counts as zero.
        dZ: Gradient at the attention's output, shape (b, H, m, dh), or None before the backward pass.
        known: What one product leaves for the next.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    dtype: torch.dtype
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None
    valid: Tensor | None = None
    dZ: Tensor | None = None
    known: dict[str, Tensor] = field(default_factory=dict)

    def with_gradient(self, dZ: Tensor) -> RowwiseProducts:
        """The same attention with the gradient of a target at its output."""
        return replace(self, dZ=dZ)

    def opposed(self) -> RowwiseProducts:
        """The same attention with the gradient of the negative target."""
        return replace(self, dZ=None if self.dZ is None else -self.dZ)

    def without_padding(self, valid: Tensor | None) -> RowwiseProducts:
        """The same attention between tokens that are no padding."""
        return replace(self, valid=valid)

    @property
    def size(self) -> tuple[int, int, int]:
        """Number of images, queries and keys."""
        return self.Q.shape[0], self.Q.shape[2], self.K.shape[2]

    def rows(self, v: Tensor) -> Tensor:
        """v·A for each head."""
        v = self._from_valid(v)
        total = self._kernel_rows(v, weighted=False)
        if total is None:
            total = self._zeros()
            for part, at in self._pieces(v):
                keys = self._keys(at)
                total[..., keys] += (part[:, None, None] @ self._attention(at, keys)).squeeze(-2)
        return self._to_valid(total)

    def mean_row(self, v: Tensor) -> Tensor:
        """v·Ā, with Ā the mean over heads."""
        return self.rows(v).mean(1)

    def mean_columns(self, u: Tensor) -> Tensor:
        """u·Āᵀ: shape (b, k, n) to (b, k, m)."""
        u = self._to_valid(u)
        options = {"mask": self.mask, "causal": self.causal, "scale": self.scale}
        found: Tensor | None = fast.kernel("attention_columns", self.Q, self.K, u, **options)
        if found is None:
            each = u.new_ones(self.Q.shape[0], self.Q.shape[2])
            found = torch.cat([self._columns(u, at) for _, at in self._pieces(each)], -1)
        return found if self.valid is None else found * self.valid[:, None]

    def row_sums(self) -> Tensor:
        """Sums of the rows of Ā: a softmax sums to one, but for masked rows and padding."""
        batch, queries, keys = self.size
        if self.mask is None and self.valid is None:
            return self.Q.new_ones(batch, queries, dtype=self.dtype)
        return self.mean_columns(self.Q.new_ones(batch, 1, keys, dtype=self.dtype)).squeeze(1)

    def gradient_rows(self, v: Tensor) -> Tensor:
        """v·dA = (v·dZ)·Vᵀ for each head."""
        moved = self._from_valid(v)[:, None, None] @ self._gradient.to(self.dtype)
        return self._to_valid((moved @ self.V.to(self.dtype).transpose(-2, -1)).squeeze(-2))

    def weighted_rows(self, v: Tensor) -> Tensor:
        """v·(dA ⊙ A)⁺ for each head."""
        v = self._from_valid(v)
        total = self._kernel_rows(v, weighted=True)
        if total is None:
            total = self._zeros()
            for part, at in self._pieces(v):
                keys = self._keys(at)
                dA = self._gradient_at(at, keys)
                M = dA.mul_(self._attention(at, keys)).clamp_min_(0)
                total[..., keys] += (part[:, None, None] @ M).squeeze(-2)
        return self._to_valid(total)

    def logit_gradient_rows(self, v: Tensor) -> Tensor:
        """v·dO for each head, with dO the gradient at the logits, between different tokens."""
        v = self._from_valid(v)
        total, position = self._zeros(), torch.arange(self.Q.shape[2], device=self.Q.device)
        for part, at in self._pieces(v):
            keys = self._keys(at)
            A = self._attention(at, keys)
            A = A if self.valid is None else A * self.valid[:, None, None, keys]
            dO = logit_gradient(A, self._gradient_at(at, keys))
            if self.Q.shape[2] == self.K.shape[2]:
                dO.masked_fill_(position[at][:, None] == position[keys], 0.0)
            total[..., keys] += (part[:, None, None] @ dO).squeeze(-2)
        return self._to_valid(total)

    def sigmoid_rows(self, v: Tensor) -> Tensor:
        """v·(dA⁺ ⊙ sigmoid(O)) for each head."""
        v = self._from_valid(v)
        total = self._zeros()
        for part, at in self._pieces(v):
            keys = self._keys(at)
            dA = self._gradient_at(at, keys).clamp_min_(0)
            M = dA.mul_(self._logits(at, keys)[0].to(self.dtype).sigmoid())
            total[..., keys] += (part[:, None, None] @ M).squeeze(-2)
        return self._to_valid(total)

    # -- rows in pieces ------------------------------------------------------------------------------------------

    def _zeros(self) -> Tensor:
        return self.Q.new_zeros(*self.Q.shape[:2], self.K.shape[2], dtype=self.dtype)

    def _pieces(self, v: Tensor) -> Iterator[tuple[Tensor, Tensor | slice]]:
        """The queries in pieces: what the vector has there, shape (b, rows), and where it is."""
        batch, heads, queries = self.Q.shape[:3]
        at_once = max(1, PIECE.get(self.Q.device.type, PIECE["cuda"]) // (batch * heads * self.K.shape[2]))
        read = _read_rows(v)
        if read is not None and 2 * len(read) <= queries:
            for some in torch.split(read, at_once):
                yield v[:, some], some
            return
        for start in range(0, queries, at_once):
            yield v[:, start : start + at_once], slice(start, min(start + at_once, queries))

    def _keys(self, at: Tensor | slice) -> slice:
        """The keys that some of the queries can see, from the first to the last one.

        Under a causal mask these are the keys up to the last query. A mask that is a tensor is searched on the CPU
        only, where it costs less than the products it saves; sliding windows leave few keys.
        """
        keys = self.K.shape[2]
        if self.causal:
            last = at.stop - 1 if isinstance(at, slice) else int(at.max())
            return slice(0, min(last + 1, keys))
        mask = self.mask
        if mask is None or mask.dtype != torch.bool or mask.device.type != "cpu" or mask.shape[-1] != keys:
            return slice(0, keys)
        rows = mask[..., at, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
        seen = rows.reshape(-1, keys).any(0).nonzero()
        return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 1)

    def _columns(self, u: Tensor, at: Tensor | slice) -> Tensor:
        """Vectors times the transposed rows of Ā, shape (b, k, rows)."""
        keys = self._keys(at)
        return u[..., keys] @ self._attention(at, keys).mean(1).transpose(-2, -1)

    def _attention(self, at: Tensor | slice, keys: slice) -> Tensor:
        """Rows of A for some keys, shape (b, H, rows, keys), computed as where all of it is kept."""
        return attention_weights(*self._logits(at, keys)).to(self.dtype)

    def _gradient_at(self, at: Tensor | slice, keys: slice) -> Tensor:
        """Rows of dA for some keys, shape (b, H, rows, keys)."""
        return (self._gradient[:, :, at] @ self.V[:, :, keys].transpose(-2, -1)).to(self.dtype)

    def _logits(self, at: Tensor | slice, keys: slice) -> tuple[Tensor, Tensor | None]:
        """Rows of the logits for some keys, shape (b, H, rows, keys), and their mask where a row may see none."""
        Q, K, mask = self.Q[:, :, at], self.K[:, :, keys], self.mask
        if self.causal:
            O = attention_logits(Q, K, None, self.scale)  # noqa: E741
            position = torch.arange(self.Q.shape[2], device=Q.device)[at]
            # All of the queries see the keys before the first of them; a mask is needed for the others alone.
            first = at.start if isinstance(at, slice) else 0
            hidden = position[:, None] < torch.arange(first, K.shape[2], device=Q.device)
            O[..., first:].masked_fill_(hidden, -torch.inf)
            return O, None
        if mask is not None:
            mask = mask[..., at, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
            mask = mask[..., keys] if mask.shape[-1] > 1 else mask
        return attention_logits(Q, K, mask, self.scale), mask

    # -- kernels -------------------------------------------------------------------------------------------------

    def _kernel_rows(self, v: Tensor, weighted: bool) -> Tensor | None:
        """The product by a kernel, or None where there is none for this attention or a vector with few entries."""
        if self.mask is not None or self.Q.device.type != "cuda":
            return None
        read = _read_rows(v)
        if read is not None and len(read) <= 16:
            return None
        scale = self.Q.shape[-1] ** -0.5 if self.scale is None else self.scale
        V, dZ = (self.V, self._gradient) if weighted else (None, None)
        found: Tensor | None = fast.kernel("attention_rows", self.Q, self.K, v, scale, V, dZ, self.known, self.causal)
        return None if found is None else found.to(self.dtype)

    # -- padding -------------------------------------------------------------------------------------------------

    def _from_valid(self, v: Tensor) -> Tensor:
        return v if self.valid is None else v * self.valid

    def _to_valid(self, result: Tensor) -> Tensor:
        return result if self.valid is None else result * self.valid[:, None]

    @property
    def _gradient(self) -> Tensor:
        if self.dZ is None:
            raise AttributeError(
                "attention_gradient was not kept in this pass: the method must name it in its registry line's needs"
            )
        return self.dZ


def _read_rows(v: Tensor) -> Tensor | None:
    """Where a vector that all images share is not zero, or None for other vectors.

    Methods start with how the head reads the tokens, often one token; what they go on with is nowhere zero.
    """
    if (len(v) > 1 and v.stride(0) != 0) or fast.recording():  # a recorded pass cannot wait for the answer
        return None
    return v[0].nonzero()[:, 0]
