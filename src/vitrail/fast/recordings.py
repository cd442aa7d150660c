"""Replay passes that were recorded as CUDA graphs.

For a few images a GPU waits for Python: launching the kernels of a pass takes longer than running them. A pass that is
run again with inputs of the same shapes is therefore recorded and replayed with one launch. A recording is used only
while nothing that Python decides can differ: the same module objects, parameters, attributes and forward functions, no
hooks, no random numbers, no other modes. What cannot be recorded, because it waits for results on the way, runs as
before. ``VITRAIL_CUDA_GRAPHS=0`` switches recording off.

A replay reads memory at fixed addresses. Tensors that are neither weights nor made in the pass are kept with its
recording (`keep`); that weights lie where they did is part of the key.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode

from vitrail.fast.module_state import module_state
from vitrail.fast.switches import plain

Extra = TypeVar("Extra")
#: From inputs to result tensors, and whatever does not depend on the values of the inputs.
Compute = Callable[[Sequence[Tensor]], tuple[list[Tensor], Extra]]
#: Recordings kept for each model, and passes of which it is known whether they can be recorded.
MOST_RECORDINGS, MOST_KNOWN = 32, 128
#: A pass is recorded in its second run; one whose recording was dropped, after this many more; others never.
AGAIN, NEVER = 16, 2**62
#: A model with this many passes has inputs of many shapes, such as texts: others are recorded after a few more runs, as
#: a recording takes longer than a pass and may never be replayed.
MANY_PASSES, LATER = 16, 4
#: Share of a device's memory that all recordings may hold.
MEMORY_SHARE = 1 / 16
#: Environment variable; 0 switches recording off.
SWITCH = "VITRAIL_CUDA_GRAPHS"
_DEVICES = ("cuda",)
_SWITCHED_OFF = "recording is switched off"


class _UnderWay(threading.local):
    """What this thread is doing: whether a pass runs for the first time, and what a recording under way keeps."""

    first_run = False
    kept: list[Tensor] | None = None


_lock = threading.RLock()
_under_way = _UnderWay()
_log = logging.getLogger(__name__)


class StartedReplay(Protocol):
    """A replay that may be under way, see `vitrail.capture.early_replay`."""

    def results(self, model: nn.Module, key: Hashable, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Any] | None:
        """Its results, if it is a replay of this pass over these inputs."""

    def remember(self, model: nn.Module, key: Hashable, inputs: Sequence[Tensor]) -> None:
        """Note which recording was replayed."""


@dataclass(frozen=True)
class _Recording(Generic[Extra]):
    """A recorded pass: its graph, the tensors it reads and writes, others that must live on, and the bytes it holds."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    extra: Extra
    size: int
    finished: torch.cuda.Event
    kept: list[Tensor]

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
    kept = _under_way.kept = list[Tensor]()
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
        _under_way.kept = None
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001
    size = torch.cuda.memory_reserved(device) - reserved
    return _Recording(graph, own, outputs, extra, size, torch.cuda.Event(), kept)  # type: ignore[no-untyped-call]


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
    if _under_way.first_run:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def keep(*tensors: Tensor) -> None:
    """Let tensors live as long as the recording under way, if there is one: a cache may drop them before."""
    if _under_way.kept is not None:
        _under_way.kept += tensors


