"""The last forward pass under relevance rules, kept for the next method with the same rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitrail.capture.forward import output_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.kept_pass import ForwardPass
from vitrail.capture.model_structure import ModelStructure

if TYPE_CHECKING:
    from vitrail.lrp.propagate import Propagation
    from vitrail.lrp.rule_sets import RuleSet


class PropagationCache:
    """The last forward pass under relevance rules; its graph is as large as that of a training step, so only one."""

    def __init__(self) -> None:
        self._last: Propagation | None = None

    def get(self, rules: RuleSet, run: Callable[[], Propagation]) -> Propagation:
        """The pass under these rules: the kept one, or a new one after the old graph was released."""
        if self._last is None or self._last.rules is not rules:
            self._last = None
            self._last = run()
        return self._last

    def output_pass(
        self, model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, rules: RuleSet
    ) -> ForwardPass | None:
        """Run the forward pass under rules, keep it, and return it as a pass for the model's output.

        Rules change what goes backwards only, so its class scores are the model's own. None where they are not, or
        where the structure cannot be confirmed by it: the model is in half precision, runs under autocast, masks its
        attention, attends elsewhere as well, or has no class scores.
        """
        from vitrail.lrp.propagate import propagation

        seen = structure.kind == "plain" and not structure.masked and structure.calls == len(structure.layers)
        if not seen or model_inputs.image is None or torch.is_autocast_enabled(model_inputs.tensors[0].device.type):
            return None
        found = self.get(rules, lambda: propagation(model, model_inputs, structure, rules))
        if found.scores is None or found.evidence is None:
            return None
        evidence = found.evidence if rules.gradient else replace(found.evidence, values=None)
        return output_pass(model, model_inputs, structure, found.scores, evidence)

    def clear(self) -> None:
        """Release the graph."""
        self._last = None
