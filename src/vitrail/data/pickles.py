"""Pickles of CIFAR's Python version, read without running anything they say.

Unpickling can call any function there is. The published files need nothing but dicts, lists, strings, numbers and
arrays of bytes; all else is refused, and the arrays are put together here, not by what the file names.
"""

from __future__ import annotations

import pickle
import pickletools
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

__all__ = ["read_pickle"]


class _Kind:
    """Stands for a numpy dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: bytes have none."""


class _Array:
    """Stands for a numpy array while it is read."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if not isinstance(kind, _Kind) or kind.code != "u1" or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array of something else than bytes")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data needs") from None


def read_pickle(data: bytes, name: str) -> dict[str, Any]:
    """The dict in a pickle, its keys as text; arrays must be of bytes.

    Args:
        data: The file's bytes.
        name: What to call it in messages.

    Raises:
        DataError: It is damaged, or holds anything but plain data. Nothing of it was run.

    Example:
        >>> read_pickle(pickle.dumps({"labels": [3, 5], b"data": np.zeros((2, 4), np.uint8)}, protocol=4), "batch")
        {'labels': [3, 5], 'data': array([[0, 0, 0, 0],
               [0, 0, 0, 0]], dtype=uint8)}
        >>> read_pickle(pickle.dumps({"labels": print}), "batch")
        Traceback (most recent call last):
        ...
        vitrail.errors.DataError: batch is refused: it asks for builtins.print, which no data needs
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "PUT" in opcode.name and argument is not None and int(argument) > len(data):
                raise pickle.UnpicklingError("it counts further than it is long")  # the memory for it would be taken
        found = _Reader(BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise DataError(f"{name} is refused: {error}") from error
    except (ValueError, TypeError, AttributeError, EOFError, IndexError, KeyError, MemoryError, OverflowError) as error:
        raise DataError(f"{name} is not a pickle that can be read ({error}): unpack or download it again") from error
    if not isinstance(found, dict):
        raise DataError(f"{name} is refused: it does not hold a dict")
    plain = {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    return {key: value.values if isinstance(value, _Array) else value for key, value in plain.items()}
