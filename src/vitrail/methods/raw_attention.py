"""Raw attention: the attention of the readout token in one block."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Needs, Trace
from vitrail.methods._propagate import row
from vitrail.methods.registry import choose, register, within


def _needs(layer: int, head: int | None, **_: object) -> Needs:
    where = slice(layer, layer + 1 or None)
    return {"A_mean": where} if head is None else {"A": where}


@register(
    "raw_attention",
    "Raw attention",
    "attention",
    cite="clark2019look",
    class_specific=False,
    needs=_needs,
    variants={"column": {"query": "sum"}},
)
def raw_attention(trace: Trace, *, layer: int = -1, head: int | None = None, query: str = "readout") -> Tensor:
    """Attention of the readout token(s) to the patches in one block, averaged over heads.

    Args:
        trace: The pass.
        layer: Which block; the last by default.
        head: One head instead of their mean.
        query: "readout" takes the row the head reads; "sum" adds the rows of all queries (the column sum some
            authors call the last layer's attention).

    Returns:
        Relevance of patches, shape (b, S).
    """
    choose("query", query, ("readout", "sum"))
    within("layer", layer, len(trace.blocks), "blocks")
    block = trace.blocks[layer]
    if head is not None:
        within("head", head, block.A.shape[1], "heads")
    A = block.A_mean if head is None else block.A[:, head]
    if query == "sum":
        return trace.patches(A.sum(-2))
    r = trace.reading(*A.shape[-2:])
    return trace.patches(row(r.expand(len(A), -1), A))
