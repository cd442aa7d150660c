"""Replay passes that were recorded as CUDA graphs.

For a few images a GPU waits for Python: launching the kernels of a pass takes longer than running them. A pass that is
run again with inputs of the same shapes is therefore recorded and replayed with one launch. Passes of
models with hooks are not recorded, nor passes under other modes, nor passes that draw random numbers or wait for
results.
``VITRAIL_CUDA_GRAPHS=0`` switches recording off.

A recording may be out of date, since a model can change in ways that nothing records. So a replay is confirmed: the
caller also runs the model as it is and compares the outputs. If they differ, the recording is dropped and the pass is
computed. Inside `vitrail.fast.unchanged` each recording is confirmed when it is first replayed.

A replay reads memory at fixed addresses, so a recording keeps every tensor alive that its pass read and did not make.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode

from vitrail.fast.module_walk import has_hooks, weights_of
from vitrail.fast.outside_tensors import OutsideTensors
from vitrail.fast.switches import fast_paths_disabled, recomputing
from vitrail.fast.unchanged import State, state_of

Extra = TypeVar("Extra")
#: From inputs to result tensors, and whatever does not depend on the values of the inputs.
Compute = Callable[[Sequence[Tensor]], tuple[list[Tensor], Extra]]
#: From the results of a replay, and what was noted when the recording was first confirmed (None the first time), to a
#: boolean on their device, whether the model as it is gives the same, and what was noted.
Confirm = Callable[[list[Tensor], Any], tuple[Tensor | bool, Any]]
#: Recordings kept for each model, and passes whose recording was tried or counted.
MOST_RECORDINGS, MOST_KNOWN = 32, 128
#: A pass is recorded in its second run; one whose recording was dropped for lack of memory, after more runs.
RUNS_AFTER_DROPPED, NOT_RECORDABLE = 16, 2**62
#: With inputs of this many shapes, such as texts, passes are recorded after a few more runs: a recording takes longer
#: than a pass and may never be replayed.
MANY_SHAPES, RUNS_BEFORE_RECORDING = 16, 4
#: A pass whose recording was out of date this often belongs to a model that changes: it is not recorded again.
MOST_OUT_OF_DATE = 3
#: Share of a device's memory that all recordings may hold.
MEMORY_SHARE = 1 / 16
#: Environment variable; 0 switches recording off.
SWITCH = "VITRAIL_CUDA_GRAPHS"
_DEVICES = ("cuda",)
_SWITCHED_OFF = "recording is switched off"


class _RecordingState(threading.local):
    """State of this thread.

    Attributes:
        first_run: Whether a pass runs for the first time.
        kept: Tensors that the recording under way keeps.
        inputs_ready: When the inputs of the replay under way were ready.
        beside: Stream for what runs beside a replay.
    """

    first_run = False
    kept: list[Tensor] | None = None
    inputs_ready: torch.cuda.Event | None = None
    beside: torch.cuda.Stream | None = None


_lock = threading.RLock()
_state = _RecordingState()
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Recording(Generic[Extra]):
    """A recorded pass: its graph, the tensors it reads and writes, others that must live on, and the bytes it holds."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]
    extra: Extra
    size: int
    finished: torch.cuda.Event
    kept: list[Tensor]
    confirmed_in: State | None = None
    noted: Any = None

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
class _Passes(OrderedDict[Hashable, _Recording[Any] | int]):
    """Passes of a model, and what was noted when each was computed and its structure confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[Hashable, Any] = {}

    def shapes(self) -> int:
        """Number of different shapes of inputs."""
        return len({key[1:] for key in self if isinstance(key, tuple)})


_passes: WeakKeyDictionary[nn.Module, _Passes] = WeakKeyDictionary()
_out_of_date: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


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
    kept = _state.kept = list[Tensor]()
    try:
        with torch.cuda.stream(stream), _own_random_state(device):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs, extra = compute(own)
            finally:
                with warnings.catch_warnings():  # of a pass that failed at its first step
                    warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                    graph.capture_end()
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the pass runs without a recording
        _log.debug("a pass was not recorded", exc_info=error.__context__ or error)
        with suppress(Exception):  # otherwise the allocator takes the recording for running
            torch._C._cuda_endAllocateToPool(device.index, pool)  # noqa: SLF001
        return None
    finally:
        _state.kept = None
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
    if _state.first_run:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def capturing() -> bool:
    """Whether a pass is being recorded, so that no result can be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def keep(*tensors: Tensor) -> None:
    """Let tensors live as long as the recording under way, if there is one: a cache may drop them before."""
    if _state.kept is not None:
        _state.kept += tensors