def recordable(model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a pass over these inputs may be recorded at all."""
    found = obstacle(inputs)
    if found is None and module_state(model).hooked:
        found = "the model has hooks"
    if found is not None and found != _SWITCHED_OFF:
        log_obstacle(found)
    return found is None


def log_obstacle(reason: str) -> None:
    """Log, for debugging, why a pass is not recorded."""
    _log.debug("a pass is not recorded: %s", reason)


def obstacle(inputs: Sequence[Tensor]) -> str | None:
    """Why no recording may be replayed for these inputs, as far as it does not depend on the model; None if it may."""
    device = inputs[0].device if inputs else torch.device("cpu")
    if os.environ.get(SWITCH, "1") == "0" or plain():
        return _SWITCHED_OFF
    if device.type not in _DEVICES or any(t.device != device for t in inputs):
        return "the inputs are not on one CUDA device"
    if torch.is_autocast_enabled(device.type):
        return "autocast is on"
    if recording():
        return "another pass is being recorded"
    if _get_current_function_mode_stack() or _get_current_dispatch_mode() is not None:  # type: ignore[no-untyped-call]
        return "another mode is active"
    return None


def run(
    model: nn.Module,
    key: Hashable,
    inputs: Sequence[Tensor],
    compute: Compute[Extra],
    early: StartedReplay | None = None,
) -> tuple[list[Tensor], Extra]:
    """Run a pass: replay its recording, record it if it was run before, or compute it.

    Args:
        model: The model; its modules, their attributes and functions are part of the key.
        key: What the pass depends on besides, such as where the weights lie.
        inputs: Tensors on one CUDA device.
        compute: The pass.
        early: A replay that may be under way; its results are taken if it is this pass over these inputs.
    """
    state = module_state(model)
    key = (key, *((t.shape, t.stride(), t.dtype) for t in inputs), state.key)
    known = _known.setdefault(model, OrderedDict())
    if early is not None:
        found = early.results(model, key, inputs)
        if found is not None:
            return found
    try:
        result = _run(known, key, inputs, compute, state.tensors)
        if early is not None and isinstance(known.get(key), _Recording):
            early.remember(model, key, inputs)
        return result
    except torch.OutOfMemoryError:
        if not _forget(inputs[0].device):
            raise
    return compute(inputs)


def replay(model: nn.Module, key: Hashable, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Any] | None:
    """Replay the recording of a pass, or return None if there is none any more.

    Args:
        model: The model.
        key: The whole key, as `run` makes it.
        inputs: Tensors of the shapes that the key says.
    """
    with _lock:
        known = _known.get(model)
        found = None if known is None else known.get(key)
        if known is None or not isinstance(found, _Recording):
            return None
        known.move_to_end(key)
    try:
        return found.replay(inputs)
    except torch.OutOfMemoryError:
        return None


def _run(
    known: _Known,
    key: Hashable,
    inputs: Sequence[Tensor],
    compute: Compute[Extra],
    held: Sequence[Tensor],
) -> tuple[list[Tensor], Extra]:
    device = inputs[0].device
    if key not in known:
        drawn = _drawn(device)
        _under_way.first_run = True
        try:
            result = compute(inputs)
        finally:
            _under_way.first_run = False
        fixed = _drawn(device) == drawn
        if not fixed:
            log_obstacle("the pass draws random numbers")
        with _lock:
            later = LATER if len(known) >= MANY_PASSES else 0
            known[key] = later if fixed else NEVER
            while len(known) > MOST_KNOWN:
                known.popitem(last=False)
        return result
    with _lock:
        found = known.pop(key, NEVER)
        new = found == 0
        if isinstance(found, int) and 0 < found < NEVER:
            found -= 1
        if new:
            found = _record(_keeping(compute, held), inputs) or NEVER
        known[key] = found  # last in order of use
        if new and isinstance(found, _Recording):
            _bound(known, key, device)
    return found.replay(inputs) if isinstance(found, _Recording) else compute(inputs)


def _keeping(compute: Compute[Extra], held: Sequence[Tensor]) -> Compute[Extra]:
    """The pass, which also keeps tensors that the model holds."""

    def run_keeping(given: Sequence[Tensor]) -> tuple[list[Tensor], Extra]:
        keep(*held)
        return compute(given)

    return run_keeping


def _bound(known: _Known, newest: Hashable, device: torch.device) -> None:
    """Drop recordings that hold too much memory, or were not used for longest where there are too many."""
    limit = MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory
    new = known[newest]
    if isinstance(new, _Recording) and new.size > limit:
        log_obstacle(f"it would hold {new.size / 2**20:.0f} MiB, more than {limit / 2**20:.0f} MiB")
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
