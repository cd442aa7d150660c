"""Memory: measure the peak of a computation, and reduce what it needs when memory runs out."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

import torch
from torch import nn

from vitrail.capture.recomputation import recomputed_blocks
from vitrail.errors import MapWarning

T = TypeVar("T")
_PROCESS = Path("/proc/self")


class PeakMemory:
    """Context manager that measures peak memory, beyond what was in use at its start.

    On a GPU it counts what torch allocated. On a CPU under Linux it counts how much the resident memory of the process
    grew: a lower bound, because memory that was freed before is used again. On other systems the result is NaN.

    Attributes:
        bytes: The result after the block; NaN if it is unknown.

    Example:
        >>> with PeakMemory(torch.device("cpu")) as peak:
        ...     total = torch.ones(1000).sum()
        >>> peak.bytes >= 2**30
        False
    """

    def __init__(self, device: torch.device) -> None:
        self.bytes = nan
        self._cuda = device if device.type == "cuda" else None
        self._before: float = nan

    def __enter__(self) -> Self:
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self._before = torch.cuda.memory_allocated(self._cuda)
        else:
            self._before = _resident_bytes("VmRSS") if _reset_peak() else nan
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        peak = torch.cuda.max_memory_allocated(self._cuda) if self._cuda is not None else _resident_bytes("VmHWM")
        self.bytes = max(0.0, peak - self._before) if peak == peak and self._before == self._before else nan


def _reset_peak() -> bool:
    """Reset the kernel's record of peak resident memory; return whether that worked."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident_bytes(name: str) -> float:
    """Read resident memory from the kernel: ``VmRSS`` is the current value, ``VmHWM`` the peak."""
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return nan


def keep_to_gpu_share(device: str) -> None:
    """Limit this process to its share of a GPU's memory, if Ray gave it only a share of the GPU.

    Several models then fit on one GPU: a batch that does not fit the share is halved.
    """
    ray = sys.modules.get("ray")
    if torch.device(device).type != "cuda" or ray is None or not ray.is_initialized():
        return
    share = ray.get_runtime_context().get_assigned_resources().get("GPU", 1)
    if 0 < share < 1:
        torch.cuda.set_per_process_memory_fraction(share, torch.device(device).index or 0)


class HasBatchSize(Protocol):
    """Anything that holds the current batch size, such as `vitrail.bench.context.BenchContext`."""

    batch: int


@dataclass
class BatchLimit:
    """A batch size that is halved when memory runs out."""

    batch: int


def shrink_batch_to_fit(context: HasBatchSize, call: Callable[[int], T]) -> T:
    """Call a function with the current batch size, and with half of it whenever memory runs out."""
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MapWarning)  # the results table lists constant maps
                return call(context.batch)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            out_of_memory = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
            if not out_of_memory or context.batch == 1:
                raise
        context.batch = max(1, context.batch // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run_in_memory(call: Callable[[], T], model: nn.Module, recompute: bool | None, batch: int) -> T:
    """Call a function that runs a model; with recomputation of its blocks where that is requested or needed.

    Args:
        call: The function.
        model: The model, unwrapped.
        recompute: Whether backward passes compute activations again; None where memory runs out for one input.
        batch: Number of inputs. Several of them can be explained in smaller batches, which takes less time.
    """
    if not recompute:
        try:
            return call()
        except torch.OutOfMemoryError as error:
            if recompute is False or batch > 1:
                error.add_note("reduce batch_size=, or compute activations again with recompute=True")
                raise
        gc.collect()
        torch.cuda.empty_cache()
    with recomputed_blocks(model):
        return call()
