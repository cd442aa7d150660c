"""Relevance as a backward pass with other rules, through a model nobody rewrote.

Under ``RelevanceMode`` every torch function a model calls passes by here, and the ones a rule set names are computed by
its rules. What an operation is to the rules is decided by what it does, not by what it is called: a term or factor that
does not need a gradient does not depend on the input, for the parameters are frozen.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention import SAME, turns
from vitrail.capture.residual import ResidualStream
from vitrail.lrp.attention import DOORS as ATTENTION
from vitrail.lrp.attention import WHOLES
from vitrail.lrp.handlers import DOORS, IN_PLACE, depends
from vitrail.lrp.ops import Samples
from vitrail.lrp.rules import Rule, RuleSet

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
        self.stream = ResidualStream(_EVERY_CALL, torch.float32, self._found)

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
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        before: tuple[Tensor, GradientEdge, Tensor] | None = None,
    ) -> None:
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
