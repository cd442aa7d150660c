"""A description of the graph of gradients of a pass, to see whether two passes move and detach tensors alike.

A change of a model can leave its outputs as they are and still change maps: tokens in another order, a term that is
detached. Such a change is seen in the graph, which torch builds anyway where gradients are on, so that no function of
the pass has to be noted from Python.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitrail.capture.program import MAX_INDEX, checksum, join_checksums

#: Graph of a pass as one number, and checksums of the indices in it; None without indices.
Moves = tuple[int, Tensor | None]
#: Operations whose settings are compared by the outputs: others in their place change these.
_COMPUTING = (
    "Addmm", "Mm", "Bmm", "Baddbmm", "NativeLayerNorm", "NativeGroupNorm", "Gelu", "Relu", "Silu", "Tanh", "Softmax",
    "ScaledDotProduct", "Convolution", "Add", "Mul", "Sub", "Div", "Pow", "Rsqrt", "AccumulateGrad",
)  # fmt: skip
#: Names of the settings of each kind of operation; none of those that compute.
_settings: dict[type, tuple[str, ...]] = {}


def graph_moves(output: Tensor) -> Moves:
    """The graph behind a tensor: its operations, how they are connected, their settings and indices.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 4, 2, requires_grad=True)
        >>> def number(order):
        ...     return [float(one.sum()) if i else one for i, one in enumerate(graph_moves(x[:, order].mean(1)))]
        >>> number([0, 1, 2, 3]) == number([0, 1, 2, 3]), number([0, 1, 2, 3]) == number([1, 0, 2, 3])
        (True, False)
    """
    places: dict[Any, int] = {}
    edges: list[tuple[Any, int]] = []
    described: list[Any] = []
    indices: list[Tensor] = []
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in places:
            continue
        places[node] = len(places)
        kind = type(node)
        described.append(kind)
        names = _settings.get(kind)
        if names is None:
            names = _settings[kind] = _setting_names(node)
        for name in names:
            value = getattr(node, name, None)
            if name.endswith("_sizes"):
                described.append(value)
                continue
            plain = type(value) is int or (type(value) is tuple and value and type(value[0]) is int)
            # As text, since Python's hashes of −1 and −2 are equal.
            described.append(repr(value) if plain else _described(value, indices))
        following = node.next_functions
        edges += following
        waiting += [one for one, _ in following]
    described += [(places.get(one), at) for one, at in edges]
    return hash(tuple(described)), join_checksums([checksum(one) for one in indices])


def _setting_names(node: Any) -> tuple[str, ...]:
    if node.name().startswith(_COMPUTING):
        return ()
    return tuple(name for name in dir(node) if name.startswith("_saved_"))


def _described(value: Any, indices: list[Tensor]) -> Any:
    """A hashable stand-in for a setting; integer tensors are added to the indices, other tensors left out."""
    if isinstance(value, Tensor):
        if not (value.is_floating_point() or value.is_complex()) and 0 < value.numel() <= MAX_INDEX:
            indices.append(value)
        return value.dim()
    if isinstance(value, tuple | list):
        return tuple(_described(one, indices) for one in value)
    return repr(value) if value is None or isinstance(value, str | bool | int | float) else type(value)
