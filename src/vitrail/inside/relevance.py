"""Relevance propagation as a backward pass with other rules, through a model nobody rewrote.

Under ``RelevanceMode`` every torch function a model calls passes by here, and the ones a rule set names are computed by
its rules. What an operation is to the rules is decided by what it does, not by what it is called: a term or factor that
does not need a gradient does not depend on the input, for the parameters are frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from vitrail.errors import ModelError, NotApplicableError
from vitrail.inside.anatomy import Anatomy
from vitrail.inside.attention import SAME, turns
from vitrail.inside.doors import DOORS, IN_PLACE, depends
from vitrail.inside.feed import Feed, any_output
from vitrail.inside.operations import Samples
from vitrail.inside.rules import Rule, RuleSet
from vitrail.inside.still import still
from vitrail.inside.stream import Stream
from vitrail.inside.trace import Trace
from vitrail.inside.unfold import DOORS as ATTENTION
from vitrail.inside.unfold import WHOLES

_EVERY_CALL = {"dX": frozenset(range(4096))}


class RelevanceMode(TorchFunctionMode):
    """Let rules compute what they are for, and note where attention and the residual stream are.

    Args:
        rules: The rule set.
        samples: Where the batch lies.
        text: Whether the graph starts at the vectors of words, a text having no pixels.

    Attributes:
        attention: The attention maps, as nodes of the graph, one entry a call.
        entering: For each attention call whose branch is added to a stream, that stream: its place in the graph, and
            its value.
        pending: A softmax that is attention if its result meets values, and what that result is called by now.
        transposed: The same with its axes swapped, where values come before attention.
        scores: Results of linear maps on one vector an input.
        turned: Products with constants that may be parts of a rotation.
        packed: Whether ``nn.MultiheadAttention`` is at work, whose linear maps are no modules.
    """

    def __init__(self, rules: RuleSet, samples: Samples, text: bool = False) -> None:
        super().__init__()
        self.rules = rules
        self.samples = samples
        self.attention: list[Tensor] = []
        self.entering: dict[int, tuple[GradientEdge, Tensor]] = {}
        self.pending: tuple[Tensor, Tensor] | None = None
        self.transposed: Tensor | None = None
        self.scores: dict[int, Tensor] = {}
        self.turned: dict[int, Tensor] = {}
        self.packed = False
        self._text = text
        self._found: dict[tuple[str, int], Tensor] = {}
        self.stream = Stream(_EVERY_CALL, torch.float32, self._found)

    def rule(self, name: str) -> Rule | None:
        """The rule for an operation, or None where its ordinary gradient will do."""
        table = self.rules.rules
        return table.get("linear" if name == "inner" and name not in table else name)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        whole = WHOLES.get(func)
        if whole is not None:
            return whole(self, func, *args, **kwargs)
        beside = IN_PLACE.get(func)
        if beside is not None and any(map(depends, args)):
            return self._in_place(beside, args, kwargs)
        result = self._call(func, args, kwargs)
        self._follow(func, args, kwargs, result)
        return result

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        door = ATTENTION.get(func)
        if door is None and (any(map(depends, args)) or any(map(depends, kwargs.values()))):
            door = DOORS.get(func)
        if door is not None:
            return door(self, func, *args, **kwargs)
        result = func(*args, **kwargs)
        if self._text and func is F.embedding and result.is_leaf:
            # A copy, because models add to it in place, and nobody may do that where a graph starts.
            return result.requires_grad_().clone()
        return result

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute beside, then write over: rules need what was there before."""
        target: Tensor = args[0]
        before = (target, get_gradient_edge(target), target.detach().clone()) if target.requires_grad else None
        target.copy_(self._call(func, (target.clone(), *args[1:]), kwargs))
        self._follow(func, args, kwargs, target, before)
        return target

    def _follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any,
        before: tuple[Tensor, GradientEdge, Tensor] | None = None,
    ) -> None:  # fmt: skip
        if self.pending is not None and args and args[0] is self.pending[1]:
            if func in SAME:
                self.pending = (self.pending[0], result)
            elif turns(func, args):
                self.transposed = result
        self.stream.after(func, args, kwargs, result)
        for (_, call), stream in self._found.items():
            if before is not None and stream is before[0]:
                self.entering[call] = before[1:]
            elif stream.requires_grad:
                self.entering[call] = (get_gradient_edge(stream), stream.detach())
        self._found.clear()


