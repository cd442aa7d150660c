"""The last forward pass under relevance rules, kept for the next method with the same rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitrail import fast
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

    def get(
        self, rules: RuleSet, run: Callable[[], Propagation], read: Callable[[Any], Tensor] | None = None
    ) -> Propagation:
        """The pass under these rules: the kept one, or a new one after the old graph was released.

        Args:
            rules: The rules.
            run: Runs a pass.
            read: From the output to the scores, where the kept pass has not read them yet.
        """
        if self._last is None or self._last.rules is not rules:
            self._last = None
            self._last = run()
        elif read is not None and self._last.output is not None:
            self._last = self._last.reading(read)
        return self._last

    def output_pass(
        self, model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, rules: RuleSet, function: bool
    ) -> ForwardPass | None:
        """Run the forward pass under rules, keep it, and return it as a pass for the model's output.

        Rules change what goes backwards only, so its class scores are the model's own. None where they are not, or
        where the structure cannot be confirmed by it: the model is in half precision, runs under autocast, attends
        elsewhere as well, or has no class scores. For a function of the output, the model must be a causal one of
        words: no gradient reaches words behind those it reads, so its masks are not needed.

        Args:
            model: The model.
            model_inputs: Its inputs.
            structure: Its structure.
            rules: The rules.
            function: Whether a function of the output is explained.
        """
        from vitrail.lrp.propagate import in_half_precision, propagation

        seen = structure.kind == "plain" and structure.calls == len(structure.layers)
        if not seen or torch.is_autocast_enabled(model_inputs.tensors[0].device.type):
            return None
        if function:
            prompt = model_inputs.words is not None and structure.causal and not structure.pooled
            if not prompt or fast.recomputing() or in_half_precision(model):
                return None
            found = self.get(rules, lambda: propagation(model, model_inputs, structure, rules, None))
            return output_pass(model, model_inputs, structure, found.output, found.evidence)
        if model_inputs.image is None or structure.masked:
            return None
        found = self.get(rules, lambda: propagation(model, model_inputs, structure, rules))
        if found.scores is None or found.evidence is None:
            return None
        evidence = found.evidence if rules.gradient else replace(found.evidence, values=None)
        return output_pass(model, model_inputs, structure, found.scores, evidence)

    def clear(self) -> None:
        """Release the graph."""
        self._last = None
