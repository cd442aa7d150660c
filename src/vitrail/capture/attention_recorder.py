"""What a pass keeps of the attention calls of a model."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from vitrail.capture.attention_call import Call, Gate, GraphGap
from vitrail.capture.attention_products import CHECKED_UP_TO, attention_bytes
from vitrail.capture.attention_reach import AllowedKeys, CausalKeys, allowed_keys
from vitrail.capture.explicit_attention import causal_mask
from vitrail.capture.program import Program
from vitrail.capture.recogniser import Recogniser, merge_heads, split_heads
from vitrail.capture.residual import ResidualStream, Tail
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.trace import Block

KeptBlocks = Mapping[str, frozenset[int]]
Edit = Callable[[Tensor], Tensor]
NOWHERE: frozenset[int] = frozenset()


class AttentionRecorder:
    """Keep tensors of the attention calls of one pass, make gradients there computable, and follow the stream.

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
        logit_masks: Read it also from logits to which a mask was added, which takes a pass over all of them.
        results: Keep outputs of each call as nodes of the graph.
        held: Results that take the place of those of the calls, by call.
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
        logit_masks: bool = True,
        results: bool = False,
        words: Tensor | None = None,
        cut_outputs: bool = False,
        held: Mapping[int, Tensor] | None = None,
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
        self._track_logit_masks = logit_masks
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
        self._held = held or {}
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

    def for_recomputation(self) -> Callable[[], AttentionRecorder]:
        """Function that returns a mode which replaces the functions of the following calls as this one does.

        It holds nothing of this one that is in a graph, because the graph holds the function.
        """
        plain = self._without_records([None] * len(self.calls))
        return lambda: plain._without_records(plain.calls)  # noqa: SLF001

    def _without_records(self, calls: list[Any]) -> Self:
        """A mode with the same settings that has recorded nothing but a number of calls."""
        mode = copy.copy(self)
        mode.nodes, mode.calls, mode.embeddings, mode.stream = {}, list(calls), [], None
        mode.recogniser, mode._norms, mode._candidates = Recogniser(), {}, {}  # noqa: SLF001
        mode.recent_calls = deque(maxlen=0)
        mode.program = mode.values = mode._values_of = mode._gap = None  # noqa: SLF001
        return mode

    def _wants(self, kind: str, index: int) -> bool:
        return index in self._kept.get(kind, NOWHERE)

    def _node(self, kind: str, index: int, tensor: Tensor) -> Tensor:
        """Make a tensor one whose gradient can be computed; the graph starts here if nothing before needed one."""
        if kind == "dZ" and index in self._held:
            return self._held[index].expand_as(tensor)
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
        tracked = self._track_masks and (self._track_logit_masks or mask is not O)
        allowed = None if mask is None or not tracked else self._allowed(mask, shape[2:], mask is O)
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
