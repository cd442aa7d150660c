"""The modules that are a model's blocks, and a pass in which all examples of a batch enter each block alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from vitrail.capture.model_structure import ModelStructure
from vitrail.errors import NotApplicableError


def block_modules(model: nn.Module, structure: ModelStructure) -> tuple[nn.Module, ...]:
    """The module of each block: the entry of a list of modules that holds its attention and that of no other block.

    Raises:
        NotApplicableError: A block is no entry of a list, or the output projection of its attention was not seen.
    """
    modules = dict(model.named_modules())
    paths = [_entries(layer.projection, modules) for layer in structure.layers]
    found = []
    for i, own in enumerate(paths):
        others = {path for j, entries in enumerate(paths) if j != i for path in entries}
        alone = [path for path in own if path not in others]
        if not alone:
            raise NotApplicableError(
                f"the module of block {i} of {structure.model} was not found: its blocks are not entries of an "
                "nn.ModuleList or nn.Sequential; use atman or shapley, which remove tokens in the whole model"
            )
        found.append(modules[alone[0]])
    return tuple(found)


def _entries(name: str | None, modules: dict[str, nn.Module]) -> list[str]:
    """The entries of lists of modules on the path to a parameter, from the outside in."""
    steps = (name or "").split(".")[:-1]
    paths = [".".join(steps[: i + 1]) for i in range(len(steps))]
    parents = [".".join(steps[:i]) for i in range(len(steps))]
    lists = (nn.ModuleList, nn.Sequential)
    return [path for path, parent in zip(paths, parents, strict=True) if isinstance(modules.get(parent), lists)]


@contextmanager
def alike_inputs(blocks: Sequence[nn.Module], read: Callable[[int, Tensor], None], axis: int = 0) -> Iterator[None]:
    """Let all examples enter each block as the first one does, and read what leaves it."""

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args and isinstance(args[0], Tensor):
            return (_first_repeated(args[0], axis), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": _first_repeated(kwargs["hidden_states"], axis)}

    def leave(index: int) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, __, out: read(index, out if isinstance(out, Tensor) else out[0])

    handles = []
    try:
        for i, block in enumerate(blocks):
            handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(block.register_forward_hook(leave(i)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_repeated(x: Tensor, axis: int) -> Tensor:
    return x.narrow(axis, 0, 1).expand_as(x).clone()
