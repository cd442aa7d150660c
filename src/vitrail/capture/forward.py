"""A forward pass of which something is kept, and a backward pass for each target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode, Edit, Gate
from vitrail.capture.attention_storage import resolve_products, some_weight
from vitrail.capture.features import FeatureMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, any_output, method_dtype, run_model
from vitrail.capture.model_structure import UNCHAINED_KINDS, ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.recogniser import split_heads
from vitrail.capture.residual import Tail
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.trace import Block, Needs, Trace, blocks_to_keep
from vitrail.capture.verify import direction, gradients
from vitrail.errors import ModelError, NotApplicableError, TargetError
from vitrail.fast.split_products import split_products

_STREAM = ("X", "X_norm", "X_mid", "X_mid_norm", "F", "V_in", "Y", "branch", "branch_scale")
_FROM_THE_INPUT = ("dX",)


@dataclass(frozen=True)
class EarlyOutputs:
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
        ended: What it returns if it ends earlier, where that was asked for.
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
    ended: EarlyOutputs | None = None

    def trace(self, target: Tensor | None = None, keep_graph: bool = False, cut: bool = False) -> Trace:
        """The pass as methods see it; with a target, a scalar a sample, also its gradients.

        Args:
            target: What to differentiate, shape (b,), in the graph of ``output``.
            keep_graph: Whether another target will be differentiated.
            cut: Let no gradient pass through attention: it reaches lower blocks by skip connections and MLPs alone.
        """
        blocks = [block if self.valid is None else _unpadded(block, self.valid) for block in self.blocks]
        readout = self._readout(target) if self.structure.layers else torch.ones(1, device=self.device)
        skipped = frozenset() if self.ended is None else self.ended.alone
        wanted = {"dA": lambda i: i not in skipped, "dZ": lambda i: blocks[i].products is not None}
        nodes = {key: node for key, node in self.nodes.items() if wanted.get(key[0], lambda _: not cut)(key[1])}
        if target is not None and nodes:
            if not target.requires_grad:
                raise TargetError(
                    "the target does not depend on the model's attention, so it has no gradient: "
                    "it must be computed from the model's output without detaching it"
                )
            self.gate.closed = cut
            found = torch.autograd.grad(target.sum(), list(nodes.values()), retain_graph=keep_graph, allow_unused=True)
            self.gate.closed = False
            for ((kind, index), node), gradient in zip(nodes.items(), found, strict=True):
                value = torch.zeros_like(node) if gradient is None else gradient
                if kind == "dZ":
                    products = blocks[index].products
                    assert isinstance(products, RowwiseProducts)
                    blocks[index] = blocks[index].having(products=products.with_gradient(value))
                    continue
                value = value.to(self.dtype)
                if self.structure.tokens_first and kind in ("dX", "dY"):
                    value = value.transpose(0, 1)
                if kind == "dQ":
                    value = split_heads(value, len(target), self.structure.heads_first)
                if kind == "dY" and self.features_of is not None:
                    value = self.features_of(value)
                if kind == "dA" and blocks[index].pool and self.structure.pool_skips:
                    value = torch.nn.functional.pad(value, (self.structure.pool_skips, 0))
                if self.valid is not None and kind == "dA":
                    value = _between(value, self.valid)
                blocks[index] = blocks[index].having(**{kind: value})
        return Trace(tuple(blocks), readout, self.structure.layout, self.logits, self.device, valid=self.valid)

    def _readout(self, target: Tensor | None) -> Tensor:
        """How the head reads the queries of the last block, shape (m,), or (b, m) where that depends on the text.

        A decoder reads the last token of each text, wherever its padding begins, so texts are measured one by one.
        """
        layout = self.structure.layout
        readout = layout.weights(self.queries, self.device, self.dtype)
        if layout.readout in ("mean", "all") and self.valid is not None:
            return self.valid.to(readout) / self.valid.sum(-1, keepdim=True)
        Z = self.nodes.get(("dZ", len(self.blocks) - 1))
        if Z is None or self.structure.layout.grid is not None or layout.readout in ("mean", "all", "cls+mean"):
            return readout
        scores = any_output(self.output) if target is None else target
        if not scores.requires_grad:
            return readout
        total = (scores * direction(scores[:1])).sum() if target is None else scores.sum()
        (gradient,) = gradients(total, [Z])
        if gradient is None:
            return readout
        reach = gradient.to(self.dtype).square().sum((1, 3))
        live = (reach > reach.amax(-1, keepdim=True) * 1e-24).to(self.dtype)
        count = live.sum(-1, keepdim=True)
        return torch.where(count > 0, live / count.clamp_min(1), readout)


def forward_only(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> ForwardPass:
    """A forward pass without capture, for methods that need the model's output only.

    Args:
        model: The user's model, unwrapped; it is frozen while it runs.
        model_inputs: Inputs on its device.
        structure: As read from it.
    """
    device = model_inputs.tensors[0].device
    with frozen(model), torch.no_grad(), split_products(device):
        output = run_model(model, model_inputs)
    return ForwardPass(
        output,
        class_logits(model, output),
        (),
        {},
        structure,
        structure.layers[-1].size[0] if structure.layers else 0,
        method_dtype(model),
        device,
        Gate(),
        model_inputs.valid,
    )


@contextmanager
def forward_pass(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    needs: Iterable[Needs],
    edits: Mapping[int, Edit] | None = None,
    tail: Tail | None = None,
) -> Iterator[ForwardPass]:
    """Run one forward pass and keep what is needed; the model stays frozen until the gradients have been computed.

    Args:
        model: The user's model, unwrapped.
        model_inputs: Inputs on its device.
        structure: As read from it.
        needs: What each method needs.
        edits: Functions that replace the attention of some blocks, by block.
        tail: Replaces what leaves the last block, from what leaves all of them.
    """
    layers = structure.layers
    if not layers:
        with _feature_pass(model, model_inputs, structure) as found:
            yield found
        return
    needs, ends, alone = _ends(list(needs), structure)
    tail = tail or (_stacked(len(ends), structure.tokens_first) if ends else None)
    by_block = resolve_products(
        blocks_to_keep(needs, len(layers)), structure, model_inputs.batch, some_weight(model), frozenset(edits or ())
    )
    if model_inputs.image is None and layers:
        by_block["dZ"] = by_block.get("dZ", frozenset()) | {len(layers) - 1}
    by_call = {kind: frozenset(layers[i].call for i in where) for kind, where in by_block.items()}
    dtype = method_dtype(model)
    mode = AttentionMode(
        by_call, model_inputs.batch, dtype,
        edits={layers[i].call: edit for i, edit in (edits or {}).items()},
        heads_first=structure.heads_first,
        tail=None if tail is None else ([o for o in layers if not o.pool][-1].call, tail),
    )  # fmt: skip
    start = model_inputs.patches if model_inputs.image is None else model_inputs.image
    if start is not None and any(kind in by_call for kind in _FROM_THE_INPUT):
        model_inputs = model_inputs.swap(start, start.detach().clone().requires_grad_())
    device = model_inputs.tensors[0].device
    with frozen(model):
        with split_products(device), mode:
            output = run_model(model, model_inputs)
        _check_calls(mode, structure)
        ended = EarlyOutputs(output, ends, alone) if ends else None
        output = first_rows(output, model_inputs.batch, len(ends)) if ends else output
        blocks = []
        for layer in layers:
            block = mode.calls[layer.call].block
            block.pool = layer.pool
            if structure.tokens_first:
                _batch_first(block, structure.tokens)
            if layer.pool and structure.pool_skips:
                _pad_keys(block, structure.pool_skips)
            if isinstance(block.products, RowwiseProducts):
                block.products = block.products.without_padding(model_inputs.valid)
            blocks.append(block)
        index_of = {layer.call: i for i, layer in enumerate(layers)}
        nodes = {(kind, index_of[call]): node for (kind, call), node in mode.nodes.items() if call in index_of}
        logits = class_logits(model, output)
        logits = None if logits is None else logits.detach()
        queries = mode.calls[layers[-1].call].shape[2]
        yield ForwardPass(
            output, logits, tuple(blocks), nodes, structure, queries, dtype, device, mode.gate, model_inputs.valid,
            ended=ended,
        )  # fmt: skip


def _ends(needs: list[Needs], structure: ModelStructure) -> tuple[list[Needs], tuple[int, ...], frozenset[int]]:
    """Needs with gradients at A in place of ``ended``, the blocks to end with, last first, and those it alone needs."""
    wanted = blocks_to_keep(needs, len(structure.layers)).get("ended", frozenset())
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
    """The needs without ``ended``."""
    return [{kind: where for kind, where in need.items() if kind != "ended"} for need in needs]


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
    layers = structure.layers
    if len(mode.calls) != structure.calls:
        raise ModelError(
            f"the model attended {len(mode.calls)} times where {structure.calls} were expected: "
            "its path depends on the input; explain the inputs one by one"
        )
    other = next((o for o in layers if mode.calls[o.call].shape[1:] != (o.heads, *o.size)), None)
    if other is not None:
        heads, queries, keys = mode.calls[other.call].shape[1:]
        raise ModelError(
            f"attention {other.call} of the model has {heads} heads, {queries} queries and {keys} keys where "
            f"{other.heads}, {other.size[0]} and {other.size[1]} were expected: its path depends on the input; explain "
            "the inputs one by one"
        )


@contextmanager
def _feature_pass(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> Iterator[ForwardPass]:
    """A forward pass through a model without attention, whose last feature map is kept as the one block's Y."""
    image = model_inputs.image
    if image is None:
        raise NotApplicableError(f"{structure.model} {UNCHAINED_KINDS['none']}; a text has no other feature map")
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
    return block.having(**{name: _between(vars(block)[name], valid) for name in ("A", "A_mean") if name in vars(block)})


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


def _batch_first(block: Block, tokens: int) -> None:
    block.change(_STREAM, lambda t: t.transpose(0, 1) if t.shape[0] == tokens else t)
