"""An entry of the zoo: a model, its inputs, and what must come of explaining it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

#: Methods that are computed together in one call: attention, gradients of attention, vectors, and gradients of inputs.
METHODS = ("rollout", "transformer_mm", "gradtoken", "leadlight", "gradient_x_input")
WITHOUT_LEADLIGHT = tuple(m for m in METHODS if m != "leadlight")
#: Methods for models whose attention is not one chain between all tokens.
INPUT_METHODS = ("gradient_x_input", "occlusion")


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode with a batch of inputs.

    Attributes:
        model: The model.
        inputs: A batch of at least two examples: a tensor of images, or keyword arguments.
        target: The class to explain, or a function of the output.
        shared: Names of keyword arguments that all examples share.
        grid: Number of patches (rows, columns) that the map must have, or None for texts and other inputs.
        patch: A patch (row, column) that the construction of the model makes decisive, or that it ignores.
        twin: Another subject that must have the same maps.
        options: Further arguments of the call.
    """

    model: nn.Module
    inputs: Any
    target: Any = 1
    shared: tuple[str, ...] = ()
    grid: tuple[int, int] | None = None
    patch: tuple[int, int] | None = None
    twin: Subject | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A model and what is expected of it.

    Attributes:
        name: ``library:family``.
        build: Makes the model and its inputs.
        tests: Names of tests in `known_answers` that must pass.
        methods: Methods that these tests apply.
        refused: For each method that does not apply, a pattern of the true reason.
        warned: A pattern of the warning that must be given, "" for none.
        pending: Checks that fail at present, or ``check:method`` of single methods, each with the reason.
        slow: Whether the model is left to the slow tests.
        target: Kind of target in the table of the documentation.
    """

    name: str
    build: Callable[[], Subject]
    tests: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS
    refused: Mapping[str, str] = field(default_factory=dict)
    warned: str = ""
    pending: Mapping[str, str] = field(default_factory=dict)
    slow: bool = True
    target: str = "class"

    @property
    def checks(self) -> tuple[str, ...]:
        """Names of all that is checked."""
        return self.tests + ("refused",) * bool(self.refused) + ("warned",) * bool(self.warned)

    @property
    def expectation(self) -> str:
        """ "right", "refused" or "warned": the strongest statement that is made of this model."""
        return "right" if self.tests else "refused" if self.refused else "warned"
