"""The function mode that makes attention explicit.

Under ``AttentionMode`` every torch function a model calls is seen. The fused ``scaled_dot_product_attention``,
``multi_head_attention_forward`` and ``flex_attention`` are replaced by the explicit softmax(QKᵀ·scale + mask)·V where
a method needs what is inside, and left alone where none does. Attention that the model writes out itself is recognised
by `Recogniser`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention_products import CHECKED_UP_TO, attention_bytes
from vitrail.capture.attention_reach import AllowedKeys, CausalKeys, allowed_keys
from vitrail.capture.explicit_attention import attention_logits, attention_weights, causal_mask, flex_logits, unpack
from vitrail.capture.operators import NORM
from vitrail.capture.program import Program
from vitrail.capture.recogniser import (
    ADDED_MATMUL,
    DIV,
    EXP,
    LOG_SOFTMAX,
    MATMUL,
    SOFTMAX,
    Recogniser,
    merge_heads,
    split_heads,
)
from vitrail.capture.residual import ResidualStream, Tail
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.trace import Block

KeptBlocks = Mapping[str, frozenset[int]]
Edit = Callable[[Tensor], Tensor]
NOWHERE: frozenset[int] = frozenset()
#: Functions that compute nothing; models call them more often than any other.
ATTRIBUTES = {
    Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.is_floating_point, Tensor.is_complex, Tensor.data_ptr,
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "requires_grad", "is_cuda", "ndim")),
}  # fmt: skip
#: Functions that may begin a softmax the model writes out.
STARTS = EXP | LOG_SOFTMAX


class Gate:
    """A hook on queries, keys and values; while closed, no gradient passes through attention."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Zeros while closed, else the gradient unchanged."""
        return torch.zeros_like(gradient) if self.closed and gradient is not None else None


@dataclass
class Call:
    """One attention call, in the order in which the model made them.

    Attributes:
        block: What was kept of it.
        shape: (batch, heads, queries, keys); axes before the heads count as batch.
        grid: Spatial size of the last convolution before it, or None.
        Z: Its output before the projection, shape (b, H, m, dh), in the graph; kept only on request.
        V: Its values, shape (b, H, n, dh), in the graph; kept only on request.
        Q: Its queries, K its keys and O its logits, likewise; queries and keys where they were seen.
        beside: Whether the attention before it had not been added to the stream yet.
        product: Whether its queries and keys were seen: logits with other terms have no such pair.
        folded: Whether the heads were folded into the batch.
        allowed: Which keys each query may attend to, shape (b or 1, m, n), or None for all.
    """

    block: Block
    shape: tuple[int, int, int, int]
    grid: tuple[int, int] | None
    Z: Tensor | None = None
    V: Tensor | None = None
    Q: Tensor | None = None
    K: Tensor | None = None
    O: Tensor | None = None  # noqa: E741 - the papers' name for the logits of attention
    beside: bool = False
    product: bool = True
    folded: bool = False
    allowed: AllowedKeys | None = None


@dataclass(frozen=True)
class GraphGap:
    """The attention calls between which a pass builds no graph, as no gradient passes there.

    Attributes:
        after: The call after which the graph ends.
        until: The call after which a new one begins.
    """

    after: int
    until: int


