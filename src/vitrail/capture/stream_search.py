"""Search for the streams of tokens that the attention of a model joins.

In a pass in which every attention result is a leaf of the graph, gradients show what each attention reads directly:
results of earlier attention, or the input. What reaches an attention token by token, without another attention in
between, is the same stream of tokens. Tokens that become some of the tokens of a longer sequence, as the queries of a
query transformer among the words of a language model, are tokens of that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
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


#: Tokens of a leaf and the tokens of a result that they become; None where both have the same tokens.
Pairs = tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class _Sources:
    """What an attention call reads directly: calls, or the input, for its queries and for its keys and values."""

    queries: Mapping[int, Pairs]
    keys: Mapping[int, Pairs]


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
        return _Sources(queries, keys | own)
    logits = None if call.O is None else _direct(call.O, leaves, None)
    if logits is None or keys is None:
        return None
    # Logits depend on queries and keys; what the values do not read is read by the queries.
    return _Sources({k: None for k in logits if k not in keys} or keys, keys)


def _direct(result: Tensor, leaves: dict[int, Tensor], axis: int | None) -> dict[int, Pairs] | None:
    """The leaves that a tensor was computed from; None where a token depends on other tokens of a leaf.

    The tokens are differentiated in two halves, drawn at random. Each half has no gradient at the tokens of the other
    half. Of leaves with other tokens, each token that matters must become one token of the result.

    Args:
        result: A tensor.
        leaves: Leaves of its graph.
        axis: The axis of its tokens, which is that of attention results as well; None to leave the order open.
    """
    if not result.requires_grad:
        return {}
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
    there: dict[int, Pairs] = {k: None for k, size in sizes.items() if size > SILENT * top}
    for half, own in zip(halves, found, strict=False):
        for k, gradient in zip(leaves, own, strict=True):
            if k == INPUT or k not in there or gradient is None:
                continue
            alike = gradient.shape[-2] == len(half)
            if there[k] is None and not (alike and float(gradient[..., ~half, :].abs().max()) <= SILENT * sizes[k]):
                there[k] = _pairs(result, leaves[k], SILENT * sizes[k])
                if there[k] is None:
                    return None
    return there


def _pairs(result: Tensor, leaf: Tensor, silent: float) -> Pairs:
    """Which token of a result each token of a leaf becomes, where each becomes at most one; None otherwise.

    The tokens of the result are differentiated by the bits of their index: a token of the leaf has a gradient from the
    half that has a bit, or from the half that has it not, and never from both. The same for all examples.

    Args:
        result: Tokens along the last axis but one.
        leaf: A leaf of its graph, tokens likewise.
        silent: A gradient of at most this is none.
    """
    count, others = result.shape[-2], [axis for axis in range(leaf.dim()) if axis != leaf.dim() - 2]
    index, place = torch.arange(count, device=result.device), torch.zeros(leaf.shape[-2], dtype=torch.long)
    weight, read = direction(result), torch.zeros(leaf.shape[-2], dtype=torch.bool)
    for bit in range(max(1, (count - 1).bit_length())):
        halves = [index >> bit & 1 == value for value in (0, 1)]
        found = [gradients((result * weight * half[:, None]).sum(), [leaf])[0] for half in halves]
        without, having = (
            read.new_zeros(len(read)) if one is None else (one.abs().amax(others) > silent).cpu() for one in found
        )
        if bool((without & having).any()):
            return None
        place += having.long() << bit
        read |= without | having
    pairs = tuple((int(j), int(place[j])) for j in read.nonzero()[:, 0])
    return pairs if pairs and len({target for _, target in pairs}) == len(pairs) else None


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
        sets.join([("q", i), *(_result(k) for k, pairs in one.queries.items() if pairs is None)])
        sets.join([("k", i), *(_result(k) for k, pairs in one.keys.items() if pairs is None)])
        whole = None in (*one.queries.values(), *one.keys.values())
        if not whole and one.queries == one.keys and calls[i].shape[2] == calls[i].shape[3]:
            sets.join([("q", i), ("k", i)])  # the first attention of a stream that is no input
    order = sorted(_live(sources, read))
    sizes: dict[Any, int] = {}
    links = list[tuple[Any, Any, tuple[tuple[int, int], ...]]]()
    for i in order:
        for side, size, own in (
            ("q", calls[i].shape[2], sources[i].queries),
            ("k", calls[i].shape[3], sources[i].keys),
        ):
            group = sets.of((side, i))
            if sizes.setdefault(group, size) != size:
                return None
            links += [(sets.of(_result(k)), group, pairs) for k, pairs in own.items() if pairs is not None]
    merged = _merged(sizes, links)
    if merged is None or any(sets.of(_result(INPUT)) in link[:2] for link in links):
        return None  # the tokens that are explained would be some of a longer sequence
    numbers: dict[Any, int] = {}
    counts = list[int]()
    layers, step, members = list[StreamLayer](), 0, set[int]()
    for i in order:
        if members & {*sources[i].queries, *sources[i].keys}:
            step, members = step + 1, set()
        members.add(i)
        found = []
        for side in "qk":
            stream, count, places = merged[sets.of((side, i))]
            if numbers.setdefault(stream, len(numbers)) == len(counts):
                counts.append(count)
            found.append((numbers[stream], places))
        layers.append(StreamLayer(i, found[0][0], found[1][0], step, found[0][1], found[1][1]))
    own_group = sets.of(_result(INPUT))
    explained = numbers.get(merged[own_group][0]) if own_group in merged else None
    streams = {layer.call: layer.queries for layer in layers}
    last = {streams[k]: k for k in sorted(read - {INPUT})}
    # The input reaches the score past its own stream, so something else than the attention that was seen moves it.
    if explained is None or (INPUT in read and explained not in last):
        return None
    index = {layer.call: i for i, layer in enumerate(layers)}
    return Streams(tuple(layers), tuple(counts), explained, tuple(sorted(index[k] for k in last.values())))


def _live(sources: Sequence[_Sources], read: frozenset[int]) -> set[int]:
    """The calls that the score depends on."""
    live, waiting = set[int](), [k for k in read if k != INPUT]
    while waiting:
        i = waiting.pop()
        if i not in live:
            live.add(i)
            waiting += [k for k in (*sources[i].queries, *sources[i].keys) if k != INPUT]
    return live


def _merged(
    sizes: Mapping[Any, int], links: Sequence[tuple[Any, Any, tuple[tuple[int, int], ...]]]
) -> dict[Any, tuple[Any, int, tuple[int, ...] | None]] | None:
    """Stream of each group of tokens, its number of tokens, and the places of the group's tokens in it.

    Groups that share tokens are one stream. None where a token of a group would be two tokens of it.

    Args:
        sizes: Number of tokens of each group.
        links: Pairs of groups with pairs of tokens that are the same.
    """
    tokens, groups = _Sets(), _Sets()
    for one, two, pairs in links:
        groups.join([one, two])
        for first, second in pairs:
            tokens.join([(one, first), (two, second)])
    places: dict[Any, dict[Any, int]] = {}
    found: dict[Any, tuple[int, ...]] = {}
    for group in sorted(sizes, key=lambda one: -sizes[one]):
        known = places.setdefault(groups.of(group), {})
        found[group] = tuple(known.setdefault(tokens.of((group, j)), len(known)) for j in range(sizes[group]))
        if len(set(found[group])) < sizes[group]:
            return None
    totals = {stream: len(known) for stream, known in places.items()}
    result: dict[Any, tuple[Any, int, tuple[int, ...] | None]] = {}
    for group, positions in found.items():
        stream = groups.of(group)
        whole = positions == tuple(range(totals[stream]))
        result[group] = stream, totals[stream], None if whole else positions
    return result


def _result(source: int) -> tuple[str, int]:
    """Where the result of a call belongs: to the stream of its queries."""
    return ("q", source) if source != INPUT else ("input", INPUT)
