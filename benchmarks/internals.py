"""Everything private to Vitrail that the benchmarks switch or read; no other benchmark imports private names."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn

import vitrail
from vitrail.capture import attention_storage
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.fast import recordings, split_products


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of the environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _replaced(module: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _row_by_row(_: nn.Module) -> AbstractContextManager[Any]:
    return _replaced(attention_storage, ROWWISE_FROM={"half": 0, "other": 0}, mean_is_smaller=lambda *_: False)


#: Ways to run a call: the default, and contexts that change one thing.
MODES: Mapping[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "": lambda _: nullcontext(),
    "unchanged": lambda _: nullcontext(),  # the promise is given once for all calls, see `promised_copy`
    "plain": lambda _: environment(VITRAIL_PLAIN="1"),
    "computed": lambda _: environment(VITRAIL_CUDA_GRAPHS="0"),
    "no split": lambda _: environment(VITRAIL_SPLIT_PRODUCTS="0"),
    "all split": lambda _: _replaced(split_products, FEWEST_PRODUCTS=1),
    "rows": _row_by_row,
    "first": lambda _: nullcontext(),  # each call gets a copy of the model that nothing is known of, see `explaining`
}


def in_mode(mode: str, model: nn.Module, call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call in a mode."""

    def run() -> Any:
        with MODES[mode](model):
            return call()

    return run


@contextmanager
def promised_copy(model: nn.Module) -> Iterator[nn.Module]:
    """A copy of a model for which `vitrail.unchanged` holds in the block, so that other calls are not affected."""
    copied = copy.deepcopy(model)
    with vitrail.unchanged(copied):
        yield copied


def measure_structure(model: nn.Module, inputs: Any) -> Any:
    """Measure the structure of a model and check it; reuses what is known of it."""
    return read_structure(model, ModelInputs((inputs,)))


def forget_recordings(model: nn.Module) -> None:
    """Drop the recorded passes of a model, which share the memory of those that follow."""
    recordings.forget(model)
