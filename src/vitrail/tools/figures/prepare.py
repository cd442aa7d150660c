"""Common first steps of all figures: resolve targets, select applicable methods, explain image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, NotApplicableError, OptionError, TargetError
from vitrail.inputs.targets import resolve_target
from vitrail.methods import find
from vitrail.methods.probe import Probe
from vitrail.methods.registry import METHODS
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.tools.figures.registry import FigureInputs
from vitrail.viz.colormap import Array


def resolve_targets(given: FigureInputs, count: int | None = None) -> list[Any]:
    """Resolve the targets of each image to the form that ``explain`` takes for that image alone.

    Raises:
        TargetError: A class does not exist, or an image has more or fewer targets than ``count``, where it is stated.
    """
    images, targets, loaded = given.images, given.targets, given.loaded
    if images.dim() != 4 or not len(images) or not images.is_floating_point():
        raise InputError(f"images must be floats of shape (b, 3, height, width), got {tuple(images.shape)}")
    model = unwrap(loaded.module)
    with frozen(model), torch.no_grad():
        output = ModelInputs((images,)).into(model)
        resolved = resolve_target(targets, class_logits(model, output), len(images), loaded.classes, output)
    if count is not None and resolved.count != count:
        needed = {1: "one class", 2: "two classes"}.get(count, f"{count} classes")
        raise TargetError(f"this figure needs {needed} per image, got {resolved.count}: change target=")
    if resolved.classes is None:
        return [targets] * len(images)
    return [[row] for row in resolved.rows()]


def check_integer(option: str, value: object, least: int | None = None) -> int:
    """Return an option that must be an integer of at least ``least``.

    Example:
        >>> check_integer("step", "many", 1)
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: step='many' must be an integer of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise OptionError(f"{option}={value!r} must be an integer{bound}")
    return value


def select_methods(loaded: LoadedModel, images: Tensor, methods: Sequence[str] | str | None, defaults: Sequence[str],
                   quick: bool = False) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Select the methods of a comparison, with their options.

    Args:
        loaded: The model.
        images: Some images.
        methods: The user's choice, a sequence or a string separated by commas or spaces; all of them must apply.
        defaults: The methods that the paper compares, used without a choice; those that do not apply are left out.
        quick: Use the options that make slow methods quick.
    """
    chosen = methods.replace(",", " ").split() if isinstance(methods, str) else methods
    if chosen is not None and not (isinstance(chosen, Sequence) and chosen and all(isinstance(c, str) for c in chosen)):
        raise OptionError(f"methods={methods!r} must be method names, separated by commas")
    structure = read_structure(unwrap(loaded.module), ModelInputs((images[:1],)))
    selected: dict[str, dict[str, Any]] = {}
    for spec in defaults if chosen is None else chosen:
        if chosen is None and spec.partition(":")[0] not in METHODS:
            continue
        _, method, options = find(spec)
        try:
            method.check(structure, options, model=unwrap(loaded.module))
        except NotApplicableError:
            if chosen is not None:
                raise
            continue
        selected[spec] = dict(method.quick) if quick else {}
    if not selected:
        raise NotApplicableError(
            f"none of {', '.join(defaults)} applies to {structure.model}: choose others with methods="
        )
    return selected


def explain_images(
    given: FigureInputs, methods: Mapping[str, Mapping[str, Any]], count: int | None = None, keep: bool = False
) -> list[Explanations]:
    """Explain ``count`` targets of each image by itself with all methods, to bound memory and report progress."""
    targets, progress = resolve_targets(given, count), given.progress
    progress.begin("Explaining", len(targets))
    explanations = []
    for image, target in zip(given.images, targets, strict=True):
        explanations.append(
            explain(given.loaded, image[None], methods=methods, target=target, keep=keep, advance=progress.evaluated)
        )
        progress.step()
    return explanations


def explain_with_intermediates(given: FigureInputs, method: str, count: int | None = None) -> list[Explanation]:
    """Explain each image with one method and keep its intermediate results in ``Explanation.intermediates``."""
    return [e[method] for e in explain_images(given, {method: {}}, count, keep=True)]


def probe_without_target(loaded: LoadedModel, images: Tensor) -> Probe:
    """Probe a model for quantities that need no target."""
    model, model_inputs = unwrap(loaded.module), ModelInputs((images,))

    def no_target(output: Any, owner: Tensor, kind: str) -> Tensor:
        raise OptionError(f"no target was given to score {owner.numel()} outputs by {kind}: {type(output).__name__}")

    return Probe(model, model_inputs, read_structure(model, model_inputs), no_target, 1)


def input_image(explanation: Explanation) -> Array:
    """The first image as bytes, shape (height, width, 3)."""
    assert explanation.rgb_images is not None
    image: Array = explanation.rgb_images[0]
    return image


def to_grid(explanation: Explanation, patches: Tensor) -> Tensor:
    """Reshape values of patches, shape (…, S), to the explanation's grid, shape (…, rows, columns)."""
    rows, columns = explanation.grid.shape[2:]
    return patches.reshape(*patches.shape[:-1], rows, columns)
