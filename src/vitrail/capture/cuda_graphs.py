"""Replay passes that were recorded as CUDA graphs.

For a few images a GPU waits for Python: launching the kernels of a pass takes longer than running them. A pass that is
run again with inputs of the same shapes is therefore recorded and replayed with one launch. A recording is used only
while nothing that Python decides can differ: the same module objects, parameters, attributes and forward functions, no
hooks, no random numbers, no other modes. What cannot be recorded, because it waits for results on the way, runs as
before. ``VITRAIL_CUDA_GRAPHS=0`` switches recording off.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode

from vitrail.capture.plain import plain
from vitrail.module_walk import modules_of, once

Extra = TypeVar("Extra")
#: From inputs to result tensors, and whatever does not depend on the values of the inputs.
Compute = Callable[[Sequence[Tensor]], tuple[list[Tensor], Extra]]
#: Recordings kept for each model, and passes of which it is known whether they can be recorded.
MOST_RECORDINGS, MOST_KNOWN = 32, 128
#: A pass is recorded in its second run; one whose recording was dropped, after this many more; others never.
AGAIN, NEVER = 16, 2**62
#: Share of a device's memory that all recordings may hold.
MEMORY_SHARE = 1 / 16
#: Environment variable; 0 switches recording off.
SWITCH = "VITRAIL_CUDA_GRAPHS"
_DEVICES = ("cuda",)
_SCALARS = frozenset((bool, int, float, str, type(None)))
_lock = threading.RLock()
_first_run = threading.local()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Recording(Generic[Extra]):
    """A recorded pass: its graph, the tensors it reads and writes, and the bytes it holds."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    extra: Extra
    size: int
    finished: torch.cuda.Event

    def replay(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Extra]:
        """Results for other inputs."""
        stream = torch.cuda.current_stream(self.inputs[0].device)
        with _lock, torch.no_grad():
            stream.wait_event(self.finished)  # another stream may still read the results of its last replay
            for own, given in zip(self.inputs, inputs, strict=True):
                own.copy_(given)
            self.graph.replay()
            outputs = [t.clone() for t in self.outputs]
            self.finished.record(stream)
        return outputs, self.extra


#: By pass: its recording, or how often it is still to be run before it is recorded.
_Known = OrderedDict[Hashable, _Recording[Any] | int]
_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


def _record(compute: Compute[Extra], inputs: Sequence[Tensor]) -> _Recording[Extra] | None:
    """Record a pass; None where it cannot be recorded."""
    device = inputs[0].device
    own = [t.detach().clone() for t in inputs]
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    reserved = torch.cuda.memory_reserved(device)
    # Workspaces of matrix products are kept by stream; the recording gets its own, which nothing else uses.
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001
    try:
        with torch.cuda.stream(stream), _own_random_state(device):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs, extra = compute(own)
            finally:
                graph.capture_end()
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the pass runs without a recording
        _log.debug("a pass was not recorded", exc_info=error.__context__ or error)
        with suppress(Exception):  # lest the allocator take the recording for running
            torch._C._cuda_endAllocateToPool(device.index, pool)  # noqa: SLF001
        return None
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001
    size = torch.cuda.memory_reserved(device) - reserved
    return _Recording(graph, own, outputs, extra, size, torch.cuda.Event())  # type: ignore[no-untyped-call]


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    """Let a recording use a random state of its own, since one that fails leaves its state unusable."""
    generator = torch.cuda.default_generators[device.index]
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(before)


