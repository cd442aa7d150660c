"""Raw attention: the attention of the readout token in one block."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import Needs, Trace
from vitrail.methods.registry import choose, register, within


def _needs(layer: int, head: int | None, **_: object) -> Needs:
    where = slice(layer, layer + 1 or None)
    return {"attention_mean": where} if head is None else {"attention": where}


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
    attention = trace.blocks[layer].attention
    batch, queries, keys = attention.size
    r = trace.reading(queries, keys)
    v = (torch.ones_like(r) if query == "sum" else r).expand(batch, -1)
    if head is None:
        return trace.patches(attention.mean_row(v))
    heads = attention.rows(v)
    within("head", head, heads.shape[1], "heads")
    return trace.patches(heads[:, head])
