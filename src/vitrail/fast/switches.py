"""Switches of a call: faster computations off, the same kernels in every process, and activations that are not kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class _Recomputation(threading.local):
    depth = 0


_recomputation = _Recomputation()


def fast_paths_disabled() -> bool:
    """Whether ``VITRAIL_PLAIN=1`` is set: every faster computation is then replaced by the straightforward one.

    Results agree to rounding; the switch is there to check that, and to find out which of the two is at fault.
    """
    return os.environ.get("VITRAIL_PLAIN", "") not in ("", "0")


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which autocast is off on a device; where it is off already, nothing has to be switched."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


@contextmanager
def onednn_enabled() -> Iterator[None]:
    """Compute with oneDNN in this block, whatever the process did before.

    On a CPU without bfloat16, torch disables its oneDNN kernels for the rest of the process at the first bfloat16
    product, and the other kernels differ in the last bits, in float32 too. Numbers that must be the same in another
    process are computed in this block.
    """
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.set_flags(True)[0]
    try:
        yield
    finally:
        mkldnn.set_flags(before)


@contextmanager
def recomputation() -> Iterator[None]:
    """State that backward passes in this block compute activations again instead of keeping them."""
    _recomputation.depth += 1
    try:
        yield
    finally:
        _recomputation.depth -= 1


def recomputing() -> bool:
    """Whether activations are computed again, so that nothing that can be computed again is kept."""
    return _recomputation.depth > 0
