"""Kernels by name: each computes what a plain function computes, on the tensors that it supports.

A kernel takes the arguments of the plain function, and returns None where it does not support them. Where it fails, as
Triton does without a C compiler, the plain function computes the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from vitrail.fast.switches import fast_paths_disabled

#: Kinds of devices and numbers that kernels support; they compute in single precision.
DEVICES = ("cuda",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Modules of this package, and the kernels in them.
KERNELS = {
    "elementwise_kernels": (
        "absolute_share", "halves", "share", "shares", "signed_parts", "signed_product", "sum_shares",
    ),
    "sample_kernels": (
        "norm_unit", "positive_rows", "positive_unit", "signed_unit", "sum_shares_absolute", "sum_shares_normalised",
        "unit",
    ),
    "gradient_kernels": ("activation_share", "gamma_gradient", "gamma_shares", "norm_gradient"),
    "row_kernels": ("attention_columns", "attention_rows"),
}  # fmt: skip
#: Kernels that are torch's own.
WITHOUT_TRITON = ("attention_columns",)
#: Entries of a tensor from which on kernels count in 64 bits.
_LARGE = 2**31
_INSTALLED = find_spec("triton") is not None
_MODULES = {name: f"vitrail.fast.{module}" for module, names in KERNELS.items() for name in names}
#: By kernel and kind of tensors, the error with which it failed.
_failed: dict[tuple[Any, ...], str] = {}
_log = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def faster(name: str, **constants: Any) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a kernel compute a plain function where it supports the arguments.

    Args:
        name: The kernel.
        constants: Keyword arguments of the kernel that the plain function has as constants.
    """

    def decorate(plain: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(plain)
        def compute(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            found: Result | None = kernel(name, *args, **kwargs, **constants)
            return plain(*args, **kwargs) if found is None else found

        return compute

    return decorate


def kernel(name: str, *args: Any, **kwargs: Any) -> Any:
    """The result of a kernel, or None where it does not support the arguments, is switched off, or fails.

    Example:
        >>> kernel("halves", torch.ones(2)) is None  # no kernel computes on the CPU
        True
    """
    if not supports(*(a for a in args if isinstance(a, Tensor))) or fast_paths_disabled():
        return None
    return run_kernel_or_none(name, getattr(import_module(_MODULES[name]), name), *args, **kwargs)


def supports(*tensors: Tensor) -> bool:
    """Whether kernels support tensors of these devices and precisions; empty ones are not."""
    return all(map(_supported, tensors))


def _supported(t: Tensor) -> bool:
    # Quantised and distributed tensors are classes of their own, without entries at their address.
    return t.device.type in DEVICES and t.dtype in DTYPES and t.numel() > 0 and type(t) in (Tensor, nn.Parameter)


def triton_installed() -> bool:
    """Whether Triton is installed."""
    return _INSTALLED


def run_kernel_or_none(name: str, compute: Callable[..., Result], *args: Any, **kwargs: Any) -> Result | None:
    """The result of a kernel, or None where it fails.

    After a failure, this kernel is not run again on tensors of the same precisions, numbers of axes and class of size.
    Running out of memory is no failure: the error is raised.

    Args:
        name: What it is called.
        compute: Runs the kernel.
        args: Its arguments; it runs on the device of the first tensor among them.
        kwargs: More arguments.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    kind = (name, *((t.device.type, t.dtype, t.dim(), t.numel() >= _LARGE) for t in tensors))
    if kind in _failed or not (_INSTALLED or name in WITHOUT_TRITON):
        return None
    try:
        with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
            return compute(*args, **kwargs)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - Triton raises many kinds
        _failed[kind] = repr(error)
        shapes = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in tensors)
        _log.warning("the kernel %s is not used for tensors such as %s, which takes longer: %s", name, shapes, error)
        return None
