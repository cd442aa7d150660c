"""A forward pass with the tensors it kept, and a backward pass for each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail import fast
from vitrail.capture.attention_call import Gate
from vitrail.capture.attention_reach import reachable_tokens
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import any_output
from vitrail.capture.pass_evidence import PassEvidence
from vitrail.capture.readout import SILENT, measured_readout, token_reach
from vitrail.capture.recogniser import split_heads
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.streams import Streams
from vitrail.capture.trace import Block, Trace
from vitrail.capture.verify import direction, gradients
from vitrail.errors import TargetError


@dataclass(frozen=True)
class TruncatedOutputs:
    """What a model returns if it ends with one of its last blocks, in the graph of a pass.

    Attributes:
        output: The model's output; its first rows are for its inputs as always, the next ones for the same inputs if
            it ends with the last block but one, and so on.
        blocks: The blocks it ends with, in this order.
        alone: Those of them whose gradients at A nothing else needs.
    """

    output: Any
    blocks: tuple[int, ...]
    alone: frozenset[int]


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass and what was kept of it.

    Attributes:
        output: What the model returned.
        logits: The class scores in it, detached, or None.
        blocks: What was kept, block by block.
        nodes: Tensors whose gradient can be computed, by (kind, block).
        structure: What the model is made of.
        truncated: What it returns if it ends earlier, where that was asked for.
        allowed: For each block which keys its queries may attend to, shape (b or 1, m, n), or None for all.
        evidence: What it shows of the facts known of the model; None for passes that are not to confirm them.
    """

    output: Any
    logits: Tensor | None
    blocks: tuple[Block, ...]
    nodes: dict[tuple[str, int], Tensor]
    structure: ModelStructure
    queries: int
    dtype: torch.dtype
    device: torch.device
    gate: Gate
    valid: Tensor | None = None
    features_of: Callable[[Tensor], Tensor] | None = None
    truncated: TruncatedOutputs | None = None
    allowed: tuple[Tensor | None, ...] = ()
    evidence: PassEvidence | None = None

    def trace(
        self, target: Tensor | None = None, keep_graph: bool = False, cut: bool = False, read: Tensor | None = None
    ) -> Trace:
        """The pass as methods see it; with a target, a scalar a sample, also its gradients.

        Args:
            target: What to differentiate, shape (b,), in the graph of ``output``.
            keep_graph: Whether another target will be differentiated.
            cut: Let no gradient pass through attention: it reaches lower blocks by skip connections and MLPs alone.
            read: Without a target: the scores whose readout is measured, shape (b,); None for the output.
        """
        if self.structure.streams is not None and self.blocks:
            return self._stream_trace(self.structure.streams, target, keep_graph, read)
        blocks, at_last = list(self.blocks), None
        if target is not None and set(self._nodes_of(cut)) - {self._last}:
            if not target.requires_grad:
                raise TargetError(
                    "the target does not depend on the model's attention, so it has no gradient: "
                    "it must be computed from the model's output without detaching it"
                )
            at_last = self._add_gradients(blocks, target, keep_graph, cut)
        if not self.structure.layers:
            readout = torch.ones(1, device=self.device)
            return Trace(tuple(blocks), readout, self.structure.layout, self.logits, self.device, valid=self.valid)
        if at_last is None:
            at_last = self._gradient_at_last(target if read is None else read)
            if target is not None and self._last in self.nodes:
                gradient = torch.zeros_like(self.nodes[self._last]) if at_last is None else at_last
                blocks[-1] = blocks[-1].having(dZ=gradient.to(self.dtype))
        readout = self._readout(at_last)
        valid = self._seen_tokens(readout)
        if valid is not None:
            blocks = [_unpadded(block, valid) for block in blocks]
            readout = _among(readout, valid)
        return Trace(tuple(blocks), readout, self.structure.layout, self.logits, self.device, valid=valid)

    def _stream_trace(self, streams: Streams, target: Tensor | None, keep_graph: bool, read: Tensor | None) -> Trace:
        """The pass through several streams of tokens; the readout of each is measured in this pass."""
        scores = target if read is None else read
        if scores is None:
            scores = any_output(self.output)
            scores = scores * direction(scores[:1])
        if not scores.requires_grad:
            raise TargetError(
                "the target does not depend on the model's attention, so it has no gradient: "
                "it must be computed from the model's output without detaching it"
            )
        found = gradients(scores.sum(), [self.nodes["dZ", i] for i in streams.read])
        readouts = []
        for gradient, i in zip(found, streams.read, strict=True):
            reach = token_reach(torch.zeros_like(self.nodes["dZ", i]) if gradient is None else gradient)
            live = (reach > reach.amax(-1, keepdim=True) * SILENT).to(self.dtype)
            readouts.append(live / live.sum(-1, keepdim=True).clamp_min(1))
        blocks = list(self.blocks)
        if target is not None and any(kind == "dA" for kind, _ in self.nodes):
            self._add_gradients(blocks, target, keep_graph, cut=False)
        return Trace(
            tuple(blocks), readouts[0], self.structure.layout, self.logits, self.device, valid=self.valid,
            streams=streams, readouts=tuple(readouts),
        )  # fmt: skip

    @property
    def _last(self) -> tuple[str, int]:
        """The node at the last attention's output."""
        return ("dZ", len(self.blocks) - 1)

    def _nodes_of(self, cut: bool) -> dict[tuple[str, int], Tensor]:
        """The nodes at which gradients are needed."""
        skipped = frozenset[int]() if self.truncated is None else self.truncated.alone
        found = {}
        for (kind, i), node in self.nodes.items():
            others = {"dA": i not in skipped, "dZ": True}
            if others.get(kind, not cut):
                found[kind, i] = node
        return found

    def _add_gradients(self, blocks: list[Block], target: Tensor, keep_graph: bool, cut: bool) -> Tensor | None:
        """Put the gradients of a target into blocks; returns that at the last attention's output."""
        nodes, at_last = self._nodes_of(cut), None
        self.gate.closed = cut
        found: Sequence[Tensor | None] = torch.autograd.grad(
            target.sum(), list(nodes.values()), retain_graph=keep_graph, allow_unused=True
        )
        self.gate.closed = False
        for ((kind, index), node), gradient in zip(nodes.items(), found, strict=True):
            if kind == "dA" and gradient is None:
                self._differs("which attention layers the score depends on", True)
            value = torch.zeros_like(node) if gradient is None else gradient
            if (kind, index) == self._last:
                at_last = value
            if kind == "dZ":
                products = blocks[index].products
                if isinstance(products, RowwiseProducts):
                    blocks[index] = blocks[index].having(products=products.with_gradient(value))
                blocks[index] = blocks[index].having(dZ=value.to(self.dtype))
                continue
            value = value.to(self.dtype)
            if self.structure.tokens_first and kind in ("dX", "dY"):
                value = value.transpose(0, 1)
            if self.structure.kind == "plain" and kind in ("dX", "dY"):
                value = tokens_in_a_row(value, self.structure.tokens)
            if kind == "dQ":
                value = split_heads(value, len(target), self.structure.heads_first)
            if kind == "dY" and self.features_of is not None:
                value = self.features_of(value)
            if kind == "dA" and blocks[index].pool and self.structure.pool_skips:
                value = torch.nn.functional.pad(value, (self.structure.pool_skips, 0))
            blocks[index] = blocks[index].having(**{kind: value})
        return at_last

    def _differs(self, reason: str, value: bool | Tensor) -> None:
        if self.evidence is not None:
            self.evidence.differs(reason, value)

    def _gradient_at_last(self, scores: Tensor | None) -> Tensor | None:
        """The gradient of some scores, of all outputs where None, at the last attention's output; None for none."""
        Z = self.nodes.get(("dZ", len(self.blocks) - 1))
        if Z is None:
            return None
        total = None
        if scores is None:
            scores = any_output(self.output)
            total = (scores * direction(scores[:1])).sum() if scores.requires_grad else None
        elif scores.requires_grad:
            total = scores.sum()
        (gradient,) = (None,) if total is None else gradients(total, [Z])
        if gradient is None:
            self._differs("which attention layers the score depends on", True)
        return gradient

    def _readout(self, gradient: Tensor | None) -> Tensor:
        """How the head reads the queries of the last block, shape (m,), or (b, m) as measured for each input.

        It is read off the gradient at the last attention's output in this pass, unless the user has stated it.
        """
        layout = self.structure.layout
        readout = layout.weights(self.queries, self.device, self.dtype)
        if gradient is None or self.structure.kind != "plain" or self.structure.given.readout is not None:
            return readout
        reach = token_reach(gradient)
        if self.evidence is not None and layout.grid is None and self.structure.given.prefix is None:
            first = (reach[:, 0] > 0).all() & (reach[:, 1:] == 0).all()
            # The prefix of a text is the one token that is read; the query of an attention pool is no token.
            if not self.structure.causal and not self.structure.pooled:
                self._differs("which token of the text is read", first != (layout.prefix == 1))
        pooled = self.structure.pooled
        return measured_readout(reach, readout, layout, None if pooled else self.valid, pooled)

    def _seen_tokens(self, readout: Tensor) -> Tensor | None:
        """Tokens that are no padding and that the readout can depend on, shape (b, n); None for all."""
        if self.structure.kind != "plain" or all(one is None for one in self.allowed):
            return self.valid
        batch = len(self.valid) if self.valid is not None else next(len(o) for o in self.allowed if o is not None)
        rows = readout if readout.dim() == 2 else readout.expand(batch, -1)
        layers = self.structure.layers
        skipped = self.structure.pool_skips
        reached = reachable_tokens(rows, self.allowed, [o.pool for o in layers], skipped, self.structure.tokens)
        if reached is None or (not fast.recording() and bool(reached.all())):
            return self.valid
        return reached if self.valid is None else reached & self.valid


