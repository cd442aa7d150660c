"""Search for the streams of tokens that the attention of a model joins.

In a pass in which every attention result is a leaf of the graph, gradients show what each attention reads directly:
results of earlier attention, or the input. What reaches an attention token by token, without another attention in
between, is the same stream of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from vitrail.capture.attention import AttentionMode
from vitrail.capture.attention_call import Call
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.output_tensors import any_output, target_values
from vitrail.capture.streams import StreamLayer, Streams
from vitrail.capture.verify import direction, gradients, random_half

#: A gradient below this share of the largest is none.
SILENT = 1e-9
#: Stands for the input among the sources of an attention call.
INPUT = -1


@dataclass(frozen=True)
class _Sources:
    """What an attention call reads directly: calls, or the input, for its queries and for its keys and values."""

    queries: frozenset[int]
    keys: frozenset[int]


def find_streams(
    model: nn.Module,
    model_inputs: ModelInputs,
    target: Callable[..., Any] | None = None,
    from_words: bool = False,
) -> Streams | None:
    """The streams of a model, or None where its attention is none between streams of fixed tokens.

    None also where tokens are mixed between two attention layers, or where the score or an attention reads the input
    past all attention that was seen.

    Args:
        model: The user's model, frozen.
        model_inputs: The inputs that are explained.
        target: What is explained, where that is not a class score.
        from_words: Whether a text's graph starts at the embeddings of its own tokens alone.
    """
    start = model_inputs.numbers
    leaf = None if start is None else start.detach().clone().requires_grad_()
    given = model_inputs if start is None or leaf is None else model_inputs.swap(start, leaf)
    mode = AttentionMode(
        {}, model_inputs.batch, keep_output=True, from_embedding=leaf is None, masks=False, cut_outputs=True,
        words=model_inputs.words if from_words else None,
    )  # fmt: skip
    with frozen(model), mode:
        output = run_model(model, given)
    scores = any_output(output) if target is None else target_values(target, output)
    if leaf is None and mode.embeddings:
        leaf = mode.embeddings[0][1]
    if leaf is None or not isinstance(scores, Tensor):
        return None
    leaves = {INPUT: leaf, **{i: call.Z for i, call in enumerate(mode.calls) if call.Z is not None}}
    sources: list[_Sources] = []
    for i, call in enumerate(mode.calls):
        found = _sources(call, {k: leaf for k, leaf in leaves.items() if k < i})
        if found is None:
            return None
        sources.append(found)
    read = _direct(scores, leaves, None)
    if read is None:
        return None
    return _assigned(mode.calls, sources, frozenset(read))


def _sources(call: Call, leaves: dict[int, Tensor]) -> _Sources | None:
    """What a call reads directly; None where it mixes tokens on the way."""
    if call.V is None:
        return None
    keys = _direct(call.V, leaves, -2)
    if call.Q is not None and call.K is not None:
        queries, own = _direct(call.Q, leaves, -2), _direct(call.K, leaves, -2)
        if queries is None or own is None or keys is None:
            return None
        return _Sources(frozenset(queries), frozenset(keys | own))
    logits = None if call.O is None else _direct(call.O, leaves, None)
    if logits is None or keys is None:
        return None
    # Logits depend on queries and keys; what the values do not read is read by the queries.
    return _Sources(frozenset(logits - keys or keys), frozenset(keys))


def _direct(result: Tensor, leaves: dict[int, Tensor], axis: int | None) -> set[int] | None:
    """The leaves that a tensor was computed from; None where a token depends on other tokens of a leaf.

    The tokens are differentiated in two halves, drawn at random. Each half has no gradient at the tokens of the other
    half. Leaves with another number of tokens have none of their own.

    Args:
        result: A tensor.
        leaves: Leaves of its graph.
        axis: The axis of its tokens, which is that of attention results as well; None to leave the order open.
    """
    if not result.requires_grad:
        return set()
    weights, halves = [direction(result)], list[Tensor]()
    if axis is not None and result.shape[axis] > 1:
        half = random_half(result.shape[axis], result.device)
        halves = [half, ~half]
        weights = [weights[0] * half.view(-1, *[1] * (-axis - 1)) for half in halves]
    found = [gradients((result * one).sum(), list(leaves.values())) for one in weights]
    sizes = {
        k: max(float(g.abs().max()) for g in own if g is not None)
        for k, own in zip(leaves, zip(*found, strict=True), strict=True)
        if any(g is not None for g in own)
    }
    top = max(sizes.values(), default=0.0)
    there = {k for k, size in sizes.items() if size > SILENT * top}
    for half, own in zip(halves, found, strict=False):
        for k, gradient in zip(leaves, own, strict=True):
            if k == INPUT or k not in there or gradient is None:
                continue
            if gradient.shape[-2] != len(half) or float(gradient[..., ~half, :].abs().max()) > SILENT * sizes[k]:
                return None
    return there


class _Sets:
    """Sets that are joined."""

    def __init__(self) -> None:
        self._above: dict[Any, Any] = {}

    def of(self, item: Any) -> Any:
        """The representative of an item's set."""
        while item in self._above:
            item = self._above[item]
        return item

    def join(self, items: Iterable[Any]) -> None:
        """Make the sets of some items one."""
        for one, two in pairwise(items):
            above, below = self.of(one), self.of(two)
            if above != below:
                self._above[below] = above


def _assigned(calls: Sequence[Call], sources: Sequence[_Sources], read: frozenset[int]) -> Streams | None:
    """Streams from what each call and the score read directly."""
    sets = _Sets()
    for i, one in enumerate(sources):
        sets.join([("q", i), *(_result(k) for k in one.queries)])
        sets.join([("k", i), *(_result(k) for k in one.keys)])
        if not one.queries and not one.keys and calls[i].shape[2] == calls[i].shape[3]:
            sets.join([("q", i), ("k", i)])  # the first attention of a stream that is no input
    live, waiting = set[int](), [k for k in read if k != INPUT]
    while waiting:
        i = waiting.pop()
        if i not in live:
            live.add(i)
            waiting += [k for k in sources[i].queries | sources[i].keys if k != INPUT]
    order = sorted(live)
    numbers: dict[Any, int] = {}
    sizes: dict[int, int] = {}
    layers, step, members = list[StreamLayer](), 0, set[int]()
    for i in order:
        if members & (sources[i].queries | sources[i].keys):
            step, members = step + 1, set()
        members.add(i)
        found = []
        for side, size in (("q", calls[i].shape[2]), ("k", calls[i].shape[3])):
            stream = numbers.setdefault(sets.of((side, i)), len(numbers))
            if sizes.setdefault(stream, size) != size:
                return None
            found.append(stream)
        layers.append(StreamLayer(i, found[0], found[1], step))
    explained = numbers.get(sets.of(_result(INPUT)))
    streams = {layer.call: layer.queries for layer in layers}
    last = {streams[k]: k for k in sorted(read - {INPUT})}
    # The input reaches the score past its own stream, so something else than the attention that was seen moves it.
    if explained is None or (INPUT in read and explained not in last):
        return None
    index = {layer.call: i for i, layer in enumerate(layers)}
    return Streams(tuple(layers), tuple(sizes.values()), explained, tuple(sorted(index[k] for k in last.values())))


def _result(source: int) -> tuple[str, int]:
    """Where the result of a call belongs: to the stream of its queries."""
    return ("q", source) if source != INPUT else ("input", INPUT)
