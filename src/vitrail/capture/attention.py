"""The function mode that makes attention explicit.

Under ``AttentionMode`` every torch function a model calls is seen. The fused ``scaled_dot_product_attention``,
``multi_head_attention_forward`` and ``flex_attention`` are replaced by the explicit softmax(QKᵀ·scale + mask)·V where
a method needs what is inside, and left alone where none does. Attention that the model writes out itself is recognised
by `Recogniser`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention_reach import CausalKeys
from vitrail.capture.attention_recorder import AttentionRecorder
from vitrail.capture.explicit_attention import attention_logits, attention_weights, flex_logits, unpack
from vitrail.capture.operators import NORM
from vitrail.capture.recogniser import ADDED_MATMUL, DIV, MATMUL, MAY_START, SOFTMAX

#: Functions that compute nothing; models call them more often than any other.
ATTRIBUTES = {
    Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.is_floating_point, Tensor.is_complex, Tensor.data_ptr,
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "requires_grad", "is_cuda", "ndim")),
}  # fmt: skip


class AttentionMode(AttentionRecorder, TorchFunctionMode):
    """See every attention call of a model, and make it explicit where that is needed; see `AttentionRecorder`."""

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
            if func in MAY_START or not self.recogniser.followed.isdisjoint(map(id, args[:2])):
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
