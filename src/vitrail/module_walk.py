"""Walk through the modules of a model faster than ``nn.Module.modules`` does, which builds a name for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once, in the order of ``model.modules()``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        >>> modules_of(model) == list(model.modules())
        True
    """
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            children = module._modules  # noqa: SLF001
            if children:
                waiting += [child for child in reversed(children.values()) if child is not None]
    return list(found.values())


def tensors_of(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Parameters and buffers that the modules hold themselves; shared ones come more than once."""
    for module in modules:
        for held in (module._parameters, module._buffers):  # noqa: SLF001
            for tensor in held.values():
                if tensor is not None:
                    yield tensor
