"""Confirm what is known of a model on the pass of the call that relies on it.

A structure that was measured in an earlier call is compared with what this call's own pass shows: the functions that
the model called, the attention layers that the target depends on, the token of each pixel of each image, and the kind
of output. How the head reads the tokens is not compared but measured in each pass. Nothing here asks what was changed
in the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail import fast
from vitrail.capture.kept_pass import ForwardPass
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import any_output, logits_of
from vitrail.capture.outputs import rows_are_probabilities
from vitrail.capture.program import Program, join_checksums
from vitrail.capture.structure import ANY_PROGRAM, is_measured_now
from vitrail.capture.token_order import order_differs
from vitrail.capture.verify import upstream_of
from vitrail.errors import StructureDiffersError

#: Most programs for which a structure is known to hold.
MAX_PROGRAMS = 32


def examine(shared: ForwardPass, targets: Sequence[Tensor] = (), by_order: bool = True) -> None:
    """Compare a pass with the structure it was run with; differences are noted in its evidence.

    Called before gradients are computed, since these may free the graph.

    Args:
        shared: A pass that was run to confirm its structure.
        targets: What is explained, each in the graph of the pass, where that is a function of the output.
        by_order: Whether results depend on which token is which patch; those of methods on pixels do not.
    """
    evidence, structure = shared.evidence, shared.structure
    if evidence is None:
        return
    evidence.differs("the functions that the model calls", program_differs(structure, evidence.program))
    if by_order and evidence.values is not None and evidence.leaf is not None and structure.owners is not None:
        moved = order_differs(evidence.values, evidence.leaf, structure.owners, structure.overlapping, evidence.axes)
        evidence.differs("the order of the patches", moved)
    scores = logits_of(shared.output)
    if scores is not None and structure.outputs != "sigmoid":
        evidence.differs("the kind of output", rows_are_probabilities(scores) != (structure.outputs == "probabilities"))
    if not targets and structure.calls != len(structure.layers):
        targets = [any_output(shared.output)]
    for target in targets if evidence.outputs else ():
        if not target.requires_grad:  # the gradient of such a target is refused with its own reason
            continue
        reached = upstream_of(target, evidence.outputs)
        layers = {layer.call for layer in structure.layers}
        # Results that do not depend on the input are no nodes of the graph.
        nodes = {call for call, Z in evidence.outputs.items() if Z.grad_fn is not None}
        if reached != layers & nodes:
            evidence.differs("which attention layers the score depends on", True)


def require_agreement(shared: ForwardPass) -> None:
    """Raise an error if the pass differs from the structure; what is on a device is read at once.

    While a pass is recorded nothing is read, as it was run before.

    Raises:
        StructureDiffersError: It differs; the message says in what.
    """
    evidence = shared.evidence
    if evidence is None or fast.capturing():
        return
    noted, evidence.disagreements = evidence.disagreements, []
    found = [reason for reason, value in noted if value is True]
    waiting = [(reason, value) for reason, value in noted if isinstance(value, Tensor)]
    if not found and waiting:
        answers = torch.stack([value.to(shared.device).reshape(()) for _, value in waiting]).tolist()
        found = [reason for (reason, _), answer in zip(waiting, answers, strict=True) if answer]
    if found:
        model = shared.structure.model
        raise StructureDiffersError(
            f"{model}: in this pass {found[0]} differed from the pass on which its structure was measured; it depends "
            "on the input or changes from pass to pass"
        )


def program_differs(structure: ModelStructure, program: Program) -> bool | Tensor:
    """Whether a pass called other functions than those for which the structure is known to hold."""
    known = structure.programs
    sums = join_checksums(program.indices)
    if is_measured_now(structure):
        while len(known) > MAX_PROGRAMS:
            known.pop(next(key for key in known if key != ANY_PROGRAM))
        known[program.value] = sums
        return False
    if program.value not in known:
        return True
    expected = known[program.value]
    if sums is None or expected is None:
        return (sums is None) != (expected is None)
    if sums.shape != expected.shape:
        return True
    other: Tensor = (sums != expected.to(sums.device)).any()
    return other