def recording() -> bool:
    """Whether a pass is being recorded, or run for the first time before that: nothing may wait for its results."""
    if getattr(_first_run, "running", False):
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def recordable(model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a pass over these inputs may be recorded at all."""
    device = inputs[0].device if inputs else torch.device("cpu")
    return (
        os.environ.get(SWITCH, "1") != "0"
        and device.type in _DEVICES
        and not plain()
        and all(t.device == device for t in inputs)
        and not torch.is_autocast_enabled(device.type)
        and not recording()
        and not _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        and _get_current_dispatch_mode() is None
        and not once("hooks", model, _has_hooks)
    )


def run(
    model: nn.Module, key: Hashable, inputs: Sequence[Tensor], compute: Compute[Extra]
) -> tuple[list[Tensor], Extra]:
    """Run a pass: replay its recording, record it if it was run before, or compute it.

    Args:
        model: The model; its modules, their attributes and functions are part of the key.
        key: What the pass depends on besides, such as where the weights lie.
        inputs: Tensors on one CUDA device.
        compute: The pass.
    """
    key = (key, *((t.shape, t.stride(), t.dtype) for t in inputs), once("attributes", model, _state))
    try:
        return _run(_known.setdefault(model, OrderedDict()), key, inputs, compute)
    except torch.OutOfMemoryError:
        if not _forget(inputs[0].device):
            raise
    return compute(inputs)


def _run(known: _Known, key: Hashable, inputs: Sequence[Tensor], compute: Compute[Extra]) -> tuple[list[Tensor], Extra]:
    device = inputs[0].device
    if key not in known:
        drawn = _drawn(device)
        _first_run.running = True
        try:
            result = compute(inputs)
        finally:
            _first_run.running = False
        with _lock:
            known[key] = 0 if _drawn(device) == drawn else NEVER
            while len(known) > MOST_KNOWN:
                known.popitem(last=False)
        return result
    with _lock:
        found = known.pop(key, NEVER)
        if isinstance(found, int) and 0 < found < NEVER:
            found -= 1
        elif found == 0:
            found = _record(compute, inputs) or NEVER
        known[key] = found  # last in order of use
        if isinstance(found, _Recording):
            _bound(known, key, device)
    return found.replay(inputs) if isinstance(found, _Recording) else compute(inputs)


def _bound(known: _Known, newest: Hashable, device: torch.device) -> None:
    """Drop recordings that hold too much memory, or were not used for longest where there are too many."""
    limit = MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory
    new = known[newest]
    if isinstance(new, _Recording) and new.size > limit:
        known[newest] = NEVER
    for key in [key for key, found in known.items() if isinstance(found, _Recording) and key != newest]:
        if sum(isinstance(r, _Recording) for r in known.values()) > MOST_RECORDINGS or _held(device) > limit:
            torch.cuda.synchronize(device)
            known[key] = AGAIN


def _forget(device: torch.device) -> bool:
    """Drop all recordings of a device, whose memory something else needs; whether there were any."""
    with _lock:
        found = [(known, key) for known in _known.values() for key, r in known.items() if isinstance(r, _Recording)]
        found = [(known, key) for known, key in found if known[key].inputs[0].device == device]  # type: ignore[union-attr]
        torch.cuda.synchronize(device)
        for known, key in found:
            known[key] = AGAIN
    torch.cuda.empty_cache()
    return bool(found)


def _held(device: torch.device) -> int:
    """Bytes that all recordings on a device hold."""
    found = (r for known in _known.values() for r in known.values() if isinstance(r, _Recording))
    return sum(r.size for r in found if r.inputs[0].device == device)


def _drawn(device: torch.device) -> int:
    """How many random numbers a device has drawn."""
    return torch.cuda.default_generators[device.index].get_offset()


def _has_hooks(model: nn.Module) -> bool:
    """Whether anything of the user's runs inside the model's calls."""
    everywhere = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    if any(getattr(module_hooks, name, None) for name in everywhere):
        return True
    return any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks  # noqa: SLF001
        for m in modules_of(model)
    )


def _state(model: nn.Module) -> int:
    """A number that changes when modules, their attributes or their functions do."""
    parts: list[Any] = []
    for module in modules_of(model):
        held = module.__dict__
        parts += (id(module), type(module).forward, id(held.get("forward")))
        parts += [value for value in held.values() if type(value) in _SCALARS]
    return hash(tuple(parts))
