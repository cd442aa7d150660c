"""What a pass shows of the facts that were known of its model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from vitrail.capture.program import Program
from vitrail.capture.signal_axes import SignalAxes


@dataclass
class PassEvidence:
    """What a pass shows of the facts that were known of its model.

    Attributes:
        program: The functions that the model called.
        values: Values of the first attention, in the graph of ``leaf``; None where they were not kept.
        leaf: The images, or other numbers on axes, that the graph starts at, or None.
        axes: The axes of ``leaf``; None for images.
        outputs: Results of attention calls in the graph, by call, where all of them are.
        disagreements: What differs from the structure, by reason: whether it does, known at once or on the device.
    """

    program: Program
    values: Tensor | None = None
    leaf: Tensor | None = None
    axes: SignalAxes | None = None
    outputs: dict[int, Tensor] = field(default_factory=dict)
    disagreements: list[tuple[str, bool | Tensor]] = field(default_factory=list)

    def differs(self, reason: str, value: bool | Tensor) -> None:
        """Note whether something differs from the structure."""
        if value is not False:
            self.disagreements.append((reason, value))
