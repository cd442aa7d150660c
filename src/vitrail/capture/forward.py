"""A forward pass that keeps tensors for the methods, and a backward pass for each target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Gate, GraphGap
from vitrail.capture.attention_recorder import Edit
from vitrail.capture.attention_storage import resolve_products, some_weight
from vitrail.capture.features import FeatureMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, method_dtype
from vitrail.capture.kept_pass import ForwardPass, TruncatedOutputs, tokens_in_a_row
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import UNCHAINED_KINDS, AttentionLayer, ModelStructure
from vitrail.capture.outputs import class_logits
from vitrail.capture.pass_evidence import PassEvidence
from vitrail.capture.program import Program
from vitrail.capture.residual import Tail
from vitrail.capture.trace import Block, Needs, blocks_to_keep
from vitrail.errors import ModelError, NotApplicableError, StructureDiffersError

_STREAM = ("X", "X_norm", "X_mid", "X_mid_norm", "F", "V_in", "Y", "branch", "branch_scale")
_FROM_THE_INPUT = ("dX",)
_GRADIENTS = ("dA", "dQ", "dY", "dZ")


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


def input_graph_pass(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> ForwardPass | None:
    """A forward pass without capture whose graph starts at the input, for methods that need its gradient alone.

    For a text it starts at the vectors of its tokens. None where the model does not name the layer that makes them.
    """
    axes, signal, words = model_inputs.axes, model_inputs.signal, model_inputs.words
    if words is not None:
        layer = getattr(model, "get_input_embeddings", lambda: None)()
        if not isinstance(layer, nn.Embedding):
            return None
        leaf = layer(words).detach().requires_grad_()
        swapped = replace(model_inputs, embeddings=(layer, leaf))
    else:
        assert axes is not None
        assert signal is not None
        leaf = axes.canvas(signal).detach().clone().requires_grad_()
        swapped = model_inputs.swap(signal, axes.restore(leaf))
    with frozen(model), fast.with_split_products(leaf.device):
        output = run_model(model, swapped)
    return replace(output_pass(model, model_inputs, structure, output), leaf=leaf)


def output_pass(
    model: nn.Module,
    model_inputs: ModelInputs,
    structure: ModelStructure,
    output: Any,
    evidence: PassEvidence | None = None,
) -> ForwardPass:
    """A forward pass that kept only the output and what confirms the structure."""
    logits = class_logits(model, output)
    return ForwardPass(
        output,
        None if logits is None else logits.detach(),
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
        gap=_gap(by_call, layers) if from_pixels and not (whole_graph or fast.recomputing()) else None,
        masks=structure.masked or confirm,
        logit_masks=structure.masked,
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
            _compare_masks(evidence, mode, structure)
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
                block.change(_STREAM, lambda t: tokens_in_a_row(t, structure.tokens))
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


def _compare_masks(evidence: PassEvidence, mode: AttentionMode, structure: ModelStructure) -> None:
    """Note whether keys are masked that the structure does not know of, which was measured on one example."""
    if structure.masked:
        return
    masks = {id(call.allowed): call.allowed for call in mode.calls}
    for one in masks.values():
        evidence.differs("which keys queries may attend to", ~one.all() if isinstance(one, Tensor) else one is not None)


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


def _pad_keys(block: Block, skipped: int) -> None:
    """Give an attention pool that leaves out the first tokens zero attention to them."""
    block.change(("A", "A_mean"), lambda t: torch.nn.functional.pad(t, (skipped, 0)))
    block.change(("K", "V"), lambda t: torch.nn.functional.pad(t, (0, 0, skipped, 0)))


def _batch_first(block: Block, tokens: int) -> None:
    block.change(_STREAM, lambda t: t.transpose(0, 1) if t.shape[0] == tokens else t)
