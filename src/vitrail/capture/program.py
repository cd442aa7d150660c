"""A description of the functions that a pass called, to see whether two passes did the same.

Two passes of one model do the same if they call the same functions in the same order with the same settings on
tensors that were computed in the same way. That is all that the structure of a model depends on beside its numbers, so
a structure holds for a pass with a program it was confirmed for, whatever may have been changed in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Indices longer than this are not compared by value.
MAX_INDEX = 2**16
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
_NUMBERS = (int, float, str, torch.Size)
#: Types of arguments that stand for themselves.
_THEMSELVES = frozenset((bool, str, torch.dtype, torch.device))


class Program:
    """The functions called so far, as one number.

    Attributes:
        value: The number; equal for passes that do the same.
        indices: Checksums of tensors of integers that the model itself holds, such as an order of tokens, in the order
            in which they were used; each a tensor of one number.

    Example:
        >>> def number(index):
        ...     x = torch.zeros(3)
        ...     program = Program()
        ...     program.note(torch.narrow, (x, 0, index, 1), {}, x[:1])
        ...     return program.value
        >>> number(1) == number(1), number(-1) == number(-2)
        (True, False)
    """

    def __init__(self, inputs: Iterable[Tensor] = ()) -> None:
        self.value = 0
        self.indices: list[Tensor] = []
        self._count = 0
        self._inputs = {id(t) for t in inputs}
        #: Which call computed a tensor, by its id; negative for tensors that were there before.
        self._origin: dict[int, int] = {}
        self._held: list[Tensor] = []

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Add one function call; calls that only ask for a size or a number compute nothing that goes on."""
        one = isinstance(result, Tensor)
        if not one and isinstance(result, _NUMBERS):
            return
        origin, described = self._origin, [self.value, func]
        for value in args:
            if isinstance(value, Tensor):
                described.append(origin.get(id(value)) or self._tensor(value))
            elif type(value) is int:
                described.append((value < 0, abs(value)))
            else:
                described.append(self._described(value))
        if kwargs:
            described += [(name, self._described(value)) for name, value in kwargs.items()]
        self.value = hash(tuple(described))
        self._count += 1
        if one:
            origin[id(result)] = self._count
        elif isinstance(result, (tuple, list)):
            for i, value in enumerate(result):
                if isinstance(value, Tensor):
                    origin[id(value)] = self._count + (i + 1) * 2**32

    def _described(self, value: Any) -> Any:
        """A hashable stand-in for an argument. Python's hashes of −1 and −2 are equal, so signs are kept apart."""
        kind = type(value)
        if kind is int:
            return (value < 0, abs(value))
        if value is None or value is ... or kind in _THEMSELVES:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (tuple, list)):
            return tuple(map(self._described, value))
        if kind is slice:
            return ("slice", *map(self._described, (value.start, value.stop, value.step)))
        if isinstance(value, str):
            return value
        if isinstance(value, int):
            return (value < 0, abs(value))
        if isinstance(value, float):  # numbers may depend on the input; whether a term is left out must not
            return (value == 0, value == 1)
        if isinstance(value, Mapping):
            return tuple((str(key), self._described(one)) for key, one in value.items())
        if isinstance(value, np.ndarray):
            return (value.shape, value.tobytes()) if value.size <= MAX_INDEX else value.shape
        return kind

    def _tensor(self, tensor: Tensor) -> Any:
        origin = self._origin.get(id(tensor))
        if origin is None:
            self._held.append(tensor)  # so that no other tensor gets its id
            origin = self._origin[id(tensor)] = -len(self._held)
            integers = tensor.dtype in _INTEGERS or tensor.dtype == torch.bool
            # Tensors inside torch.vmap, by which Hugging Face makes masks, do not exist outside of it.
            mapped = integers and torch._C._functorch.is_batchedtensor(tensor)  # noqa: SLF001
            if integers and not mapped and id(tensor) not in self._inputs and 0 < tensor.numel() <= MAX_INDEX:
                self.indices.append(checksum(tensor))
        return origin


def checksum(tensor: Tensor) -> Tensor:
    """A number that depends on all values of a tensor of integers and on their order, on its device.

    Example:
        >>> int(checksum(torch.tensor([0, 1]))), int(checksum(torch.tensor([1, 0])))
        (8, 7)
    """
    flat = tensor.detach().flatten().long() + 2
    weights = torch.arange(1, len(flat) + 1, device=flat.device) if len(flat) < 3 else _weights(len(flat), flat.device)
    return (flat * weights).sum()


def join_checksums(checksums: Sequence[Tensor]) -> Tensor | None:
    """Checksums as one tensor, None if there are none; models may index tensors of a GPU by those of the CPU.

    Example:
        >>> join_checksums([torch.tensor(8), torch.tensor([7])])
        tensor([8, 7])
    """
    if not checksums:
        return None
    device = next((one.device for one in checksums if one.device.type != "cpu"), checksums[0].device)
    return torch.stack([one.reshape(()).to(device) for one in checksums])


def _weights(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, device=device).mul_(2654435761).remainder_(2**31 - 1)
