"""The tensors that one forward and backward pass kept, as methods read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.attention_products import AttentionProducts, DenseProducts
from vitrail.capture.layout import Layout, index_tensor
from vitrail.capture.streams import Streams
from vitrail.errors import NotApplicableError
from vitrail.fast import fast_paths_disabled

ALL = slice(None)
LAST = slice(-1, None)

#: What a method may ask of a block. ``stream`` stands for the residual stream and the projections
#: (X, X_mid, F, Wo, bo, gamma, branch_scale), ``X`` for the stream alone, ``norms`` for the normalised stream (X_norm,
#: X_mid_norm and the gains of norms that follow a sum), ``value_path`` for what made V (V_in, Wv), ``dA``, ``dQ``,
#: ``dX`` and ``dY`` for gradients, ``dZ`` for the gradient at the attention's output, ``cut`` for a backward pass that
#: may skip attention, ``truncated`` for what the model would return if it ended with the block, and its gradient at A.
#: ``attention``, ``attention_mean``, ``attention_gradient`` and ``attention_logits`` stand for
#: products with A, its mean over heads, dA and O, without keeping a matrix, see `AttentionProducts`.
TENSOR_KINDS = (
    "attention",
    "attention_mean",
    "attention_gradient",
    "attention_logits",
    "A",
    "A_mean",
    "O",
    "Q",
    "K",
    "V",
    "Y",
    "dA",
    "dQ",
    "dX",
    "dY",
    "dZ",
    "X",
    "stream",
    "branch",
    "norms",
    "value_path",
    "cut",
    "truncated",
)

Needs = Mapping[str, slice]


class Block:
    """One attention layer with the MLP that follows it, as one pass saw them.

    Only what some method needs is set; reading anything else raises an error that says so. Shapes: b images,
    H heads, n tokens (m queries, which differ from n only in an attention pool), d width, dh = width of a head.

    Attributes:
        A: Attention after softmax, shape (b, H, m, n); rows are queries.
        A_mean: Its mean over heads, shape (b, m, n).
        O: Logits before softmax, after scale, bias and mask, shape (b, H, m, n).
        Q: Queries as they enter the dot product, shape (b, H, m, dh).
        K: Keys, shape (b, H, n, dh).
        V: Values, shape (b, H, n, dh).
        dA: Gradient of the target at A.
        dQ: Gradient of the target at Q.
        dZ: Gradient of the target at A·V, the attention's output before its projection, shape (b, H, m, dh).
        Y: Result of the norm in front of the attention: the feature map of the block, shape (b, n, d), or
            (b, rows, columns, d) where the model keeps it so.
        dY: Gradient of the target at Y.
        dX: Gradient of the target at X.
        branch: What the attention adds to the stream, LayerScale included, in the shape of X.
        X: Residual stream entering the attention sub-layer, shape (b, n, d).
        X_norm: X after the norm in front of the attention, if there is one.
        X_mid: Residual stream entering the MLP sub-layer; X where attention and MLP are parallel.
        X_mid_norm: X_mid after the norm in front of the MLP, if there is one.
        F: What the MLP adds to the stream, LayerScale included, or None where no MLP was seen.
        Wo: Output projection, shape (d, H·dh), as torch's Linear stores it.
        bo: Its bias or None.
        gamma: LayerScale of the attention branch, shape (d,), or None.
        F_gamma: LayerScale of the MLP branch, shape (d,), or None.
        branch_scale: Where the attention's branch is normalised before it is added, what it is multiplied with at
            each token besides ``gamma``, shape (b, n), or None.
        norm_gain: Gain of the norm applied after the attention's sum (post-norm models), or None.
        F_norm_gain: Gain of the norm applied after the MLP's sum (post-norm models), or None.
        V_in: What the value projection read, shape (b, n, d).
        Wv: Value projection, shape (H·dh, d).
        pool: Whether this is an attention pool: few queries that are not tokens, and no skip connection.
    """

    A: Tensor
    A_mean: Tensor
    O: Tensor  # noqa: E741 - the papers' name for the logits of attention
    Q: Tensor
    K: Tensor
    V: Tensor
    dA: Tensor
    dQ: Tensor
    dZ: Tensor
    Y: Tensor
    dY: Tensor
    dX: Tensor
    branch: Tensor
    X: Tensor
    X_norm: Tensor | None
    X_mid: Tensor
    X_mid_norm: Tensor | None
    F: Tensor | None
    Wo: Tensor
    bo: Tensor | None
    gamma: Tensor | None
    F_gamma: Tensor | None
    branch_scale: Tensor | None
    norm_gain: Tensor | None
    F_norm_gain: Tensor | None
    V_in: Tensor
    Wv: Tensor

    #: Attention whose matrix was not kept, or None.
    products: AttentionProducts | None = None
    #: Tensors in half precision, and the precision in which they are read.
    _narrow: Mapping[str, tuple[Tensor, torch.dtype]] = {}

    def __init__(self, pool: bool = False) -> None:
        self.pool = pool

    def keep(self, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
        """Set a tensor, in a precision; one in half precision is converted when it is first read.

        Methods that multiply it with weights of the same precision read it by ``narrow`` and never convert it.
        """
        tensor = tensor.detach()
        if tensor.element_size() > 2 or tensor.dtype == dtype or fast_paths_disabled():
            setattr(self, name, tensor.to(dtype))
            if name in self._narrow:
                self._narrow = {other: kept for other, kept in self._narrow.items() if other != name}
        else:
            vars(self).pop(name, None)
            self._narrow = {**self._narrow, name: (tensor, dtype)}

    def __contains__(self, name: str) -> bool:
        """Whether a tensor was kept."""
        return name in self._narrow or vars(self).get(name) is not None

    def narrow(self, name: str) -> Tensor:
        """A tensor in the model's own precision, where that is half precision; otherwise as it is."""
        return self._narrow[name][0] if name in self._narrow else getattr(self, name)

    def change(self, names: Iterable[str], function: Callable[[Tensor], Tensor]) -> None:
        """Replace some tensors by a function of them, as far as they were kept; it must not depend on precision."""
        for name in names:
            if isinstance(vars(self).get(name), Tensor):
                setattr(self, name, function(vars(self)[name]))
            if name in self._narrow:
                tensor, dtype = self._narrow[name]
                self._narrow = {**self._narrow, name: (function(tensor), dtype)}

    @property
    def attention(self) -> AttentionProducts:
        """Products of vectors with A and dA; works whether the matrices were kept or not."""
        if self.products is not None:
            return self.products
        return DenseProducts(*(getattr(self, name) if name in self else None for name in ("A", "A_mean", "dA", "O")))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._narrow:
            tensor, dtype = self._narrow[name]
            setattr(self, name, tensor.to(dtype))
            return vars(self)[name]
        if name in ("Y", "dY"):
            raise NotApplicableError(
                "no feature map was found: nothing is normalised in front of the attention of this block; "
                "use rise, occlusion or an input gradient instead"
            )
        raise AttributeError(f"{name} was not kept in this pass: the method must name it in its registry line's needs")

    def opposed(self) -> Block:
        """The same block with the gradients of the negative target."""
        block = self.having(**({} if self.products is None else {"products": self.products.opposed()}))
        block.change([name for name in TENSOR_KINDS if name.startswith("d")], torch.neg)
        return block

    def having(self, **tensors: Tensor | AttentionProducts) -> Block:
        """The same block with more tensors set; what it had is shared, not copied."""
        block = copy(self)
        if self._narrow:
            vars(block)["_narrow"] = {name: kept for name, kept in self._narrow.items() if name not in tensors}
        for name, tensor in tensors.items():
            setattr(block, name, tensor)
        return block


