"""Which attention layers are kept as matrices, and which as queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from vitrail.capture.attention_products import MATRICES, PRODUCT_KINDS, attention_bytes
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.plain import plain

#: Memory of the matrices of one pass in single precision from which on none is kept, in bytes.
ROWWISE_FROM = 2**30


def resolve_products(
    kept: Mapping[str, frozenset[int]],
    structure: ModelStructure,
    batch: int,
    edited: frozenset[int] = frozenset(),
) -> dict[str, frozenset[int]]:
    """Replace products with attention by the tensors they are computed from.

    Small attention is kept as matrices, which is faster. Where the matrices of all blocks would take `ROWWISE_FROM`
    bytes, the blocks of which methods take nothing but products go under ``rowwise``: their queries, keys and values
    are kept, and the gradient at their output.

    Args:
        kept: For each kind of tensor or product, the blocks to keep it of.
        structure: The model's structure.
        batch: Number of inputs.
        edited: Blocks whose attention is replaced.

    Returns:
        For each kind of tensor, the blocks to keep it of, without kinds of products.
    """
    wanted = {kind: kept.get(kind, frozenset()) for kind in PRODUCT_KINDS}
    rowwise = _rowwise(kept, wanted, structure, batch) - edited
    found = {kind: where for kind, where in kept.items() if kind not in PRODUCT_KINDS}
    for kind, where in wanted.items():
        tensor = PRODUCT_KINDS[kind]
        found[tensor] = found.get(tensor, frozenset()) | where
    found["rowwise"] = rowwise
    found["dZ"] = found.get("dZ", frozenset()) | (rowwise & wanted["attention_gradient"])
    return {kind: where for kind, where in found.items() if where}


def _rowwise(
    kept: Mapping[str, frozenset[int]], wanted: Mapping[str, frozenset[int]], structure: ModelStructure, batch: int
) -> frozenset[int]:
    if plain() or structure.kind != "plain":
        return frozenset()
    needed = frozenset[int]().union(*wanted.values())
    matrices = frozenset[int]().union(*(kept.get(kind, frozenset()) for kind in MATRICES))
    layers = structure.layers
    free = frozenset(i for i in needed - matrices if not layers[i].pool)
    both = wanted["attention_gradient"]
    total = sum((2 if i in both else 1) * attention_bytes(batch, layers[i].heads, *layers[i].size) for i in free)
    return free if total >= ROWWISE_FROM else frozenset()