@dataclass(frozen=True)
class Relevances:
    """What came down.

    Attributes:
        A: Relevance of the attention of each block, shape (b, H, m, n); of the last block only where that was asked.
        tokens: Relevance of the tokens that enter the first block, prefix included, shape (b, n).
        pixels: Relevance of the pixels, summed over channels, shape (b, height, width).
        blocks: Total relevance that enters each block's stream, shape (b,); attention pools have none and are left out.
    """

    A: tuple[Tensor, ...] = ()
    tokens: Tensor | None = None
    pixels: Tensor | None = None
    blocks: tuple[Tensor, ...] = ()

    def map(self, trace: Trace) -> Tensor:
        """Relevance of pixels, shape (b, height, width), where it was asked for, else of patches, shape (b, S)."""
        if self.pixels is not None:
            return self.pixels
        if self.tokens is None:
            raise ValueError("neither pixels nor tokens were asked for")
        return trace.patches(self.tokens)


def propagate(
    model: nn.Module, feed: Feed, anatomy: Anatomy, rules: RuleSet, start: Callable[[Tensor], Tensor],
    want: frozenset[str], read: Callable[[Any], Tensor] = any_output,
) -> Relevances:  # fmt: skip
    """One forward, and one backward that carries relevance.

    Args:
        model: The user's model, unwrapped; it is left as it was.
        feed: Inputs on its device.
        anatomy: As read from it.
        rules: What each operation does with relevance.
        start: From the scores, shape (b, C), to the relevance to start with, in their shape.
        want: Any of "A", "A:last" (of the last block only, which is cheaper), "tokens", "pixels" and "totals".
        read: From the model's output to the scores; what it computes is propagated through as well.

    Returns:
        What was wanted. Rules that carry gradients give input times gradient everywhere.
    """
    batch = feed.batch
    if anatomy.tokens_first and batch > 1 and batch in (anatomy.tokens, anatomy.tokens - (anatomy.layout.prefix or 0)):
        # In a square of tokens and images nobody can tell which axis is which.
        cut = (slice(0, batch - 1), slice(batch - 1, None))
        parts = [(feed.take(rows), rows) for rows in cut]
        return _joined([
            propagate(model, part, anatomy, rules, _part_of(start, rows, batch), want, read) for part, rows in parts
        ])  # fmt: skip
    device = feed.tensors[0].device
    with still(model), torch.autocast(device.type, enabled=False):
        image = feed.image
        if image is not None:
            leaf = image.detach().to(torch.promote_types(image.dtype, torch.float32)).requires_grad_()
            feed = feed.swap(image, leaf.clone())
        elif "pixels" in want:
            raise NotApplicableError("a text has no pixels: ask for the relevance of its tokens")
        mode = RelevanceMode(rules, Samples(batch, anatomy.tokens_first), text=image is None)
        with mode:
            scores = read(_single(model, feed))
        if len(mode.attention) <= anatomy.organs[-1].call:
            raise ModelError(
                f"the model attended {len(mode.attention)} times where {anatomy.organs[-1].call + 1} were expected: "
                "its path depends on the input; explain the inputs one by one"
            )
        if not scores.requires_grad:
            raise ModelError("the model's output does not depend on its input, so no relevance can flow")
        return _collect(mode, anatomy, scores, start(scores.detach()), want, leaf if image is not None else None)


