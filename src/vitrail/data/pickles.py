"""Read the pickles of CIFAR's Python version without executing code.

Unpickling can call any function. The published files need only dicts, lists, strings, numbers and uint8 arrays;
everything else is rejected, and arrays are built here instead of by the functions that the file names.
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


class _DtypePlaceholder:
    """Replaces a numpy dtype."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order, which does not matter for bytes."""


class _ArrayPlaceholder:
    """Replaces a numpy array during unpickling."""

    def __init__(self, *_: object) -> None:
        self.values: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _DtypePlaceholder) or dtype.code != "u1" or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array that is not uint8")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _ArrayPlaceholder,
    ("numpy._core.multiarray", "_reconstruct"): _ArrayPlaceholder,
    ("numpy", "ndarray"): _ArrayPlaceholder,
    ("numpy", "dtype"): _DtypePlaceholder,
}


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it uses {module}.{name}, which is not plain data") from None


def read_pickle(data: bytes, name: str) -> dict[str, Any]:
    """Read a dict from a pickle, with its keys as strings; arrays must be uint8.

    Raises:
        DataError: The pickle is damaged or holds anything but plain data. No code of it is executed.

    Example:
        >>> read_pickle(pickle.dumps({"labels": [3, 5], b"data": np.zeros((2, 4), np.uint8)}, protocol=4), "batch")
        {'labels': [3, 5], 'data': array([[0, 0, 0, 0],
               [0, 0, 0, 0]], dtype=uint8)}
        >>> read_pickle(pickle.dumps({"labels": print}), "batch")
        Traceback (most recent call last):
        ...
        vitrail.errors.DataError: batch is rejected: it uses builtins.print, which is not plain data
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "PUT" in opcode.name and argument is not None and int(argument) > len(data):
                raise pickle.UnpicklingError("a memo index exceeds its length")  # would allocate too much memory
        content = _SafeUnpickler(BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise DataError(f"{name} is rejected: {error}") from error
    except (ValueError, TypeError, AttributeError, EOFError, IndexError, KeyError, MemoryError, OverflowError) as error:
        raise DataError(f"{name} cannot be read as a pickle ({error}): unpack or download it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{name} is rejected: it holds a {type(content).__name__}, expected a dict")
    plain = {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    return {key: value.values if isinstance(value, _ArrayPlaceholder) else value for key, value in plain.items()}