@dataclass(frozen=True)
class Trace:
    """A pass: its blocks in order (an attention pool, if any, comes last), and how the head reads the tokens.

    Attributes:
        blocks: One entry a block.
        readout: Weights r over the queries of the last block, shape (m,): how the head reads them; shape (b, m) where
            a head averages over texts of different lengths.
        layout: Where the patches stand among the tokens.
        logits: What the model said, shape (b, C), or None for outputs that are not logits.
        device: Where its tensors are.
        notes: Where a method puts intermediate results, or None where they are not kept.
        valid: Which tokens are no padding, shape (b, n), or None where all are. Attention and its gradient are zero
            from and to padding, so sums need no care; means do, see ``mean``.
        probability: Probability of the explained class, shape (b,), detached; None where the target is no class.
        streams: Streams of tokens that the blocks join, or None for one stream.
        readouts: With streams, for each of ``streams.read`` the weights over its queries, shape (b, m).
    """

    blocks: tuple[Block, ...]
    readout: Tensor
    layout: Layout
    logits: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    notes: dict[str, list[Tensor]] | None = None
    valid: Tensor | None = None
    probability: Tensor | None = None
    streams: Streams | None = None
    readouts: tuple[Tensor, ...] = ()

    def note(self, name: str, tensor: Tensor) -> None:
        """Keep an intermediate result; several results under one name are one entry for each block."""
        if self.notes is not None:
            self.notes.setdefault(name, []).append(tensor)

    def opposed(self) -> Trace:
        """The same pass with the gradients of the negative target, which is what counts against the class."""
        return replace(self, blocks=tuple(block.opposed() for block in self.blocks))

    def reading(self, queries: int, tokens: int) -> Tensor:
        """The readout over the queries of any block, shape (queries,).

        Behind an attention pool the last block's queries are not tokens; in the blocks below it all patches are read
        alike.
        """
        if queries == self.readout.shape[-1]:
            return self.readout
        r = self.readout.new_zeros(queries)
        patches = tuple(token for token in self.layout.patch_tokens(tokens) if token >= 0)
        r.index_fill_(0, index_tensor(patches, r.device), 1 / len(patches))
        return r

    def evenly(self, queries: int) -> Tensor:
        """Weights that average over the queries of a block, shape (queries,), or (b, queries) with padding left out."""
        if self.valid is None or self.valid.shape[-1] != queries:
            return self.readout.new_full((queries,), 1 / queries)
        return self.valid.to(self.readout) / self.valid.sum(-1, keepdim=True)

    def patches(self, tokens: Tensor, axis: int = -1) -> Tensor:
        """The patches, row by row, along an axis that holds all tokens."""
        return self.layout.patches(tokens, axis)

    def on_tokens(self, patches: Tensor, tokens: int) -> Tensor:
        """The inverse of ``patches``: shape (…, S) to (…, n), zero at tokens that are no patches."""
        placed = self.layout.patch_tokens(tokens)
        cells = tuple(cell for cell, token in enumerate(placed) if token >= 0)
        inside = index_tensor(tuple(token for token in placed if token >= 0), patches.device)
        return patches.new_zeros(*patches.shape[:-1], tokens).index_copy(
            -1, inside, patches if len(cells) == len(placed) else patches[..., index_tensor(cells, patches.device)]
        )

    def mean(self, tokens: Tensor) -> Tensor:
        """Mean over the last axis, which holds all tokens or the patches, shape (b, …, n); padding is left out."""
        if self.valid is None:
            return tokens.mean(-1)
        valid = self.valid if tokens.shape[-1] == self.valid.shape[-1] else self.patches(self.valid)
        valid = valid.view(len(valid), *[1] * (tokens.dim() - 2), -1)
        return (tokens * valid).sum(-1) / valid.sum(-1)


def blocks_to_keep(needs: Iterable[Needs], blocks: int) -> dict[str, frozenset[int]]:
    """The union of what several methods need, as block indices.

    Example:
        >>> blocks_to_keep([{"A": ALL}, {"A": LAST, "dQ": LAST}], blocks=3)
        {'A': frozenset({0, 1, 2}), 'dQ': frozenset({2})}
    """
    wanted: dict[str, frozenset[int]] = {}
    for need in needs:
        for kind, where in need.items():
            if kind not in TENSOR_KINDS:
                raise KeyError(f"unknown need {kind!r}; known: {', '.join(TENSOR_KINDS)}")
            wanted[kind] = wanted.get(kind, frozenset()) | frozenset(range(blocks)[where])
    return {kind: where for kind, where in wanted.items() if where}
