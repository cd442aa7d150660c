"""Grad-CAM on attention: heads of the last block weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Needs, Trace
from vitrail.methods._blocks import BlockChoice, blocks_needed, chosen_blocks, mean_over_blocks, principal_component
from vitrail.methods.registry import choose, register


def _needs(block: BlockChoice, weights: str, **_: object) -> Needs:
    kinds = ("A", "dA") if weights == "matrix" else ("attention", "attention_gradient")
    return dict.fromkeys(kinds, blocks_needed(block))


@register(
    "gradcam",
    "Grad-CAM (attention)",
    "gradient",
    cite="selvaraju2020gradcam",
    needs=_needs,
    score="logit",
    variants={"bert": {"weights": "matrix"}},
)
def gradcam(trace: Trace, *, weights: str = "row", block: BlockChoice = -1, eigen: bool = False) -> Tensor:
    """The last block's attention to the patches, its heads weighted by the gradient's mean, kept where positive.

    Args:
        trace: The pass, with gradients.
        weights: A head's weight is the mean gradient over the patches of the readout's "row", or over the whole
            "matrix", as the released code for text models has it.
        block: Another block, by index from the start or negative from the end; of several, each map is divided by its
            maximum and their mean is taken.
        eigen: Take the first principal component of the weighted heads instead of their mean.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("weights", weights, ("row", "matrix"))
    valid = None if trace.valid is None else trace.patches(trace.valid)
    maps = []
    for index in chosen_blocks(block, len(trace.blocks)):
        attention = trace.blocks[index].attention
        batch, queries, keys = attention.size
        r = trace.reading(queries, keys).expand(batch, -1)
        whole = weights == "matrix"
        w = trace.mean(trace.mean(trace.blocks[index].dA) if whole else trace.patches(attention.gradient_rows(r)))
        weighted = w.unsqueeze(-1) * trace.patches(attention.rows(r))
        maps.append((principal_component(weighted, valid) if eigen else weighted.mean(1)).clamp_min(0))
    return mean_over_blocks(maps)
