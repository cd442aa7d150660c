"""Measure what methods cost on a model and its device, as ratios to passes of the bare model."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.output_tensors import any_output
from vitrail.errors import VitrailError
from vitrail.inputs.random_inputs import output_target, random_inputs
from vitrail.methods import METHODS
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain

FORWARD, FORWARD_BACKWARD = "forward pass (F)", "forward and backward pass (F+B)"
#: Families of methods that take a fixed number of passes.
FAMILIES = ("attention", "gradient", "relevance")
#: After this many seconds, no repeat of a call is started.
SECONDS = 2.0


@dataclass(frozen=True)
class CallSpeed:
    """Time of one call.

    Attributes:
        call: A method's name, or a pass of the bare model.
        seconds: Median time of a batch.
        over_forward: Ratio to a forward pass without gradients, ↓.
        over_forward_backward: Ratio to a forward pass and the gradient of one output at all parameters, ↓.
    """

    call: str
    seconds: float
    over_forward: float
    over_forward_backward: float


def speed_rows(
    model: LoadedModel,
    methods: Sequence[str] | None = None,
    batch: int = 1,
    repeats: int | None = None,
    seconds: float = SECONDS,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[CallSpeed]:
    """Time methods and passes of the bare model on random inputs, one after the other.

    Every run of a method is preceded by a forward pass of the bare model, and the ratio is that of these neighbours:
    other work on the machine slows both. Methods that do not apply to the model are left out.

    Args:
        model: The model; it is left as it was.
        methods: Methods to time; by default all attention, gradient and relevance methods.
        batch: Number of inputs in a batch.
        repeats: How often each call is timed, at most; by default 5, on the CPU 3. Runs that are not timed precede
            them: one, on other devices two.
        seconds: No repeat of a call starts after this time; each call is timed at least once.
        starting: Called with the name of each call before its first run.

    Yields:
        The time of each call as soon as it is known: the two bare passes, then the methods.
    """
    module, model_inputs = unwrap(model.module), random_inputs(model, batch)
    timer = _Timer(model_inputs.tensors[0].device, repeats, seconds)
    chosen = [m.name for m in METHODS.values() if m.family in FAMILIES] if methods is None else list(methods)

    def forward() -> None:
        _forward(module, model_inputs)

    starting(FORWARD)
    target = output_target(module, model_inputs)
    timer.warm_up(forward)
    starting(FORWARD_BACKWARD)
    passes, both = timer.alternate(forward, lambda: _forward_backward(module, model_inputs))
    share = passes / both
    yield CallSpeed(FORWARD, passes, 1.0, share)
    yield CallSpeed(FORWARD_BACKWARD, both, 1 / share, 1.0)
    for name in chosen:
        starting(name)
        try:
            passes, taken = timer.alternate(forward, _explaining(model, model_inputs, name, target))
        except VitrailError:
            continue
        yield CallSpeed(name, taken, taken / passes, taken / passes * share)


@dataclass(frozen=True)
class _Timer:
    """Times calls on a device."""

    device: torch.device
    repeats: int | None
    seconds: float

    @property
    def _on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Run a call: the first run reads the model's structure, the second may record the pass on a GPU."""
        for _ in range(1 if self._on_cpu else 2):
            call()

    def alternate(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
        """Run two calls in turn; the second is warmed up before. Returns the median seconds of each."""
        started = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.warm_up(second)
            taken: list[tuple[float, float]] = []
            for _ in range(self.repeats or (3 if self._on_cpu else 5)):
                taken.append((self._time(first), self._time(second)))
                if perf_counter() - started > self.seconds:
                    break
        return statistics.median(a for a, _ in taken), statistics.median(b for _, b in taken)

    def _time(self, call: Callable[[], Any]) -> float:
        _wait(self.device)
        started = perf_counter()
        call()
        _wait(self.device)
        return perf_counter() - started


def _explaining(model: LoadedModel, model_inputs: ModelInputs, method: str, target: Any) -> Callable[[], Any]:
    inputs = model_inputs.args[0] if model_inputs.args else model_inputs.kwargs
    return lambda: explain(model, inputs, method, target=0 if target is None else target)


def _forward(module: nn.Module, model_inputs: ModelInputs) -> None:
    with frozen(module), torch.no_grad():
        run_model(module, model_inputs)


def _forward_backward(module: nn.Module, model_inputs: ModelInputs) -> None:
    with frozen(module):
        parameters = [p for p in module.parameters() if p.is_floating_point()]
        try:
            for parameter in parameters:
                parameter.requires_grad_(True)
            score = any_output(run_model(module, model_inputs)).flatten(1)[:, 0].sum()
            torch.autograd.grad(score, parameters, allow_unused=True)
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