def _among(readout: Tensor, valid: Tensor) -> Tensor:
    """The readout with no weight on tokens that are not seen, shape (b, m); its sum stays."""
    if readout.dim() == 2 or readout.shape[-1] != valid.shape[-1]:
        return readout
    rows = readout * valid
    return rows / rows.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny) * readout.sum()


def _unpadded(block: Block, valid: Tensor) -> Block:
    names = [name for name in ("A", "A_mean", "dA") if name in vars(block)]
    changed = block.having(**{name: _between(vars(block)[name], valid) for name in names})
    if isinstance(block.products, RowwiseProducts):
        changed.products = block.products.without_padding(valid)
    return changed


def _between(attention: Tensor, valid: Tensor) -> Tensor:
    """Attention between tokens that are no padding, shape (b, [H,] n, n); all else is zero.

    Nothing attends to padding, but padding itself attends, and gradients at attention to it are not zero.
    """
    both = valid[:, :, None] & valid[:, None, :]
    return attention * (both if attention.dim() == 3 else both[:, None])


def tokens_in_a_row(tensor: Tensor, tokens: int) -> Tensor:
    """A residual stream that lies on the grid of its tokens, shape (b, rows, columns, d), as (b, n, d)."""
    on_grid = tensor.dim() == 4 and tensor.shape[1] * tensor.shape[2] == tokens
    return tensor.flatten(1, 2) if on_grid else tensor
