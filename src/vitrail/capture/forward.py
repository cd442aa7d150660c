"""A forward pass that keeps tensors for the methods, and a backward pass for each target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.attention import AttentionMode, Edit, Gate, GraphGap
from vitrail.capture.attention_reach import AllowedKeys, reachable_tokens
from vitrail.capture.attention_storage import resolve_products, some_weight
from vitrail.capture.features import FeatureMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, method_dtype, run_model
from vitrail.capture.model_structure import UNCHAINED_KINDS, AttentionLayer, ModelStructure
from vitrail.capture.output_tensors import any_output
from vitrail.capture.outputs import class_logits
from vitrail.capture.program import Program
from vitrail.capture.readout import SILENT, measured_readout, token_reach
from vitrail.capture.recogniser import split_heads
from vitrail.capture.residual import Tail
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.signal_axes import SignalAxes
from vitrail.capture.streams import Streams
from vitrail.capture.trace import Block, Needs, Trace, blocks_to_keep
from vitrail.capture.verify import direction, gradients
from vitrail.errors import ModelError, NotApplicableError, StructureDiffersError, TargetError

_STREAM = ("X", "X_norm", "X_mid", "X_mid_norm", "F", "V_in", "Y", "branch", "branch_scale")
_FROM_THE_INPUT = ("dX",)
_GRADIENTS = ("dA", "dQ", "dY", "dZ")


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


@dataclass
class PassEvidence:
    """What a pass shows of the facts that were known of its model.

    Attributes:
        program: The functions that the model called.
        values: Values of the first attention, in the graph of ``leaf``; None where they were not kept.
        leaf: The images, or other numbers on axes, that the graph starts at, or None.
        axes: The axes of ``leaf``; None for images.
        outputs: Results of attention calls in the graph, by call, where all of them are.
        disagreements: What differs from the structure, by reason: whether it does, known at once or on the device.
    """

    program: Program
    values: Tensor | None = None
    leaf: Tensor | None = None
    axes: SignalAxes | None = None
    outputs: dict[int, Tensor] = field(default_factory=dict)
    disagreements: list[tuple[str, bool | Tensor]] = field(default_factory=list)

    def differs(self, reason: str, value: bool | Tensor) -> None:
        """Note whether something differs from the structure."""
        if value is not False:
            self.disagreements.append((reason, value))


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
    allowed: tuple[AllowedKeys | None, ...] = ()
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
                value = _tokens_in_a_row(value, self.structure.tokens)
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
        masks = [len(one) for one in self.allowed if isinstance(one, Tensor)]
        batch = len(self.valid) if self.valid is not None else max(masks, default=1)
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


def forward_only(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> ForwardPass:
    """A forward pass without capture, for methods that need the model's output only.

    Args:
        model: The user's model, unwrapped; it is frozen while it runs.
        model_inputs: Inputs on its device.
        structure: As read from it.
    """
    device = model_inputs.tensors[0].device
    with frozen(model), torch.no_grad(), fast.with_split_products(device):
        output = run_model(model, model_inputs)
    return output_pass(model, model_inputs, structure, output)


def output_pass(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    output: Any,
    evidence: PassEvidence | None = None,
) -> ForwardPass:
    """A forward pass that kept only the output and what confirms the structure."""
    return ForwardPass(
        output,
        class_logits(model, output),
        (),
        {},
        structure,
        structure.layers[-1].size[0] if structure.layers else 0,
        method_dtype(model),
        model_inputs.tensors[0].device,
        Gate(),
        model_inputs.valid,
        evidence=evidence,
    )


@contextmanager
def forward_pass(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    needs: Iterable[Needs],
    edits: Mapping[int, Edit] | None = None,
    tail: Tail | None = None,
    confirm: bool = False,
    whole_graph: bool = False,
) -> Iterator[ForwardPass]:
    """Run one forward pass and keep what is needed; the model stays frozen until the gradients have been computed.

    Args:
        model: The user's model, unwrapped.
        model_inputs: Inputs on its device.
        structure: As read from it.
        needs: What each method needs.
        edits: Functions that replace the attention of some blocks, by block.
        tail: Replaces what leaves the last block, from what leaves all of them.
        confirm: Keep what is needed to confirm the structure, see `vitrail.capture.confirm`.
        whole_graph: Build the whole graph although no gradient is needed, for targets of which it is not known what
            they depend on.
    """
    layers = structure.layers
    confirm = confirm and not fast.capturing()  # nothing can be read while a pass is recorded
    if not layers:
        with _feature_pass(model, model_inputs, structure) as found:
            yield found
        return
    needs, ends, alone = _ends(list(needs), structure)
    tail = tail or (_stacked(len(ends), structure.tokens_first) if ends else None)
    by_block = resolve_products(
        blocks_to_keep(needs, len(layers)), structure, model_inputs.batch, some_weight(model), frozenset(edits or ())
    )
    # The gradient there tells how the head reads the tokens.
    read = {len(layers) - 1} if structure.streams is None else set(structure.streams.read)
    by_block["dZ"] = by_block.get("dZ", frozenset()) | read
    by_call = {kind: frozenset(layers[i].call for i in where) for kind, where in by_block.items()}
    dtype = method_dtype(model)
    start = model_inputs.start
    from_pixels = confirm and structure.kind == "plain" and structure.owners is not None
    whole_graph = whole_graph or (confirm and structure.calls != len(layers))
    leaf = None
    if start is not None and (from_pixels or whole_graph or any(kind in by_call for kind in _FROM_THE_INPUT)):
        with torch.inference_mode(False):
            leaf = start.detach().clone().requires_grad_()
        model_inputs = model_inputs.swap(start, leaf)
    program = Program(model_inputs.tensors) if confirm else None
    mode = AttentionMode(
        by_call, model_inputs.batch, dtype,
        from_embedding=whole_graph and start is None,
        edits={layers[i].call: edit for i, edit in (edits or {}).items()},
        heads_first=structure.heads_first,
        tail=None if tail is None else ([o for o in layers if not o.pool][-1].call, tail),
        program=program,
        values_of=layers[0].call if from_pixels else None,
        gap=_gap(by_call, layers) if from_pixels and not whole_graph else None,
        masks=structure.masked,
        results=confirm and whole_graph,
        words=model_inputs.words if structure.from_words else None,
    )  # fmt: skip
    device = model_inputs.tensors[0].device
    with frozen(model):
        with fast.with_split_products(device), mode:
            output = run_model(model, model_inputs)
        torch.set_grad_enabled(True)  # where the pass built a graph at its ends alone
        evidence = None if program is None else PassEvidence(program, mode.values, leaf, model_inputs.axes)
        if evidence is not None:
            evidence.outputs = {i: c.Z for i, c in enumerate(mode.calls) if c.Z is not None}
        _check_calls(mode, structure)
        truncated = TruncatedOutputs(output, ends, alone) if ends else None
        output = first_rows(output, model_inputs.batch, len(ends)) if ends else output
        blocks = []
        for layer in layers:
            block = mode.calls[layer.call].block
            block.pool = layer.pool
            if structure.tokens_first:
                _batch_first(block, structure.tokens)
            if structure.kind == "plain":
                block.change(_STREAM, lambda t: _tokens_in_a_row(t, structure.tokens))
            if layer.pool and structure.pool_skips:
                _pad_keys(block, structure.pool_skips)
            blocks.append(block)
        index_of = {layer.call: i for i, layer in enumerate(layers)}
        nodes = {(kind, index_of[call]): node for (kind, call), node in mode.nodes.items() if call in index_of}
        logits = class_logits(model, output)
        logits = None if logits is None else logits.detach()
        queries = mode.calls[layers[-1].call].shape[2]
        yield ForwardPass(
            output, logits, tuple(blocks), nodes, structure, queries, dtype, device, mode.gate, model_inputs.valid,
            truncated=truncated,
            allowed=tuple(mode.calls[layer.call].allowed for layer in layers) if structure.masked else (),
            evidence=evidence,
        )  # fmt: skip


def _gap(kept: Mapping[str, frozenset[int]], layers: Sequence[AttentionLayer]) -> GraphGap | None:
    """The attention calls between the graph from the pixels to the first, and that of the gradients; None for none."""
    first, last = layers[0].call, layers[-1].call
    if any(kind in kept for kind in _FROM_THE_INPUT):
        return None
    wanted = frozenset[int]().union(*(kept.get(kind, frozenset()) for kind in _GRADIENTS if kind != "dZ"))
    wanted |= kept["dZ"] - {last}
    until = min(wanted) - 1 if wanted else last
    return GraphGap(first, until) if until > first else None


def _ends(needs: list[Needs], structure: ModelStructure) -> tuple[list[Needs], tuple[int, ...], frozenset[int]]:
    """Needs with gradients at A for ``truncated``, the blocks to end with, last first, and those it alone needs."""
    wanted = blocks_to_keep(needs, len(structure.layers)).get("truncated", frozenset())
    # Attention that pools the tokens would be that of all ends, not of the model.
    if not wanted or any(layer.pool for layer in structure.layers):
        return without_ends(needs), (), frozenset()
    chain = [i for i, layer in enumerate(structure.layers) if not layer.pool]
    ends = tuple(reversed(chain[-len(wanted) :]))
    rest = without_ends(needs)
    kept = blocks_to_keep(rest, len(structure.layers))
    others = kept.get("dA", frozenset()) | kept.get("attention_gradient", frozenset())
    return [*rest, *({"dA": slice(i, i + 1)} for i in ends)], ends, frozenset(ends) - others


def without_ends(needs: Iterable[Needs]) -> list[Needs]:
    """The needs without ``truncated``."""
    return [{kind: where for kind, where in need.items() if kind != "truncated"} for need in needs]


def _stacked(count: int, tokens_first: bool) -> Tail:
    """Let the rest of a model read the outputs of its last blocks, one after the other in the batch."""
    return lambda outputs: torch.cat([outputs[-1 - k] for k in range(count)], 1 if tokens_first else 0)


def first_rows(output: Any, batch: int, times: int) -> Any:
    """The part of a model's output that belongs to the first of several batches.

    Raises:
        ModelError: The output is of a kind that cannot be cut.
    """
    if isinstance(output, Tensor):
        cut = output.dim() > 0 and output.shape[0] == batch * times
        return output[:batch] if cut else output
    if isinstance(output, Mapping):
        return type(output)(**{k: first_rows(v, batch, times) for k, v in output.items()})
    if isinstance(output, tuple | list) and type(output) in (tuple, list):
        return type(output)(first_rows(v, batch, times) for v in output)
    if output is None or isinstance(output, int | float | str | bool):
        return output
    raise ModelError(f"the output {type(output).__name__} cannot be cut into batches")


def _check_calls(mode: AttentionMode, structure: ModelStructure) -> None:
    """Refuse a pass that made other attention calls than the one on which the structure was checked."""
    found = _other_calls(mode, structure)
    if found is not None:
        raise StructureDiffersError(f"{found}: its path depends on the input; explain the inputs one by one")


def _other_calls(mode: AttentionMode, structure: ModelStructure) -> str | None:
    """What differs between the attention calls of a pass and those of the structure, or None."""
    layers = structure.layers
    if len(mode.calls) != structure.calls:
        return f"the model attended {len(mode.calls)} times where {structure.calls} were expected"
    other = next((o for o in layers if mode.calls[o.call].shape[1:] != (o.heads, *o.size)), None)
    if other is None:
        return None
    heads, queries, keys = mode.calls[other.call].shape[1:]
    return (
        f"attention {other.call} of the model has {heads} heads, {queries} queries and {keys} keys where "
        f"{other.heads}, {other.size[0]} and {other.size[1]} were expected"
    )


@contextmanager
def _feature_pass(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> Iterator[ForwardPass]:
    """A forward pass through a model without attention, whose last feature map is kept as the one block's Y."""
    image = model_inputs.image
    if image is None:
        raise NotApplicableError(
            f"{structure.model} {UNCHAINED_KINDS['none']}, and only images have another feature map; "
            f"{model_inputs.what}"
        )
    mode = FeatureMode(model_inputs.batch)
    with frozen(model):
        with mode:
            output = run_model(model, model_inputs.swap(image, image.detach().clone().requires_grad_()))
        if mode.features is None:
            raise NotApplicableError(f"no feature map was found in {structure.model}: use rise or an input gradient")
        block = Block()
        block.Y = mode.as_rows(mode.features.detach()).to(method_dtype(model))
        logits = class_logits(model, output)
        yield ForwardPass(
            output,
            None if logits is None else logits.detach(),
            (block,),
            {("dY", 0): mode.features},
            structure,
            0,
            method_dtype(model),
            image.device,
            Gate(),
            features_of=mode.as_rows,
        )


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


