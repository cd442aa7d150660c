"""The most memory that something holds at once."""

from __future__ import annotations

from math import nan
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

_SELF = Path("/proc/self")


class Peak:
    """While it is open: the most memory held at once, beyond what was held when it was opened.

    On a GPU this is what torch allocated. On a CPU it is how far the resident memory of the process grew, where the
    system is Linux: a lower bound, because memory that was freed before is used again. Elsewhere it is not known.

    Args:
        device: Where the work is done.

    Attributes:
        bytes: The result once it is closed; NaN if it is not known.

    Example:
        >>> with Peak(torch.device("cpu")) as peak:
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
            self._before = _resident("VmRSS") if _forget_peak() else nan
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        most = torch.cuda.max_memory_allocated(self._cuda) if self._cuda is not None else _resident("VmHWM")
        self.bytes = max(0.0, most - self._before) if most == most and self._before == self._before else nan


def _forget_peak() -> bool:
    """Let the system's mark of the most resident memory start anew; whether that worked."""
    try:
        (_SELF / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident(name: str) -> float:
    """Bytes as the system knows them: ``VmRSS`` now, ``VmHWM`` at the most."""
    try:
        lines = (_SELF / "status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return nan
