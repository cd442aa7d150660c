"""Tensors that a pass reads and did not make, such as weights and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OutsideTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the tensors of one type of device that operations of a block read and none of them made."""

    def __init__(self, device_type: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device_type = device_type
        self.tensors: list[Tensor] = []
        self._made: set[int] = set()
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - modes of the pass saw the call already
            self._note_read(tree_leaves((args, kwargs or {})))
            result = func(*args, **(kwargs or {}))
            self._made |= {_address(t) for t in tree_leaves(result) if self._counts(t)} - self._seen
        return result

    def _note_read(self, values: Sequence[Any]) -> None:
        for tensor in filter(self._counts, values):
            address = _address(tensor)
            if address not in self._made and address not in self._seen:
                self._seen.add(address)
                self.tensors.append(tensor.detach())

    def _counts(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self.device_type


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