def recordable(model: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a pass over these inputs may be recorded at all."""
    reason = reason_not_recordable(inputs)
    if reason is None and has_hooks(model):
        reason = "the model has hooks"
    if reason is not None and reason != _SWITCHED_OFF:
        log_reason(reason)
    return reason is None


def log_reason(reason: str) -> None:
    """Log, for debugging, why a pass is not recorded."""
    _log.debug("a pass is not recorded: %s", reason)


def reason_not_recordable(inputs: Sequence[Tensor]) -> str | None:
    """Why no pass over these inputs is recorded, whatever the model; None if passes may be recorded."""
    device = inputs[0].device if inputs else torch.device("cpu")
    if os.environ.get(SWITCH, "1") == "0" or fast_paths_disabled():
        return _SWITCHED_OFF
    if recomputing():
        return "activations are computed again"
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
    model: nn.Module, key: Hashable, inputs: Sequence[Tensor], compute: Compute[Extra], confirm: Confirm
) -> tuple[list[Tensor], Extra]:
    """Run a pass: replay its recording, record it if it was run before, or compute it.

    Args:
        model: The model.
        key: What the pass depends on besides the model and its inputs.
        inputs: Tensors on one CUDA device.
        compute: The pass.
        confirm: Runs the model as it is and compares it with the results of a replay.
    """
    key = (key, *((t.shape, t.stride(), t.dtype) for t in inputs))
    passes = _passes.setdefault(model, _Passes())
    try:
        return _run(model, passes, key, inputs, compute, confirm)
    except torch.OutOfMemoryError:
        if not _drop_all(inputs[0].device):
            raise
    return compute(inputs)


def forget(model: nn.Module) -> None:
    """Drop the recordings of a model and free the GPU memory that they hold."""
    with _lock:
        passes = _passes.pop(model, None)
    if passes and any(isinstance(one, _Recording) for one in passes.values()):
        torch.cuda.synchronize()
        passes.clear()
        torch.cuda.empty_cache()


def count(model: nn.Module) -> int:
    """Number of recordings of a model."""
    with _lock:
        return sum(isinstance(one, _Recording) for one in _passes.get(model, {}).values())


def _run(
    model: nn.Module,
    passes: _Passes,
    key: Hashable,
    inputs: Sequence[Tensor],
    compute: Compute[Extra],
    confirm: Confirm,
) -> tuple[list[Tensor], Extra]:
    device = inputs[0].device
    if key not in passes:
        drawn = _drawn(device)
        _state.first_run = True
        try:
            result = compute(inputs)
        finally:
            _state.first_run = False
        deterministic = _drawn(device) == drawn
        if not deterministic:
            log_reason("the pass draws random numbers")
        noted = confirm(result[0], None)[1] if deterministic else None
        with _lock:
            runs = RUNS_BEFORE_RECORDING if passes.shapes() >= MANY_SHAPES else 0
            passes[key], passes.noted[key] = (runs if deterministic else NOT_RECORDABLE), noted
            while len(passes) > MOST_KNOWN:
                passes.noted.pop(passes.popitem(last=False)[0], None)
        return result
    with _lock:
        known = passes.pop(key, NOT_RECORDABLE)
        new = known == 0
        if isinstance(known, int) and 0 < known < NOT_RECORDABLE:
            known -= 1
        if new:
            known = _record(_keeping(compute, weights_of(model)), inputs) or NOT_RECORDABLE
            if isinstance(known, _Recording):
                known.noted = passes.noted.get(key)
        passes[key] = known  # last in order of use
        if new and isinstance(known, _Recording):
            _bound(passes, key, device)
    if not isinstance(known, _Recording):
        return compute(inputs)
    state = state_of(model)
    confirmed = state is not None and known.confirmed_in is state
    if not confirmed and device.type == "cuda":
        _state.inputs_ready = torch.cuda.current_stream(device).record_event()
    results, extra = known.replay(inputs)
    if not confirmed:
        try:
            agrees, noted = confirm(results, known.noted)
        finally:
            _state.inputs_ready = None
        if not bool(agrees):
            _drop_out_of_date(model, passes, key)
            computed = compute(inputs)
            passes.noted[key] = noted
            return computed
        known.confirmed_in = state
    return results, extra


@contextmanager
def beside_replay() -> Iterator[None]:
    """Run what is launched in a block beside the replay under way, if there is one; what follows waits for both.

    A replay of few inputs leaves most of a GPU idle.
    """
    ready = _state.inputs_ready
    if ready is None:
        yield
        return
    current = torch.cuda.current_stream(ready.device)
    if _state.beside is None or _state.beside.device != current.device:
        _state.beside = torch.cuda.Stream(current.device)  # type: ignore[no-untyped-call]
    beside = _state.beside
    beside.wait_event(ready)
    try:
        with torch.cuda.stream(beside):
            yield
    finally:
        current.wait_stream(beside)


def _drop_out_of_date(model: nn.Module, passes: _Passes, key: Hashable) -> None:
    """Drop a recording whose results differ from those of the model as it is."""
    times = _out_of_date.get(model, 0) + 1
    _out_of_date[model] = times
    _log.info("%s has changed since a pass was recorded: the recording is dropped", type(model).__name__)
    with _lock:
        passes[key] = 0 if times < MOST_OUT_OF_DATE else RUNS_AFTER_DROPPED


def _keeping(compute: Compute[Extra], held: Sequence[Tensor]) -> Compute[Extra]:
    """The pass, which also keeps the tensors that it reads and did not make, and the model's weights."""

    def run_keeping(given: Sequence[Tensor]) -> tuple[list[Tensor], Extra]:
        keep(*(t.detach() for t in held))
        with OutsideTensors() as outside:
            result = compute(given)
        keep(*outside.tensors)
        return result

    return run_keeping


def _bound(passes: _Passes, newest: Hashable, device: torch.device) -> None:
    """Drop recordings that hold too much memory, or were not used for longest where there are too many."""
    limit = MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory
    new = passes[newest]
    if isinstance(new, _Recording) and new.size > limit:
        log_reason(f"it would hold {new.size / 2**20:.0f} MiB, more than {limit / 2**20:.0f} MiB")
        passes[newest] = NOT_RECORDABLE
    for key in [key for key, one in passes.items() if isinstance(one, _Recording) and key != newest]:
        if sum(isinstance(r, _Recording) for r in passes.values()) > MOST_RECORDINGS or _held(device) > limit:
            torch.cuda.synchronize(device)
            passes[key] = RUNS_AFTER_DROPPED


def _drop_all(device: torch.device) -> bool:
    """Drop all recordings of a device, whose memory something else needs; whether there were any."""
    with _lock:
        found = [(known, key) for known in _passes.values() for key, r in known.items() if isinstance(r, _Recording)]
        found = [(known, key) for known, key in found if known[key].inputs[0].device == device]  # type: ignore[union-attr]
        torch.cuda.synchronize(device)
        for known, key in found:
            known[key] = RUNS_AFTER_DROPPED
    torch.cuda.empty_cache()
    return bool(found)


def _held(device: torch.device) -> int:
    """Bytes that all recordings on a device hold."""
    found = (r for known in _passes.values() for r in known.values() if isinstance(r, _Recording))
    return sum(r.size for r in found if r.inputs[0].device == device)


def _drawn(device: torch.device) -> int:
    """How many random numbers a device has drawn."""
    return torch.cuda.default_generators[device.index].get_offset()
