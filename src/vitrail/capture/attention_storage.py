"""Which attention layers are kept as matrices, and which as queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.attention_products import MATRICES, PRODUCT_KINDS, attention_bytes
from vitrail.capture.model_structure import ModelStructure

#: Memory of the matrices of one pass from which on none is kept, in bytes: for models in half precision on CUDA, whose
#: fused attention is much faster than one that writes matrices, and for all others.
ROWWISE_FROM = {"half": 2**28, "other": 2**32}
#: The same for causal models: half of a matrix is masked, and rows are computed as far as they are not.
CAUSAL_ROWWISE_FROM = 2**26


def resolve_products(
    kept: Mapping[str, frozenset[int]],
    structure: ModelStructure,
    batch: int,
    weight: Tensor,
    edited: frozenset[int] = frozenset(),
) -> dict[str, frozenset[int]]:
    """Replace products with attention by the tensors they are computed from.

    Small attention is kept as matrices. Where the matrices of all blocks would take `ROWWISE_FROM` bytes
    (`CAUSAL_ROWWISE_FROM` in causal models), the blocks of which methods take nothing but products go under
    ``rowwise``: their queries, keys and values are kept, and the
    gradient at their output.

    Returns:
        For each kind of tensor, the blocks to keep it of, without kinds of products.
    """
    wanted = {kind: kept.get(kind, frozenset()) for kind in PRODUCT_KINDS}
    rowwise = _rowwise(kept, wanted, structure, batch, weight) - edited
    found = {kind: where for kind, where in kept.items() if kind not in PRODUCT_KINDS}
    for kind, where in wanted.items():
        tensor = PRODUCT_KINDS[kind]
        found[tensor] = found.get(tensor, frozenset()) | where
    found["rowwise"] = rowwise
    found["dZ"] = found.get("dZ", frozenset()) | (rowwise & wanted["attention_gradient"])
    return {kind: where for kind, where in found.items() if where}


def _rowwise(
    kept: Mapping[str, frozenset[int]],
    wanted: Mapping[str, frozenset[int]],
    structure: ModelStructure,
    batch: int,
    weight: Tensor,
) -> frozenset[int]:
    if fast.fast_paths_disabled() or structure.kind != "plain":
        return frozenset()
    needed = frozenset[int]().union(*wanted.values())
    matrices = frozenset[int]().union(*(kept.get(kind, frozenset()) for kind in MATRICES))
    layers, kind = structure.layers, weight.device.type
    half = kind == "cuda" and (weight.element_size() == 2 or torch.is_autocast_enabled(kind))
    means = wanted["attention_mean"] - wanted["attention"] - wanted["attention_gradient"] - wanted["attention_logits"]
    means = frozenset() if half else means  # in half precision their kernels are faster than to form the mean
    total, found = 0, set[int]()
    for i in needed - matrices:
        layer, both = layers[i], i in wanted["attention_gradient"]
        if not layer.pool and not (i in means and mean_is_smaller(layer.size[1], structure.width)):
            found.add(i)
            total += (1 + both) * attention_bytes(batch, layer.heads, *layer.size)
    least = ROWWISE_FROM["half" if half else "other"]
    least = min(least, CAUSAL_ROWWISE_FROM) if structure.causal else least
    return frozenset(found) if total >= least else frozenset()


def mean_is_smaller(tokens: int, width: int) -> bool:
    """Whether the mean of attention over heads takes less memory than queries and keys, in single precision.

    Example:
        >>> mean_is_smaller(197, 768), mean_is_smaller(1370, 512)
        (True, False)
    """
    return tokens < 2 * width


def some_weight(model: nn.Module) -> Tensor:
    """The first weight of a model that holds real numbers, or a number for a model without weights."""
    found = fast.float_parameter(model)
    return torch.zeros(()) if found is None else found
