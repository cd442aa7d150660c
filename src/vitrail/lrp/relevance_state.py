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
from vitrail.lrp.rules import Rule

#: Most operations between a sigmoid and the product in which it is a gate: views, and sums with constants.
_GATE_STEPS = 8
_EVERY_CALL = {"dX": frozenset(range(4096))}


class RelevanceState:
    """The rules, and what was seen so far.

    Args:
        rules: The rule set.
        samples: Where the batch lies.
        heads_first: Whether a merged batch-and-heads axis holds all inputs of the first head first.
        mixed_precision: Whether matrix products take operands in half precision, see
            `vitrail.lrp.elementwise_gradients`.

    Attributes:
        attention: The attention maps, as nodes of the graph, one entry for each call, shape (b, H, m, n).
        first_values: Values of the first attention, shape (b, H, n, dh), in the graph.
        recogniser: Recognises attention that the model writes out.
        scores: Results of linear maps on one vector for each input.
        rotations: Products with constants that may be terms of a rotary position embedding.
        gates: Nodes of the graph that compute a sigmoid by a rule.
        weights: Results of a softmax, which are never negative, until they meet values.
        packed: Whether ``nn.MultiheadAttention`` is running, whose linear maps are no modules.
        stream: Follows the residual stream.
    """

    def __init__(
        self, rules: RuleSet, samples: Samples, heads_first: bool = False, mixed_precision: bool = False
    ) -> None:
        super().__init__()
        self.rules = rules
        self.mixed_precision = mixed_precision
        self.samples = samples
        self.heads_first = heads_first
        self.attention: list[Tensor] = []
        self.first_values: Tensor | None = None
        self.recogniser = Recogniser()
        self.scores: dict[int, Tensor] = {}
        self.rotations: dict[int, Tensor] = {}
        self.gates: set[Any] = set()
        self.weights: dict[int, Tensor] = {}
        self.packed = False
        self.found: dict[tuple[str, int], Tensor] = {}
        self.stream = ResidualStream(_EVERY_CALL, torch.float32, self.found)

    def rule(self, name: str) -> Rule | None:
        """The rule for an operation, or None where its ordinary gradient is right."""
        table = self.rules.rules
        return table.get("linear" if name == "inner" and name not in table else name)

    def operand(self, x: Tensor, weight: Tensor) -> Tensor:
        """What enters a linear map, in the precision of its weights where precisions are mixed."""
        return x.to(weight.dtype) if self.mixed_precision else x

    def is_gate(self, value: Tensor) -> bool:
        """Whether a tensor depends on the input through a sigmoid alone, so that as a factor it opens and closes."""
        node = value.grad_fn if self.gates else None
        for _ in range(_GATE_STEPS):
            if node is None or node in self.gates:
                return node is not None
            before = [one for one, _ in node.next_functions if one is not None]
            node = before[0] if len(before) == 1 else None
        return False

    def reentered(self) -> AbstractContextManager[Any]:
        """A context in which the functions a handler calls are seen again."""
        raise NotImplementedError
