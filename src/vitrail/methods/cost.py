"""What a method costs: images evaluated by the model beyond the forward and backward pass that methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vitrail.capture.model_structure import ModelStructure


class ModelSize(NamedTuple):
    """What the cost of a method depends on in a model.

    Attributes:
        grid: Number of patches along each axis: per column and per row of an image.
        width: Number of feature maps of a block.
        blocks: Number of blocks.
    """

    grid: tuple[int, ...] = (14, 14)
    width: int = 768
    blocks: int = 12


def size_of(structure: ModelStructure) -> ModelSize:
    """The size of a model; 64 features for each head where its width was not seen."""
    heads = max((layer.heads for layer in structure.layers), default=12)
    grid = structure.layout.grid or ModelSize().grid
    return ModelSize(grid, structure.width or 64 * heads, len(structure.layers) or ModelSize().blocks)


class Cost(NamedTuple):
    """The cost of one method for one image.

    Attributes:
        evaluations: Images the model evaluates beyond the shared pass, at most.
        forwards: Typical cost in forward passes of one image; a backward pass counts as two.
    """

    evaluations: int
    forwards: float


#: From the method's options, the model's size and the number of targets to the cost for one image.
CostFunction = Callable[[Mapping[str, Any], ModelSize, int], Cost]


def shared_pass(_: Mapping[str, Any], __: ModelSize, ___: int) -> Cost:
    """Cost of a method that only reads the shared pass.

    Example:
        >>> shared_pass({}, ModelSize(), 2)
        Cost(evaluations=0, forwards=0.0)
    """
    return Cost(0, 0.0)


def lrp_pass(_: Mapping[str, Any], __: ModelSize, targets: int) -> Cost:
    """Cost of relevance propagation: one pass for each target, about six forward passes' worth of work."""
    return Cost(targets, 6.0 * targets)


def gradient_passes(option: str | None = None) -> CostFunction:
    """Cost of a forward and a backward pass for each target, as many times as an option states.

    Example:
        >>> gradient_passes("steps")({"steps": 20}, ModelSize(), 2)
        Cost(evaluations=40, forwards=120.0)
    """

    def cost(options: Mapping[str, Any], _: ModelSize, targets: int) -> Cost:
        count = (1 if option is None else number(options, option)) * targets
        return Cost(count, 3.0 * count)

    return cost


def forward_passes(count: Callable[[Mapping[str, Any], ModelSize], int]) -> CostFunction:
    """Cost of a number of perturbed images, which serve all targets.

    Example:
        >>> forward_passes(lambda options, size: options["masks"])({"masks": 100}, ModelSize(), 2)
        Cost(evaluations=100, forwards=100.0)
    """

    def cost(options: Mapping[str, Any], size: ModelSize, _: int) -> Cost:
        images = count(options, size)
        return Cost(images, float(images))

    return cost


def number(options: Mapping[str, Any], name: str) -> int:
    """An option as a whole number, or 0 where it is none: costs are counted before options are checked."""
    value = options.get(name, 0)
    return int(value) if isinstance(value, int | float) else 0
