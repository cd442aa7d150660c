"""Compare the maps of a changed model with those of a fresh copy that was changed alike and never explained."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from tests.battery.changed_vit import PATCH, SIDE
from tests.battery.model_changes import undo_of
from vitrail.errors import VitrailError

#: Methods of one pass: those that read attention, gradients, relevance or the input's gradient.
ONE_PASS = tuple(
    name
    for name, method in vitrail.methods().items()
    if method.family in ("attention", "gradient", "relevance") and method.takes == "trace"
)


def images(count: int = 2) -> Tensor:
    """Random images, always the same."""
    return torch.randn(count, 3, PATCH * SIDE, PATCH * SIDE, generator=torch.Generator().manual_seed(5))


def outcome(model: nn.Module, batch: Tensor, methods: Sequence[str] = ONE_PASS) -> dict[str, Any]:
    """The maps of each method, or the error that it raises; all methods that apply share a pass."""
    weight = next(model.parameters())
    batch = batch.to(weight.device, weight.dtype)
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return {
                name: e.grid.float() for name, e in vitrail.explain(model, batch, methods=methods, target=1).items()
            }
        except VitrailError:
            for name in methods:
                try:
                    found[name] = vitrail.explain(model, batch, name, target=1).grid.float()
                except VitrailError as error:
                    found[name] = type(error).__name__
    return found


def stale_methods(
    make: Callable[[], nn.Module],
    change: Callable[[nn.Module], Any],
    methods: Sequence[str] = ONE_PASS,
    device: str = "cpu",
    calls: int = 1,
) -> list[str]:
    """Methods whose result after a change is not that of a fresh copy, with the difference.

    Args:
        make: Makes the model.
        change: The change.
        methods: Methods to compare.
        device: Where the models are.
        calls: How often the model is explained before it is changed.
    """  # fmt: skip
    batch = images()
    model, fresh = make().to(device), make().to(device)
    before = {}
    for _ in range(calls):
        before = outcome(model, batch, methods)
    undo = undo_of(change, model)
    try:
        found = outcome(model, batch, methods)
    finally:
        undo()
    undo = undo_of(change, fresh)
    try:
        expected = outcome(fresh, batch, methods)
    finally:
        undo()
    assert before
    return [name for name in methods if not _same(found[name], expected[name])]


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, str) or isinstance(two, str):
        return isinstance(one, str) and one == two
    if one.shape != two.shape:
        return False
    scale = float(two.abs().max())
    return bool((one - two).abs().max() <= 1e-4 * max(scale, 1e-12))


def is_felt(make: Callable[[], nn.Module], change: Callable[[nn.Module], Any]) -> bool:
    """Whether a change changes the maps of at least one method: a change that does not proves nothing."""
    batch, model = images(), make()
    before = outcome(copy.deepcopy(model), batch)
    undo = undo_of(change, model)
    try:
        after = outcome(model, batch)
    finally:
        undo()
    return any(not _same(before[name], after[name]) for name in before)
