"""The mode that makes attention explicit.

Under ``AttentionMode`` every torch function a model calls passes by here. Three of them are doors to
attention: the fused ``scaled_dot_product_attention``, ``multi_head_attention_forward``, and a ``softmax`` whose
result is multiplied into values. The first two are replaced by the explicit softmax(QKᵀ·scale + mask)·V where
somebody asked for what is inside, and left alone where nobody did; the third is already explicit and only noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.capture.fused import attention_logits, attention_weights, causal_mask
from vitrail.capture.packed import unpack
from vitrail.capture.residual import NORM, ResidualStream, Tail
from vitrail.capture.trace import Block

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
# Functions whose result is the attention itself, only relabelled: a copy, another type, dropout that is off.
SAME = {F.dropout, torch.dropout, Tensor.to, Tensor.type_as, Tensor.float, Tensor.contiguous, Tensor.clone}
# Functions that may swap the last two axes, as where features come before tokens and values before attention.
MT: Any = Tensor.mT.__get__  # type: ignore[attr-defined]
TURN = {Tensor.transpose, torch.transpose, Tensor.swapaxes, torch.swapaxes, MT}
# Functions that may fold the heads into the batch.
FOLD = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten}

Plan = Mapping[str, frozenset[int]]
Edit = Callable[[Tensor], Tensor]
NOWHERE: frozenset[int] = frozenset()


class Gate:
    """A hook before queries, keys and values; while closed, no gradient passes through attention."""

    def __init__(self) -> None:
        self.closed = False

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """What goes on: nothing while closed, everything else."""
        return torch.zeros_like(gradient) if self.closed else None


@dataclass
class Call:
    """One attention call, in the order the model made them.

    Attributes:
        block: What was kept of it.
        shape: (batch, heads, queries, keys); axes before the heads count as batch.
        grid: Spatial size of the last convolution seen before it, or None.
        Z: Its output before the projection, shape (b, H, m, dh), kept only on request.
        beside: Whether the attention before it had not been added to the stream yet.
        product: Whether its queries and keys were seen: logits with other products in them have no such pair.
    """

    block: Block
    shape: tuple[int, int, int, int]
    grid: tuple[int, int] | None
    Z: Tensor | None = None
    beside: bool = False
    product: bool = True


@dataclass
class _Scores:
    """A product that may turn out to be QKᵀ, until a softmax claims it."""

    result: Tensor
    Q: Tensor
    K: Tensor


@dataclass
class _Pending:
    """A softmax that may turn out to be attention, until its result meets the values."""

    A: Tensor
    O: Tensor  # noqa: E741
    scores: _Scores | None
    alias: Tensor
    turned: Tensor | None = None


class AttentionMode(TorchFunctionMode):
    """See, and where asked open, every attention call of a model.

    Args:
        plan: For each kind of tensor (see ``KINDS``), the indices of the attention calls to keep it of.
        batch: Number of inputs, to split a merged batch-and-heads axis.
        dtype: Precision of what is kept: products over a dozen layers lose their meaning in half precision.
        keep_output: Keep each call's output Z as a node of the graph; used once, to find the readout.
        edits: Functions that replace the attention of some calls before it meets the values.
        tail: Replaces what leaves the last block: from the outputs of all blocks, which are in the graph, to it.
    """

    def __init__(
        self,
        plan: Plan,
        batch: int,
        dtype: torch.dtype = torch.float32,
        keep_output: bool = False,
        edits: Mapping[int, Edit] | None = None,
        tail: tuple[int, Tail] | None = None,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.nodes: dict[tuple[str, int], Tensor] = {}
        self.unread = 0
        self._plan = plan
        self._batch = batch
        self._dtype = dtype
        self._keep_output = keep_output
        self._grid: tuple[int, int] | None = None
        self._scores: _Scores | None = None
        self._pending: _Pending | None = None
        self._edits = edits or {}
        self._opened = NOWHERE.union(self._edits, *(plan.get(kind, NOWHERE) for kind in ("A", "A_mean", "O", "dA")))
        self.gate = Gate()
        self._norms: dict[int, Tensor] = {}
        follows = ("stream", "branch", "norms", "value_path", "dX")
        watched = tail is not None or any(kind in plan for kind in follows)
        self.stream = ResidualStream(plan, dtype, self.nodes, tail) if watched else None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        stream = self.stream
        if stream is not None:
            stream.before(func, args)
        door = self.DOORS.get(func)
        if door is None:
            result = func(*args, **kwargs)
            if self._scores is not None or self._pending is not None:
                self._relabel(func, args, result)
        else:
            result = door(self, func, *args, **kwargs)
        if stream is not None:
            result = stream.after(func, args, kwargs, result)
        return result

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _wants(self, kind: str, index: int) -> bool:
        return index in self._plan.get(kind, NOWHERE)

    def _node(self, kind: str, index: int, tensor: Tensor) -> Tensor:
        """Make a tensor one that gradients can be asked of; the graph starts here if nothing before it needed one."""
        if not self._wants(kind, index):
            return tensor
        node = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        self.nodes[kind, index] = node
        return node

    def _weigh(self, index: int, A: Tensor) -> Tensor:
        """Attention weights as the values will meet them."""
        edit = self._edits.get(index)
        return self._node("dA", index, A if edit is None else edit(A))

    def _gated(self, index: int, *tensors: Tensor) -> None:
        """Put the gate before what enters an attention."""
        if self._wants("cut", index):
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self.gate)  # type: ignore[no-untyped-call]

    def _keep(self, index: int, Q: Tensor | None, K: Tensor | None, V: Tensor, A: Tensor | None, O: Tensor | None,  # noqa: E741
              Z: Tensor, shape: tuple[int, int, int, int]) -> None:  # fmt: skip
        block = Block()
        for kind, tensor in (("Q", Q), ("K", K), ("V", V), ("A", A), ("O", O)):
            if tensor is not None and self._wants(kind, index):
                setattr(block, kind, tensor.detach().to(self._dtype))
        if A is not None and self._wants("A_mean", index):
            block.A_mean = A.detach().mean(1).to(self._dtype)
        norm = self._norms.get(V.shape[-3] * V.shape[-1], self._norms.get(max(self._norms, default=0)))
        self._norms = {}
        if norm is not None and self._wants("Y", index):
            block.Y = norm.detach().to(self._dtype)
        if norm is not None and self._wants("dY", index):
            self.nodes["dY", index] = norm
        beside = self.stream is not None and self.stream.in_branch
        self.calls.append(Call(block, shape, self._grid, Z if self._keep_output else None, beside, Q is not None))
        if self.stream is not None:
            self.stream.attended(index, block, V)

    # -- first door ----------------------------------------------------------------------------------------------

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
        merged = query.dim() == 3  # some models fold the heads into the batch
        if merged:
            query, key, value = (self._split(t) for t in (query, key, value))
            attn_mask = self._unfold_mask(attn_mask)
        self._gated(index, query, key, value)
        query = self._node("dQ", index, query)
        A = O = None  # noqa: E741
        if index in self._opened:
            if enable_gqa and key.shape[-3] != query.shape[-3]:
                repeats = query.shape[-3] // key.shape[-3]
                key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
            mask = causal_mask(query, key) if is_causal else attn_mask
            O = attention_logits(query, key, mask, scale)  # noqa: E741
            A = self._weigh(index, attention_weights(O, mask))
            Z = A.to(value.dtype) @ value
        else:
            Z = func(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        self._keep(index, query, key, value, A, O, Z, _shape(query, key))
        out = Z.flatten(0, 1) if merged else Z
        if self.stream is not None:
            self.stream.branch_from(out)
        return out

    def _unfold_mask(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.dim() < 3:
            return mask
        return self._split(mask) if mask.shape[0] > 1 else mask[None]

    # -- second door ---------------------------------------------------------------------------------------------

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
        A = O = None  # noqa: E741
        if packed.wanted[0] or index in self._opened:
            O = attention_logits(Q, K, mask, None)  # noqa: E741
            A = self._weigh(index, attention_weights(O, mask))
            Z = A.to(V.dtype) @ V
        else:
            Z = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
        self._keep(index, Q, K, V, A, O, Z, _shape(Q, K))
        out = packed.project(Z)
        if self.stream is not None:
            self.stream.projected(*packed.out)
            self.stream.made_values(packed.inputs[2].transpose(0, 1), packed.weights[2])
            self.stream.branch_from(out)
        return out, packed.returned(A)

    # -- third door ----------------------------------------------------------------------------------------------

    def _matmul(self, func: Any, left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
        pending = self._pending
        if pending is not None and left is pending.alias:
            return self._meet_values(func, pending, left, right, kwargs)
        if pending is not None and right is pending.turned:
            out = self._meet_values(func, pending, pending.alias, left.transpose(-2, -1), kwargs).transpose(-2, -1)
            if self.stream is not None:
                self.stream.branch_from(out)
            return out
        if left.dim() < 3 or right.dim() < 3:  # a weight matrix, not keys
            return func(left, right, **kwargs)  # type: ignore[no-any-return]
        self._gated(len(self.calls), left, right)
        left = self._node("dQ", len(self.calls), left)
        result: Tensor = func(left, right, **kwargs)
        self._scores = _Scores(result, left, right)
        return result

    def _einsum(self, func: Any, equation: Any, *operands: Any) -> Tensor:
        """A product of two tensors whose first axes agree is read as the matmul it stands for."""
        terms = equation.replace(" ", "").split("->") if isinstance(equation, str) else []
        pair = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        inner = terms[0].split(",") if len(terms) == 2 else []
        if len(inner) == 2 and len(inner[0]) == len(inner[1]) == len(terms[1]) and inner[0][:-2] == inner[1][:-2]:
            one, two, out = inner[0][-2:], inner[1][-2:], terms[1]
            over = "".join(set(one) & set(two))
            if len(over) == 1 and out == inner[0][:-2] + one.replace(over, "") + two.replace(over, ""):
                left = pair[0] if one[1] == over else pair[0].transpose(-2, -1)
                right = pair[1] if two[0] == over else pair[1].transpose(-2, -1)
                if right is not pair[1] and self._pending is not None and pair[1] is self._pending.alias:
                    self._pending.turned = right
                return self._matmul(torch.matmul, left, right)
        return func(equation, *operands)  # type: ignore[no-any-return]

    def _softmax(self, func: Any, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dim = kwargs.get("dim", args[0] if args else None)
        result: Tensor = func(logits, *args, **kwargs)
        if logits.dim() < 3 or dim not in (-1, logits.dim() - 1):
            return result
        A = self._weigh(len(self.calls), result)
        scores = self._scores if self._scores is not None and self._scores.result is logits else None
        if self._pending is not None and self._pending.scores is not None:
            self.unread += 1  # an attention that was mixed with something before it met the values
        self._pending, self._scores = _Pending(A, logits, scores, A), None
        return A

    def _meet_values(self, func: Any, pending: _Pending, left: Tensor, right: Tensor, kwargs: Any) -> Tensor:
        self._gated(len(self.calls), right)
        Z = self._split(func(left, right, **kwargs))
        self._pending = None
        A, O, V = (self._split(t) for t in (pending.A, pending.O, right))  # noqa: E741
        Q = K = None
        if pending.scores is not None:
            Q, K = self._split(pending.scores.Q), self._split(pending.scores.K).transpose(-2, -1)
        index = len(self.calls)
        self._keep(index, Q, K, V, A, O, Z, _shape(A, V))
        out = Z.flatten(0, 1) if right.dim() == 3 else Z
        if self.stream is not None:
            self.stream.branch_from(out)
        return out

    def _split(self, tensor: Tensor) -> Tensor:
        return tensor.view(self._batch, -1, *tensor.shape[1:]) if tensor.dim() == 3 else tensor

    def _relabel(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Follow attention logits and weights through functions that keep their shape."""
        if not args or not isinstance(result, Tensor):
            return
        pending, scores = self._pending, self._scores
        if pending is not None and args[0] is pending.alias:
            if func in SAME or (func in FOLD and result.shape[-2:] == pending.alias.shape[-2:]):
                pending.alias = result
            elif turns(func, args):
                pending.turned = result
        elif scores is not None and result.shape == scores.result.shape and any(a is scores.result for a in args[:2]):
            scores.result = result

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
        """A text has no pixels for the graph to start at; the vectors of its words serve."""
        result: Tensor = func(*args, **kwargs)
        return result.detach().requires_grad_() if "dX" in self._plan and not result.requires_grad else result

    def _convolve(self, func: Any, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
        result: Tensor = func(input, weight, *args, **kwargs)
        if result.dim() == 4:
            self._grid = (result.shape[2], result.shape[3])
        return result

    # Functions, not bound methods: a mode that held its own methods would keep itself, and the graph, alive.
    DOORS: ClassVar[dict[Any, Callable[..., Any]]] = {
        F.scaled_dot_product_attention: _fused,
        F.multi_head_attention_forward: _multi_head,
        F.conv2d: _convolve,
        torch.conv2d: _convolve,
        torch.einsum: _einsum,
        F.embedding: _embed,
        **dict.fromkeys(NORM, _normalise),
        **dict.fromkeys(SOFTMAX, _softmax),
        **dict.fromkeys(MATMUL, _matmul),
    }


def turns(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call swaps the last two axes of its first argument.

    Example:
        >>> turns(torch.transpose, (torch.zeros(2, 3, 4), 1, -1)), turns(torch.transpose, (torch.zeros(2, 3, 4), 0, 1))
        (True, False)
    """
    if func not in TURN:
        return False
    n = args[0].dim()
    return func == MT or {axis % n for axis in args[1:3]} == {n - 2, n - 1}


def _shape(queries: Tensor, keys: Tensor) -> tuple[int, int, int, int]:
    return (prod(queries.shape[:-3]), queries.shape[-3], queries.shape[-2], keys.shape[-2])
