"""Tiny models of the libraries' families, from the table that the sweep over families uses."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Subject

ROOT = Path(__file__).resolve().parents[2]


@cache
def table() -> ModuleType:
    """The module that builds them, which is beside the sweep."""
    folder = next(f for f in (ROOT / "studies", ROOT / "benchmarks") if (f / "tiny_families.py").is_file())
    sys.path.insert(0, str(folder))
    try:
        import tiny_families
    finally:
        sys.path.pop(0)
    return tiny_families


def add_noise(model: nn.Module) -> nn.Module:
    """Add noise to every weight, so that no head of zeros and no tiny LayerScale hides a wrong map.

    The noise of a matrix is small for many inputs; the embedding of padding stays zero, as in training.
    """
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            inputs = math.prod(parameter.shape[1:]) if parameter.dim() > 1 else 1
            parameter.add_(min(0.1, 0.5 / math.sqrt(inputs)) * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model.eval()


def tiny(library: str, task: str, name: str, model: str = "", target: int | None = None) -> Subject:
    """A tiny model of a family with two inputs; texts are padded."""
    module = table()
    family = next(f for f in module.families(library) if (f.task, f.name) == (task, name) and model in (f.model, ""))
    built = module.build(family)
    add_noise(built.module)
    inputs: Any = built.padded or built.inputs
    if not built.padded:
        inputs = twice(inputs) if isinstance(inputs, Tensor) else {n: twice(v) for n, v in inputs.items()}
    return in_double(Subject(built.module, inputs, built.target if target is None else target, grid=patches(inputs)))


def in_double(subject: Subject) -> Subject:
    """The same in float64, where differences by rounding are small; as it is if the model takes float32 only."""
    inputs = subject.inputs
    double = (
        inputs.double()
        if isinstance(inputs, Tensor)
        else {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
    )
    try:
        model = copy.deepcopy(subject.model).double()
        with torch.no_grad():
            _ = model(double) if isinstance(double, Tensor) else model(**double)
    except (RuntimeError, ValueError, TypeError):
        return subject
    return replace(subject, model=model, inputs=double)


def twice(value: Tensor) -> Tensor:
    """An input and a second one of the same kind."""
    if not value.is_floating_point():
        return value.repeat(2, *[1] * (value.dim() - 1))
    return torch.cat([value, torch.randn(value.shape, generator=torch.Generator().manual_seed(7))])


def patches(inputs: Any) -> tuple[int, int] | None:
    """Number of patches of 16 pixels in the images, None without images."""
    images = inputs if isinstance(inputs, Tensor) else inputs.get("pixel_values")
    return None if images is None or images.dim() != 4 else (images.shape[2] // 16, images.shape[3] // 16)