def check_finite(model: nn.Module, logits: Tensor | None) -> None:
    """Refuse to explain a model that says NaN, and name the weights that make it so."""
    if logits is None or bool(torch.isfinite(logits).all()):
        return
    broken = [name for name, p in (*model.named_parameters(), *model.named_buffers()) if _broken(p)]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise ModelError(f"the model's weights are not finite: {broken[0]}{more}; load a sound checkpoint")
    raise ModelError(
        "the model's output is not finite although its weights are: the input may hold NaN, or half precision "
        "overflowed; check the input or use float32"
    )


def _broken(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())


def _pad_keys(block: Block, skipped: int) -> None:
    """Give an attention pool that leaves out the first tokens zero attention to them."""
    block.change(("A", "A_mean"), lambda t: torch.nn.functional.pad(t, (skipped, 0)))
    block.change(("K", "V"), lambda t: torch.nn.functional.pad(t, (0, 0, skipped, 0)))


def _tokens_in_a_row(tensor: Tensor, tokens: int) -> Tensor:
    """A residual stream that lies on the grid of its tokens, shape (b, rows, columns, d), as (b, n, d)."""
    on_grid = tensor.dim() == 4 and tensor.shape[1] * tensor.shape[2] == tokens
    return tensor.flatten(1, 2) if on_grid else tensor


def _batch_first(block: Block, tokens: int) -> None:
    block.change(_STREAM, lambda t: t.transpose(0, 1) if t.shape[0] == tokens else t)
