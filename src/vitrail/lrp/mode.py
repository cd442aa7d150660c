"""The function mode under which a backward pass carries relevance instead of gradients.

Under ``RelevanceMode`` every torch function a model calls is seen, and the ones a rule set names are computed by its
rules. What an operation is to the rules is decided by what it does: a term or factor that does not need a gradient does
not depend on the input, for the parameters are frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention import ATTRIBUTES
from vitrail.capture.program import Program
from vitrail.capture.recogniser import DIV, MAY_START
from vitrail.lrp.attention_operations import ATTENTION, STEPWISE, written_softmax
from vitrail.lrp.handlers import IN_PLACE, handlers_of
from vitrail.lrp.operands import depends
from vitrail.lrp.ops import Samples
from vitrail.lrp.relevance_state import RelevanceState
from vitrail.lrp.rule_sets import RuleSet

#: Functions that are more than their handler: attention, what overwrites its argument, what may end a softmax that the
#: model writes out, and where the graph of a text starts.
_STEPS = frozenset((*STEPWISE, *IN_PLACE, *ATTENTION, *DIV, F.embedding))


class RelevanceMode(RelevanceState, TorchFunctionMode):
    """Let rules compute the operations they are for, and note where attention and the residual stream are.

    Args:
        rules: The rule set.
        samples: Where the batch lies.
        text: Whether the graph starts at the embeddings of tokens, a text having no pixels.
        heads_first: Whether a merged batch-and-heads axis holds all inputs of the first head first.
        mixed_precision: Whether matrix products take operands in half precision, see
            `vitrail.lrp.elementwise_gradients`.
        program: Notes every function that the model calls, or None.
        tokens_of: The attention call whose stream alone is asked for: attention stays fused wherever the rules allow
            it, and the stream is followed no further. None for all streams and the attention maps.

    Attributes:
        program: As given.
        entering: For each attention call whose branch is added to a stream, that stream: its place in the graph, and
            its value.
    """

    def __init__(
        self,
        rules: RuleSet,
        samples: Samples,
        text: bool = False,
        heads_first: bool = False,
        mixed_precision: bool = False,
        program: Program | None = None,
        tokens_of: int | None = None,
    ) -> None:
        super().__init__(rules, samples, heads_first, mixed_precision, fuses=tokens_of is not None)
        self._tokens_of = tokens_of
        self.program, self._inside = program, False
        self._handlers = handlers_of(rules)
        self.entering: dict[int, tuple[GradientEdge, Tensor]] = {}
        self._text = text

    def reentered(self) -> AbstractContextManager[Any]:
        """The mode itself, once more."""
        return self

    def for_recomputation(self) -> Callable[[], RelevanceMode]:
        """Function that returns a mode with the same rules, for operations of this pass that are computed again."""
        given = (self.rules, self.samples, self._text, self.heads_first, self.mixed_precision, None, self._tokens_of)
        return lambda: RelevanceMode(*given)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in ATTRIBUTES:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        program = None if self._inside else self.program
        if func in _STEPS:
            self._inside = True  # the steps of a function are none of the model's calls
            try:
                result = self._by_rules(func, args, kwargs)
            finally:
                self._inside = program is None and self.program is not None
        else:
            result = self._handled(func, args, kwargs)
            if func in MAY_START or not self.recogniser.followed.isdisjoint(map(id, args[:2])):
                self.recogniser.follow(func, args, kwargs, result)
            if self._tokens_of not in self.entering:
                self._follow_stream(func, args, kwargs, result)
        if program is not None:
            program.note(func, args, kwargs, result)
        return result

    def _by_rules(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stepwise = STEPWISE.get(func)
        if stepwise is not None:
            return stepwise(self, func, *args, **kwargs)
        if func in IN_PLACE and any(map(depends, args)):
            return self._in_place(IN_PLACE[func], args, kwargs)
        result = self._call(func, args, kwargs)
        self._follow(func, args, kwargs, result)
        return result

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in ATTENTION:
            return ATTENTION[func](self, func, *args, **kwargs)
        written = self.recogniser.written_softmax(func, args) if func in DIV else None
        if written is not None:
            return written_softmax(self, *written)
        result = self._handled(func, args, kwargs)
        if self._text and func is F.embedding and result.is_leaf:
            # A copy, because models add to it in place, which a leaf does not allow.
            return (result.float() if self.mixed_precision else result).requires_grad_().clone()
        return result

    def _handled(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handler = self._handlers.get(func)
        if handler is not None:
            compute, missing = handler
            for value in (*args, *kwargs.values()):
                if isinstance(value, Tensor) and value.requires_grad:
                    missing -= 1
                    if missing == 0:
                        return compute(self, func, *args, **kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute the result first, then overwrite: rules need the old value."""
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
        if func not in ATTENTION:
            self.recogniser.follow(func, args, kwargs, result)
        if self._tokens_of not in self.entering:
            self._follow_stream(func, args, kwargs, result, before)

    def _follow_stream(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        before: tuple[Tensor, GradientEdge, Tensor] | None = None,
    ) -> None:
        self.stream.after(func, args, kwargs, result)
        for (_, call), stream in self.found.items():
            if before is not None and stream is before[0]:
                self.entering[call] = before[1:]
            elif stream.requires_grad:
                self.entering[call] = (get_gradient_edge(stream), stream.detach())
        self.found.clear()
