"""CDAM: the gradient of the last block's features times the features."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.methods._blocks import BlockChoice, blocks_needed, chosen_blocks, mean_over_blocks
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import Applies, register


def _needs(block: BlockChoice, **_: object) -> Needs:
    return dict.fromkeys(("Y", "dY"), blocks_needed(block))


@register(
    "cdam",
    "CDAM",
    "gradient",
    cite="brocki2024class",
    needs=_needs,
    score="logit",
    signed=True,
    applies=Applies(reads="features"),
)
def cdam(trace: ProbedTrace, *, block: BlockChoice = -1) -> Tensor:
    """Each patch's features, as the last attention reads them, times the gradient at them.

    Args:
        trace: The pass, with gradients.
        block: Another block, by index from the start or negative from the end; of several, each map is divided by its
            largest magnitude and their mean is taken.

    Returns:
        Relevance on the grid of the features, shape (b, rows, columns), signed.
    """
    blocks = [trace.blocks[index] for index in chosen_blocks(block, len(trace.blocks))]
    return mean_over_blocks([trace.probe.as_map(one.Y * one.dY).sum(1) for one in blocks])
