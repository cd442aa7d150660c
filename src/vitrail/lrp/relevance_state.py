"""What the handlers of relevance propagation share while a model runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.recogniser import Recogniser
from vitrail.capture.residual import ResidualStream
from vitrail.lrp.ops import Samples
from vitrail.lrp.rules import Rule, RuleSet

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

    def reentered(self) -> AbstractContextManager[Any]:
        """A context in which the functions a handler calls are seen again."""
        raise NotImplementedError