def _single(model: nn.Module, feed: Feed) -> Any:
    """What the model says; one in half precision says it in single, for its numbers cannot hold relevance."""
    named = (*model.named_parameters(), *model.named_buffers())
    half = {name: t for name, t in named if t.dtype in (torch.float16, torch.bfloat16)}
    if not half:
        return feed.into(model)
    wide = Feed(tuple(map(_widened, feed.args)), {k: _widened(v) for k, v in feed.kwargs.items()})
    return functional_call(model, {name: t.detach().float() for name, t in half.items()}, wide.args, dict(wide.kwargs))


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


@dataclass(frozen=True)
class _Place:
    """Where relevance is read: a node of the graph, and the value there for rules that carry gradients."""

    node: Tensor | GradientEdge
    value: Tensor


def _collect(
    mode: RelevanceMode, anatomy: Anatomy, scores: Tensor, R: Tensor, want: frozenset[str], image: Tensor | None
) -> Relevances:
    organs = anatomy.organs
    attention = organs if "A" in want else organs[-1:] if "A:last" in want else ()
    streams = [o.call for o in organs if not o.pool] if want & {"tokens", "totals"} else []
    missing = [i for i, call in enumerate(streams) if call not in mode.entering]
    if missing:
        raise NotApplicableError(
            f"the residual stream was not found in block {missing[0]} of {anatomy.model}, so the relevance of its "
            "tokens cannot be read; ask for pixels"
        )
    if "totals" not in want:
        streams = streams[:1]
    if any(not mode.attention[o.call].requires_grad for o in attention):
        raise NotApplicableError(f"the rules of {mode.rules.name} hold attention fixed, so it has no relevance")
    places = [_Place(mode.attention[o.call], mode.attention[o.call]) for o in attention]
    places += [_Place(*mode.entering[call]) for call in streams]
    if "pixels" in want and image is not None:
        places.append(_Place(image, image))
    nodes: Any = [place.node for place in places]
    found = torch.autograd.grad(scores, nodes, R, allow_unused=True)
    values = [_relevance(place, value, mode.rules.gradient) for place, value in zip(places, found, strict=True)]

    batch = mode.samples.count
    # Some models take their softmax in single precision whatever they run in; relevance has the scores' own.
    A = [v.view(batch, -1, *v.shape[-2:]).to(scores.dtype) for v in values[: len(attention)]]
    X = [_batch_first(v, mode.samples) for v in values[len(attention) : len(attention) + len(streams)]]
    return Relevances(
        tuple(A),
        X[0].sum(-1) if "tokens" in want else None,
        values[-1].sum(1) if "pixels" in want else None,
        tuple(x.sum((1, 2)) for x in X) if "totals" in want else (),
    )


def _relevance(place: _Place, found: Tensor | None, gradient: bool) -> Tensor:
    if found is None:
        return torch.zeros_like(place.value)
    return found * place.value.detach() if gradient else found


def _batch_first(X: Tensor, samples: Samples) -> Tensor:
    return X.transpose(0, 1) if samples.second and X.shape[1] == samples.count else X


def _part_of(start: Callable[[Tensor], Tensor], rows: slice, batch: int) -> Callable[[Tensor], Tensor]:
    """The start of some of the inputs, from a start that is made for all."""

    def part(scores: Tensor) -> Tensor:
        whole = scores.new_zeros(batch, *scores.shape[1:])
        whole[rows] = scores
        return start(whole)[rows]

    return part


def _joined(parts: list[Relevances]) -> Relevances:
    first = parts[0]
    return Relevances(
        tuple(torch.cat(pair) for pair in zip(*(p.A for p in parts), strict=True)),
        None if first.tokens is None else torch.cat([p.tokens for p in parts if p.tokens is not None]),
        None if first.pixels is None else torch.cat([p.pixels for p in parts if p.pixels is not None]),
        tuple(torch.cat(pair) for pair in zip(*(p.blocks for p in parts), strict=True)),
    )
