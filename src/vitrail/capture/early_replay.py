"""Replay a recorded pass before it is checked that it is the right one: the checks run while the GPU computes.

Whether a recording may be used depends on all modules of a model, and looking at them takes longer than a GPU needs for
a good part of the pass. A call that is like an earlier one (same model, methods, target and shapes of the inputs)
therefore replays the recording of that one at once. Then everything is looked at as usual. The results are taken only
if that leads to the same recording and the same inputs; otherwise they are dropped, and the pass runs as usual.

Before the replay it is checked that every weight still lies where the recording reads it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.outputs import output_count
from vitrail.fast import recordings
from vitrail.fast.module_walk import addresses, weights_of

#: Calls that are remembered for each model.
MOST_CALLS = 64
_CHECKED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class _KnownCall:
    """A call whose pass was replayed.

    Attributes:
        model: The model, without wrappers.
        key: The key of the recording.
        weights: Each weight of the model.
        addresses: Where each of them lies.
        device: The device of the inputs.
        dtype: The precision of the inputs that are no integers.
        classes: The classes of the target on the device, or None where they are no input of the pass.
        count: Number of classes of the model.
    """

    model: ref[nn.Module]
    key: Hashable
    weights: list[ref[Tensor]]
    addresses: list[int]
    device: torch.device
    dtype: torch.dtype | None
    classes: Tensor | None
    count: int

    def in_place(self) -> bool:
        """Whether all weights lie where they did."""
        tensors = [tensor for weight in self.weights if (tensor := weight()) is not None]
        return addresses(tensors) == self.addresses


_calls: WeakKeyDictionary[nn.Module, OrderedDict[Hashable, _KnownCall]] = WeakKeyDictionary()


@lru_cache(maxsize=256)
def class_tensor(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Classes of targets on a device, shape (b, K); kept, because copying them there makes a GPU wait."""
    with torch.inference_mode(False):
        return torch.tensor(rows, dtype=torch.long, device=device)


class EarlyReplay:
    """The replay of one call, and what is needed to replay the next call that is like it.

    Args:
        model: The model as it was passed, wrapped or not.
        settings: What the call depends on besides the inputs and the class.
        given: The inputs as they were passed.
        target_class: The class, where the target is one index for all inputs; otherwise None.
    """

    def __init__(
        self, model: nn.Module, settings: Hashable, given: ModelInputs, target_class: int | None = None
    ) -> None:
        tensors = given.tensors
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        rest = tuple((name, value) for name, value in given.kwargs.items() if not isinstance(value, Tensor))
        self.started: float | None = None
        self._model, self._tensors = model, len(tensors)
        self._call = (settings, target_class is None, shapes, tuple(given.kwargs), rest)
        self._known: _KnownCall | None = None
        self._model_inputs: ModelInputs | None = None
        self._inputs: list[tuple[Tensor, int]] = []
        self._results: tuple[list[Tensor], Any] | None = None
        self._start(given, target_class)

    def _start(self, given: ModelInputs, target_class: int | None) -> None:
        """Replay, if a call like this one is known."""
        calls = _calls.get(self._model)
        known = None if calls is None else calls.get(self._call)
        model = None if known is None else known.model()
        if calls is None or known is None or model is None:
            return
        if target_class is not None and not 0 <= target_class < known.count:
            return
        if not known.in_place():
            calls.pop(self._call, None)
            return
        if not all(_finite(t) for t in given.tensors):
            return
        started = perf_counter()
        model_inputs = given.to(known.device, known.dtype)
        inputs, classes = model_inputs.tensors, known.classes
        if target_class is not None:
            classes = class_tensor(((target_class,),) * model_inputs.batch, known.device)
        inputs += [] if classes is None else [classes]
        if recordings.obstacle(inputs) is not None:
            return
        calls.pop(self._call, None)  # `results` puts it back if it was the right one
        self._results = recordings.replay(model, known.key, inputs)
        if self._results is not None:
            self._known, self._model_inputs, self.started = known, model_inputs, started
            self._inputs = [(t, _version(t)) for t in inputs]

    def inputs_for(self, model: nn.Module) -> ModelInputs | None:
        """The inputs on the model's device, which were found to be finite; None where there was no replay."""
        found = self._model_inputs
        weight = next((p for p in model.parameters() if p.is_floating_point()), None)
        if found is None or weight is None or self._known is None:
            return None
        fits = weight.device == self._known.device and self._known.dtype in (None, weight.dtype)
        return found if fits else None

    def results(self, model: nn.Module, key: Hashable, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Any] | None:
        """The results of the replay if it was this pass over these inputs, otherwise None; they are given once."""
        known, results = self._known, self._results
        self._known = self._results = None
        if known is None or known.model() is not model or known.key != key:
            return None
        if len(inputs) != len(self._inputs) or not all(map(_same, self._inputs, inputs)):
            return None
        _calls.setdefault(self._model, OrderedDict())[self._call] = known
        return results

    def remember(self, model: nn.Module, key: Hashable, inputs: Sequence[Tensor]) -> None:
        """Note the recording that was replayed for this call."""
        weights = weights_of(model)
        dtype = next((t.dtype for t in inputs if t.is_floating_point()), None)
        classes = inputs[self._tensors] if len(inputs) > self._tensors else None
        count = output_count(model) or 0
        calls = _calls.setdefault(self._model, OrderedDict())
        calls[self._call] = _KnownCall(
            ref(model), key, [ref(t) for t in weights], addresses(weights), inputs[0].device, dtype, classes, count
        )
        while len(calls) > MOST_CALLS:
            calls.popitem(last=False)


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: the largest of them is then."""
    if not tensor.is_floating_point():
        return True
    known = tensor.dtype in _CHECKED and tensor.numel() > 0
    return known and isfinite(torch.linalg.vector_norm(tensor.detach(), float("inf")).item())


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch has no public version counter


def _same(before: tuple[Tensor, int], now: Tensor) -> bool:
    """Whether a tensor is in the same memory as one before, and that was not written since."""
    tensor, version = before
    if now is not tensor and (now.data_ptr(), now.shape, now.stride(), now.dtype) != (
        tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    ):  # fmt: skip
        return False
    return _version(now) == version and now.device == tensor.device
