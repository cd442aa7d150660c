"""Measure what methods cost on a model and its device, as ratios to passes of the bare model."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs, any_output
from vitrail.errors import VitrailError
from vitrail.explain import explain
from vitrail.methods import METHODS
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess

FORWARD, FORWARD_BACKWARD = "forward pass (F)", "forward and backward pass (F+B)"
#: Families of methods that take a fixed number of passes.
FAMILIES = ("attention", "gradient", "relevance")


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


def measure_speed(
    model: LoadedModel, methods: Sequence[str] | None = None, batch: int = 1, repeats: int = 5
) -> list[CallSpeed]:
    """Time methods and passes of the bare model on random images; repeats are interleaved, medians are reported.

    Args:
        model: The model; it is left as it was.
        methods: Methods to time; by default all attention, gradient and relevance methods that apply.
        batch: Number of images in a batch.
        repeats: How often each call is timed, after two runs that are not.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> rows = measure_speed(LoadedModel(tiny_vit(), Preprocess((32, 32)), name="tiny"), ["rollout"], repeats=1)
        >>> [row.call for row in rows]
        ['forward pass (F)', 'forward and backward pass (F+B)', 'rollout']
    """
    module = unwrap(model.module)
    preprocess = model.preprocess if isinstance(model.preprocess, Preprocess) else Preprocess((224, 224))
    noise = torch.randn(batch, len(preprocess.mean), *preprocess.size, generator=torch.Generator().manual_seed(0))
    model_inputs = ModelInputs((noise,)).onto(module)
    images = model_inputs.args[0]
    chosen = [m.name for m in METHODS.values() if m.family in FAMILIES] if methods is None else list(methods)
    calls: dict[str, Callable[[], Any]] = {
        FORWARD: lambda: _forward(module, model_inputs),
        FORWARD_BACKWARD: lambda: _forward_backward(module, model_inputs),
    }
    calls |= {name: _explaining(model, images, name) for name in chosen}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = {name: call for name, call in calls.items() if _runs(call)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                times[name].append(_seconds(call, images.device))
    median = {name: statistics.median(taken) for name, taken in times.items()}
    return [
        CallSpeed(name, taken, taken / median[FORWARD], taken / median[FORWARD_BACKWARD])
        for name, taken in median.items()
    ]


def _explaining(model: LoadedModel, images: Tensor, method: str) -> Callable[[], Any]:
    return lambda: explain(model, images, method, target=0)


def _runs(call: Callable[[], Any]) -> bool:
    """Run a call twice: the first run reads the model's structure, the second may record the pass."""
    try:
        call()
        call()
    except VitrailError:
        return False
    return True


def _forward(module: nn.Module, model_inputs: ModelInputs) -> None:
    with frozen(module), torch.no_grad():
        model_inputs.into(module)


def _forward_backward(module: nn.Module, model_inputs: ModelInputs) -> None:
    with frozen(module):
        parameters = [p for p in module.parameters() if p.is_floating_point()]
        try:
            for parameter in parameters:
                parameter.requires_grad_(True)
            score = any_output(model_inputs.into(module)).flatten(1)[:, 0].sum()
            torch.autograd.grad(score, parameters, allow_unused=True)
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    started = perf_counter()
    call()
    _wait(device)
    return perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
