"""What the handlers of relevance propagation share while a model runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.recogniser import Recogniser
from vitrail.capture.residual import ResidualStream
from vitrail.lrp.ops import Samples
from vitrail.lrp.rule_sets import RuleSet
from vitrail.lrp.rules import Rule, unchanged

#: Most operations between a sigmoid or tanh and the product in which it is a gate: views, and sums with constants.
_GATE_STEPS = 8
#: Most operations between the input of an activation that a model writes out and its sigmoid or tanh.
_ACTIVATION_STEPS = 16
_EVERY_CALL = {"dX": frozenset(range(4096))}


class RelevanceState:
    """The rules, and what was seen so far.

    Args:
        rules: The rule set.
        samples: Where the batch lies.
        heads_first: Whether a merged batch-and-heads axis holds all inputs of the first head first.
        mixed_precision: Whether matrix products take operands in half precision, see
            `vitrail.lrp.elementwise_gradients`.
        fuses: Whether fused attention stays so wherever the rules allow it, as its maps are not asked for.

    Attributes:
        attention: The attention maps, as nodes of the graph, one entry for each call, shape (b, H, m, n).
        keys: Number of keys of attention calls, by call.
        results: Results of attention calls, by call, in the graph.
        first_values: Values of the first attention, shape (b, H, n, dh), in the graph.
        recogniser: Recognises attention that the model writes out.
        scores: Results of linear maps on one vector for each input.
        rotations: Products with constants that may be terms of a rotary position embedding.
        gates: Nodes of the graph that compute a sigmoid.
        tanhs: Nodes of the graph that compute a tanh; 1 + tanh is a gate, as in a GELU that a model writes out.
        weights: Results of a softmax, which are never negative, until they meet values.
        packed: Whether ``nn.MultiheadAttention`` is running, whose linear maps are no modules.
        stream: Follows the residual stream.
    """

    def __init__(
        self,
        rules: RuleSet,
        samples: Samples,
        heads_first: bool = False,
        mixed_precision: bool = False,
        fuses: bool = False,
    ) -> None:
        super().__init__()
        self.rules, self.fuses = rules, fuses
        table = {"inner": rules.rules.get("linear"), **rules.rules}
        self._table = {name: None if rule is unchanged else rule for name, rule in table.items()}
        self.mixed_precision = mixed_precision
        self.samples = samples
        self.heads_first = heads_first
        self.attention: list[Tensor] = []
        self.keys: dict[int, int] = {}
        self.results: dict[int, Tensor] = {}
        self.first_values: Tensor | None = None
        self.recogniser = Recogniser()
        self.scores: dict[int, Tensor] = {}
        self.rotations: dict[int, Tensor] = {}
        self.gates: set[Any] = set()
        self.tanhs: set[Any] = set()
        self.weights: dict[int, Tensor] = {}
        self.packed = False
        self.found: dict[tuple[str, int], Tensor] = {}
        self.stream = ResidualStream(_EVERY_CALL, torch.float32, self.found)

    def rule(self, name: str) -> Rule | None:
        """The rule for an operation, or None where its ordinary gradient is right."""
        return self._table.get(name)

    def operand(self, x: Tensor, weight: Tensor) -> Tensor:
        """What enters a linear map, in the precision of its weights where precisions are mixed."""
        return x.to(weight.dtype) if self.mixed_precision else x

    def is_gate(self, value: Tensor, matrix: bool = False) -> bool:
        """Whether a tensor depends on the input through a sigmoid or 1 + tanh alone, so that it opens and closes.

        In a product of matrices only a sigmoid does: there, tanh limits the logits of attention.
        """
        node = value.grad_fn if self.gates or self.tanhs else None
        for step in range(_GATE_STEPS):
            if node is None or node in self.gates or node in self.tanhs:
                return node in self.gates or (step > 0 and node in self.tanhs and not matrix)
            before = _inputs_of(node)
            node = before[0] if len(before) == 1 else None
        return False

    def is_activation(self, gate: Tensor, other: Tensor) -> bool:
        """Whether a gate was computed from the factor it is multiplied with, as in x·sigmoid(x)."""
        first, sources = other.grad_fn, set()
        for _ in range(_GATE_STEPS):  # the factor itself, or what it is a multiple of
            before = [] if first is None else _inputs_of(first)
            sources.add(first)
            if len(before) != 1:
                break
            first = before[0]
        waiting = [gate.grad_fn]
        for _ in range(_ACTIVATION_STEPS):
            if not waiting or waiting[0] is None:
                return False
            node = waiting.pop(0)
            if node in sources:
                return True
            waiting += _inputs_of(node)
        return False

    def reentered(self) -> AbstractContextManager[Any]:
        """A context in which the functions a handler calls are seen again."""
        raise NotImplementedError


def _inputs_of(node: Any) -> list[Any]:
    """The nodes of the graph from which a node is computed."""
    return [one for one, _ in node.next_functions if one is not None]
