"""Run Triton kernels where they can be compiled; the caller computes the same in torch where they cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitrail.fast.switches import plain

#: Kinds of devices and numbers that kernels take; they compute in single precision.
DEVICES = ("cuda",)
KINDS = (torch.float32, torch.bfloat16, torch.float16)
_INSTALLED = find_spec("triton") is not None
_failed: dict[str, str] = {}
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


def takes(*tensors: Tensor) -> bool:
    """Whether kernels take these tensors: not in double precision, not empty, and not under ``VITRAIL_PLAIN=1``."""
    return all(map(_taken, tensors)) and not plain()


def _taken(t: Tensor) -> bool:
    # Quantised and distributed tensors are classes of their own, without entries at their address.
    return t.device.type in DEVICES and t.dtype in KINDS and t.numel() > 0 and type(t) in (Tensor, nn.Parameter)


def can_compile(module: str) -> bool:
    """Whether Triton is installed, and no kernel of this module has failed so far."""
    return _INSTALLED and module not in _failed


def attempt(compute: Callable[..., Result], first: Tensor, *others: Any) -> Result | None:
    """The result of a kernel, or None where it cannot be compiled, as without a C compiler.

    After a failure no kernel of the same module is tried again.

    Args:
        compute: Runs the kernel.
        first: Its first argument, on whose device it runs.
        others: Its other arguments.
    """
    module = compute.__module__
    if not can_compile(module):
        return None
    try:
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
            return compute(first, *others)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - Triton raises many kinds
        _failed[module] = repr(error)
        _log.warning("Triton kernels of %s are not used, so it takes longer: %s", module, error)
        return None