class AttentionMode(TorchFunctionMode):
    """See every attention call of a model, and make it explicit where that is needed.

    Args:
        kept: For each kind of tensor (see ``TENSOR_KINDS``), the indices of the attention calls to keep it of. Those
            under ``rowwise`` keep queries, keys and values instead of A and A_mean where a fused function is called.
        batch: Number of inputs, to split a merged batch-and-heads axis.
        dtype: Precision of what is kept: products over a dozen layers lose their meaning in half precision.
        keep_output: Keep values and outputs of each call as nodes of the graph.
        edits: Functions that replace the attention of some calls before it is multiplied with the values.
        tail: Replaces what leaves the last block: from the outputs of all blocks, which are in the graph, to it.
        heads_first: Whether a merged axis holds all inputs of the first head first.
        from_embedding: Start the graph at the embeddings of a text's tokens.
        words: Of a text, the numbers of its tokens: the graph then starts at their embeddings alone, not at those of
            positions or of other inputs.
        cut_outputs: Make the result of each call a leaf of the graph, and keep its queries, keys and logits too.
        explicit: Make every attention explicit, also where nothing of it is kept, unless its matrices are large.
        program: Notes every function that the model calls, or None.
        values_of: Keep the values of this call as a node of the graph, in ``values``.
        gap: Where no graph is built; None for the whole pass.
        masks: Read which keys each query may attend to.
        results: Keep outputs of each call as nodes of the graph.
    """

    def __init__(
        self,
        kept: KeptBlocks,
        batch: int,
        dtype: torch.dtype = torch.float32,
        keep_output: bool = False,
        edits: Mapping[int, Edit] | None = None,
        tail: tuple[int, Tail] | None = None,
        heads_first: bool = False,
        from_embedding: bool = False,
        explicit: bool = False,
        program: Program | None = None,
        values_of: int | None = None,
        gap: GraphGap | None = None,
        masks: bool = True,
        results: bool = False,
        words: Tensor | None = None,
        cut_outputs: bool = False,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.nodes: dict[tuple[str, int], Tensor] = {}
        self.recogniser = Recogniser()
        self.gate = Gate()
        self.embeddings: list[tuple[Tensor, Tensor]] = []
        #: Convolutions after the first attention, and whether one before it reads overlapping patches.
        self.convolutions = 0
        self.overlapping = False
        #: Whether features of the input are read at sampled points, as deformable attention does.
        self.sampled = False
        #: The last function calls, where every attention is made explicit.
        self.recent_calls: deque[tuple[Tensor, Any, tuple[Any, ...]]] = deque(maxlen=256 if explicit else 0)
        self.program = program
        self.values: Tensor | None = None
        self._values_of = values_of
        self._gap = gap
        self._track_masks = masks
        self._results = results
        #: Masks by id, with the mask itself, so that its id is not reused: most layers of a model share one.
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._causal_masks: dict[tuple[int, int], Tensor] = {}
        self._kept = kept
        self._batch = batch
        self._dtype = dtype
        self._keep_output = keep_output
        self._heads_first = heads_first
        self._from_embedding = from_embedding or "dX" in kept
        self._words = words
        self._cut_outputs = cut_outputs
        self._grid: tuple[int, int] | None = None
        self._edits = edits or {}
        matrices = NOWHERE.union(*(kept.get(kind, NOWHERE) for kind in ("A", "A_mean", "O", "dA")))
        self._explicit = (matrices - kept.get("rowwise", NOWHERE)).union(self._edits)
        self._all_explicit = explicit
        self._norms: dict[int, Tensor] = {}
        self._candidates: dict[int, Tensor] = {}
        follows = ("stream", "branch", "norms", "value_path", "dX", "X")
        watched = tail is not None or any(kind in kept for kind in follows)
        self.stream = ResidualStream(kept, dtype, self.nodes, tail, keep_graph=keep_output) if watched else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in ATTRIBUTES:
            return func(*args, **kwargs)
        stream = self.stream
        if stream is not None:
            stream.before(func, args)
        handler = self.HANDLERS.get(func)
        if handler is not None:
            result = handler(self, func, *args, **kwargs)
        elif func is FLEX:
            result = self._flex(func, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
            if self.recogniser.waiting or func in STARTS:
                self._follow(func, args, kwargs, result)
        if stream is not None:
            result = stream.after(func, args, kwargs, result)
        if self.program is not None:
            self.program.note(func, args, kwargs, result)
        if self._all_explicit and isinstance(result, Tensor):
            self.recent_calls.append((result, func, args))
        return result

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        written = self.recogniser.written_softmax(func, args) if func in DIV else None
        if written is not None:
            self.recogniser.softmax(*written, result)
        else:
            self.recogniser.follow(func, args, kwargs, result)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _wants(self, kind: str, index: int) -> bool:
        return index in self._kept.get(kind, NOWHERE)

    def _node(self, kind: str, index: int, tensor: Tensor) -> Tensor:
        """Make a tensor one whose gradient can be computed; the graph starts here if nothing before needed one."""
        if kind == "dZ" and self._cut_outputs:
            return tensor.detach().requires_grad_()
        if not self._wants(kind, index):
            return tensor
        node = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        self.nodes[kind, index] = node
        return node

    def _weigh(self, index: int, A: Tensor) -> Tensor:
        """Attention weights as they are multiplied with the values."""
        edit = self._edits.get(index)
        return self._node("dA", index, A if edit is None else edit(A))

    def _is_explicit(self, index: int, Q: Tensor, K: Tensor) -> bool:
        """Whether a fused function is replaced; where nothing of it is kept, only if its matrices are not large."""
        if not self._all_explicit or index in self._explicit:
            return index in self._explicit
        return attention_bytes(1, Q.shape[-3], Q.shape[-2], K.shape[-2]) <= CHECKED_UP_TO

    def _gated(self, index: int, *tensors: Tensor) -> None:
        """Put the gate in front of an attention."""
        if self._wants("cut", index):
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self.gate)  # type: ignore[no-untyped-call]

    def _keep(
        self,
        index: int,
        Q: Tensor | None,
        K: Tensor | None,
        V: Tensor,
        A: Tensor | None,
        O: Tensor | None,  # noqa: E741
        Z: Tensor,
        shape: tuple[int, int, int, int],
        folded: bool = False,
        mask: AllowedKeys | None = None,
    ) -> None:
        block = Block()
        heads = shape[1]
        for kind, tensor in (("Q", Q), ("K", K), ("V", V), ("A", A), ("O", O)):
            if tensor is not None and self._wants(kind, index):
                value = tensor.detach()
                if kind in ("K", "V") and value.dim() == 4 and value.shape[1] != heads:
                    value = value.repeat_interleave(heads // value.shape[1], 1)  # grouped or shared keys and values
                block.keep(kind, value, self._dtype)
        if A is not None and self._wants("A_mean", index):
            block.A_mean = A.detach().mean(1).to(self._dtype)
        norm = self._norms.get(V.shape[-3] * V.shape[-1], self._norms.get(max(self._norms, default=0)))
        self._norms = {}
        if norm is not None and self._wants("Y", index):
            block.Y = norm.detach().to(self._dtype)
        if norm is not None and self._wants("dY", index):
            self.nodes["dY", index] = norm
        beside = self.stream is not None and self.stream.in_branch
        Z_graph, V_graph = Z if self._keep_output or self._results else None, V if self._keep_output else None
        allowed = None if mask is None or not self._track_masks else self._allowed(mask, shape[2:], mask is O)
        pair = (Q, K, O) if self._cut_outputs else (None, None, None)
        self.calls.append(
            Call(block, shape, self._grid, Z_graph, V_graph, *pair, beside, Q is not None, folded, allowed)
        )
        if index == self._values_of:
            self.values = V
        if self._gap is not None and index in (self._gap.after, self._gap.until):
            torch.set_grad_enabled(index == self._gap.until)
        if self.stream is not None:
            self.stream.attended(index, block, V)

    def _allowed(self, mask: AllowedKeys, size: tuple[int, int], logits: bool) -> AllowedKeys:
        """Which keys each query may attend to, shape (b or 1, m, n); masks that layers share are read once."""
        if isinstance(mask, CausalKeys):
            return mask
        if logits:
            return allowed_keys(mask)
        if id(mask) not in self._masks:
            found = allowed_keys(mask)
            self._masks[id(mask)] = (mask, found.expand(len(found), *size))
        return self._masks[id(mask)][1]

    def _keep_products(
        self, index: int, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, causal: bool, scale: float | None
    ) -> None:
        """Keep what products with the attention of the last call are computed from."""
        if self._wants("rowwise", index):
            repeats = Q.shape[-3] // K.shape[-3]  # grouped or shared keys and values
            K, V = (t if repeats == 1 else t.repeat_interleave(repeats, -3) for t in (K, V))
            mask = None if mask is None else mask.detach()
            products = RowwiseProducts(Q.detach(), K.detach(), V.detach(), self._dtype, mask, causal, scale)
            self.calls[-1].block.products = products

    def _split(self, tensor: Tensor) -> Tensor:
        return split_heads(tensor, self._batch, self._heads_first)

    def _merge(self, tensor: Tensor) -> Tensor:
        return merge_heads(tensor, self._heads_first)

    def _starts_branch(self, out: Tensor) -> Tensor:
        if self.stream is not None:
            self.stream.branch_from(out)
        return out

    # -- fused kernels -------------------------------------------------------------------------------------------

    def _fused(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        index = len(self.calls)
        merged = query.dim() == 3
        if merged:
            query, key, value = (self._split(t) for t in (query, key, value))
            attn_mask = self._split_mask(attn_mask)
        self._gated(index, query, key, value, *([] if attn_mask is None else [attn_mask]))
        query = self._node("dQ", index, query)
        if self._is_explicit(index, query, key):
            if enable_gqa and key.shape[-3] != query.shape[-3]:
                repeats = query.shape[-3] // key.shape[-3]
                key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
            mask = self._causal(query, key) if is_causal else attn_mask
            Z = self._attend(index, query, key, value, attention_logits(query, key, mask, scale), mask, merged)
        else:
            Z = func(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
            Z = self._node("dZ", index, Z)
            keys = CausalKeys(query.shape[-2], key.shape[-2]) if is_causal else attn_mask
            self._keep(index, query, key, value, None, None, Z, _shape(query, key), merged, keys)
            self._keep_products(index, query, key, value, attn_mask, is_causal, scale)
        return self._starts_branch(self._merge(Z) if merged else Z)

    def _attend(
        self,
        index: int,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        O: Tensor,  # noqa: E741
        mask: Tensor | None,
        folded: bool = False,
    ) -> Tensor:
        """Softmax of the logits times the values, kept as far as needed."""
        A = self._weigh(index, attention_weights(O, mask))
        Z = self._node("dZ", index, A.to(V.dtype) @ V)
        self._keep(index, Q, K, V, A, O, Z, _shape(Q, K), folded, mask)
        return Z

    def _causal(self, Q: Tensor, K: Tensor) -> Tensor:
        """The causal mask of queries and keys, the same tensor for all calls of one size."""
        size = (Q.shape[-2], K.shape[-2])
        if size not in self._causal_masks:
            self._causal_masks[size] = causal_mask(Q, K)
        return self._causal_masks[size]

    def _split_mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.dim() < 3:
            return mask
        return self._split(mask) if mask.shape[0] > 1 else mask[None]

    def _multi_head(self, func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        packed = unpack(*args, **kwargs)
        # (tokens, batch, width) -> (batch, heads, tokens, width of a head)
        Q, K, V = (
            F.linear(t, w, b).view(*t.shape[:2], packed.heads, -1).permute(1, 2, 0, 3)
            for t, w, b in zip(packed.inputs, packed.weights, packed.biases, strict=True)
        )
        mask = packed.mask(Q)
        index = len(self.calls)
        self._gated(index, Q, K, V)
        Q = self._node("dQ", index, Q)
        A = None
        if packed.wanted[0] or self._is_explicit(index, Q, K):
            O = attention_logits(Q, K, mask, None)  # noqa: E741
            A = self._weigh(index, attention_weights(O, mask))
            Z = self._node("dZ", index, A.to(V.dtype) @ V)
            self._keep(index, Q, K, V, A, O, Z, _shape(Q, K), mask=mask)
        else:
            Z = self._node("dZ", index, F.scaled_dot_product_attention(Q, K, V, attn_mask=mask))
            self._keep(index, Q, K, V, None, None, Z, _shape(Q, K), mask=mask)
            self._keep_products(index, Q, K, V, mask, False, None)
        out = packed.project(Z)
        if self.stream is not None:
            self.stream.projected(*packed.out)
            self.stream.made_values(packed.inputs[2].transpose(0, 1), packed.weights[2])
        return self._starts_branch(out), packed.returned(A)

    def _flex(self, func: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Any:
        """The higher-order operator behind ``flex_attention``; it returns the output and its log-sum-exp."""
        index = len(self.calls)
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1:
            key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
        self._gated(index, query, key, value)
        query = self._node("dQ", index, query)
        O, mask = flex_logits(query, key, *rest, **kwargs)  # noqa: E741
        Z = self._attend(index, query, key, value, O, mask)
        empty = O.detach().logsumexp(-1)
        return self._starts_branch(Z), empty, empty

    # -- attention that the model writes out ---------------------------------------------------------------------

    def _product(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        met = self.recogniser.values(func, args, kwargs)
        if met is None:
            return self._data_product(func, args, kwargs)
        index = len(self.calls)
        A, V, O = (self._split(t) for t in (met.A, met.V, met.O))  # noqa: E741
        self._gated(index, met.softmax.O, V)
        A = self._weigh(index, A)
        Z = self._node("dZ", index, torch.matmul(A, V))
        pair = met.softmax.queries_and_keys()
        if pair is not None and id(pair[0]) in self._candidates:
            self.nodes["dQ", index] = self._candidates[id(pair[0])]
        self._candidates.clear()
        Q, K = (None, None) if pair is None else (self._split(pair[0]), self._split(pair[1]))
        folded = met.A.dim() == 3
        self._keep(index, Q, K, V, A, O, Z, _shape(A, V), folded, O)
        return self._starts_branch(met.restore(self._merge(Z) if folded else Z))

    def _data_product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """A product that may turn out to be QKᵀ: gradients at queries are taken at its first factor."""
        factors = self.recogniser.factors(func, args, kwargs)
        if factors is None:
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        index = len(self.calls)
        left, right = factors.left, factors.right
        if self._wants("dQ", index):
            left, right = (self._candidate(t) for t in (left, right))
        result = factors.restore(torch.matmul(left, right.mT))
        self.recogniser.product(left, right, factors.order, result)
        return result

    def _candidate(self, factor: Tensor) -> Tensor:
        """A factor that may turn out to be the queries, as a node of the graph, heads folded into the batch or not.

        The model's own tensor is the node, so that all it does with the queries counts, also terms of positions.
        """
        if not factor.requires_grad:
            factor = factor.detach().requires_grad_() if isinstance(factor, nn.Parameter) else factor.requires_grad_()
        self._candidates[id(factor)] = factor
        return factor

    def _added_product(
        self,
        func: Any,
        input: Tensor,  # noqa: A002 - torch's names: some models pass them by name
        batch1: Tensor,
        batch2: Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> Tensor:
        """``baddbmm`` written as what it is; with beta=0 it ignores its first argument."""
        out = self._product(torch.bmm, batch1, batch2)
        followed: Tensor = out * alpha
        self._follow(Tensor.mul, (out, alpha), {}, followed)
        if beta == 0:
            return followed
        total: Tensor = followed + beta * input
        self._follow(Tensor.add, (followed, input), {}, total)
        return total

    def _softmax(self, func: Any, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = func(logits, *args, **kwargs)
        axis = kwargs.get("dim", args[0] if args else None)
        if logits.dim() >= 3 and isinstance(axis, int):
            self.recogniser.softmax(logits, axis, result)
        return result

    # -- feature maps --------------------------------------------------------------------------------------------

    def _normalise(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Remember the last norm of each width: the one over the stream before an attention is its feature map.

        Norms of queries and keys run over the width of a head, those where patches are merged over four patches.
        """
        result: Tensor = func(*args, **kwargs)
        index = len(self.calls)
        if self._wants("dY", index) and not result.requires_grad:
            result = result.detach().requires_grad_()
        if self._wants("Y", index) or self._wants("dY", index):
            self._norms[result.shape[-1]] = result
        return result

    # -- the patch embedding -------------------------------------------------------------------------------------

    def _embed(self, func: Any, *args: Any, **kwargs: Any) -> Tensor:
        """A text has no pixels for the graph to start at; the embeddings of its tokens serve."""
        result: Tensor = func(*args, **kwargs)
        if self._from_embedding and not result.requires_grad and self._starts_at(args[0]):
            result = result.detach().requires_grad_()
            self.embeddings.append((args[0], result))
            return result.clone()  # models add to it in place, which a leaf does not allow
        return result

    def _starts_at(self, ids: Tensor) -> bool:
        """Whether the graph starts at the embeddings of these tokens."""
        words = self._words
        if words is None or ids is words:
            return True
        if ids.numel() != words.numel() or ids.device != words.device:
            return False
        if ids.data_ptr() == words.data_ptr():
            return True
        same = ids if ids.shape == words.shape else ids.mT if ids.dim() == 2 and ids.mT.shape == words.shape else None
        return same is not None and bool((same == words).all())

    def _convolve(self, func: Any, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
        result: Tensor = func(input, weight, *args, **kwargs)
        if result.dim() == 4:
            self._grid = (result.shape[2], result.shape[3])
        if self.calls:
            self.convolutions += 1
        else:
            stride = args[1] if len(args) > 1 else kwargs.get("stride", 1)
            strides = (stride, stride) if isinstance(stride, int) else tuple(stride)
            self.overlapping = self.overlapping or strides != tuple(weight.shape[2:])
        return result

    def _sample(self, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
        self.sampled = self.sampled or input.requires_grad
        result: Tensor = func(input, *args, **kwargs)
        return result

    # Functions, not bound methods: a mode that held its own methods would keep itself, and the graph, alive.
    HANDLERS: ClassVar[dict[Any, Callable[..., Any]]] = {
        F.scaled_dot_product_attention: _fused,
        F.multi_head_attention_forward: _multi_head,
        F.conv2d: _convolve,
        torch.conv2d: _convolve,
        torch.einsum: _product,
        F.embedding: _embed,
        F.grid_sample: _sample,
        **dict.fromkeys(NORM, _normalise),
        **dict.fromkeys(SOFTMAX, _softmax),
        **dict.fromkeys(MATMUL, _product),
        **dict.fromkeys(ADDED_MATMUL, _added_product),
    }


def _flex_operator() -> Any:
    return getattr(torch.ops.higher_order, "flex_attention", None)


FLEX: Any = _flex_operator()


def _shape(queries: Tensor, keys: Tensor) -> tuple[int, int, int, int]:
    return (prod(queries.shape[:-3]), queries.shape[-3], queries.shape[-2], keys.shape[-2])
