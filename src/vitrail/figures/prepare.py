"""What all figures do first: settle the targets, leave out methods that do not apply, explain image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.probe import Probe
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, NotApplicableError, OptionError, TargetError
from vitrail.explain import explain
from vitrail.explanation import Explanation, Explanations
from vitrail.figures.registry import Progress
from vitrail.methods import find
from vitrail.methods.registry import METHODS
from vitrail.models import LoadedModel
from vitrail.targets import Target, resolve_target
from vitrail.viz.colormap import Array


def asked(about: LoadedModel, images: Tensor, targets: Target, count: int | None = None) -> list[Any]:
    """The targets of each image as ``explain`` takes them for that image alone.

    Args:
        about: The model.
        images: Shape (b, 3, height, width).
        targets: As for ``explain``.
        count: How many targets an image the figure has room for; None for any number.

    Raises:
        TargetError: A class does not exist, or there are more or fewer than ``count``.
    """
    _check_images(images)
    model = unwrap(about.module)
    with frozen(model), torch.no_grad():
        aimed = resolve_target(targets, ModelInputs((images,)).into(model), len(images), about.classes)
    if count is not None and aimed.count != count:
        want = {1: "one class", 2: "two classes"}.get(count, f"{count} classes")
        raise TargetError(f"this figure is about {want} of each image, not {aimed.count}")
    if aimed.classes is None:
        return [targets] * len(images)
    return [[row] for row in aimed.classes.tolist()]


def _check_images(images: Tensor) -> None:
    if images.dim() != 4 or not len(images) or not images.is_floating_point():
        raise InputError(f"images have shape (b, 3, height, width), not {tuple(images.shape)}")


def whole_number(option: str, value: object, least: int | None = None) -> int:
    """An option that must be a whole number, of at least so much.

    Example:
        >>> whole_number("step", "many", 1)
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: step='many' must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        more = "" if least is None else f" of at least {least}"
        raise OptionError(f"{option}={value!r} must be a whole number{more}")
    return value


def applicable(about: LoadedModel, images: Tensor, methods: Sequence[str] | str | None, usual: Sequence[str],
               quick: bool = False) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The methods of a comparison with their options.

    Args:
        about: The model.
        images: Some images.
        methods: What the user wants, a sequence or words with commas or blanks between; these must apply.
        usual: What the paper compares; of these, those that are there and apply.
        quick: With the options that make slow methods quick.
    """
    wanted = methods.replace(",", " ").split() if isinstance(methods, str) else methods
    if wanted is not None and not (isinstance(wanted, Sequence) and wanted and all(isinstance(w, str) for w in wanted)):
        raise OptionError(f"methods={methods!r} are no methods: write their names with commas between")
    structure = read_structure(unwrap(about.module), ModelInputs((images[:1],)))
    chosen: dict[str, dict[str, Any]] = {}
    for spec in usual if wanted is None else wanted:
        if wanted is None and spec.partition(":")[0] not in METHODS:
            continue
        _, method, options = find(spec)
        try:
            method.check(structure, options)
        except NotApplicableError:
            if wanted is not None:
                raise
            continue
        chosen[spec] = dict(method.quick) if quick else {}
    if not chosen:
        raise NotApplicableError(f"none of {', '.join(usual)} applies to {structure.model}: name others with methods=")
    return chosen


def explained(
    about: LoadedModel,
    images: Tensor,
    targets: Sequence[Any],
    methods: Mapping[str, Mapping[str, Any]],
    progress: Progress,
    keep: bool = False,
) -> list[Explanations]:
    """All methods on each image by itself, so that memory stays small and progress shows."""
    progress.begin("Explaining", len(images))
    found = []
    for image, target in zip(images, targets, strict=True):
        found.append(explain(about, image[None], methods=methods, target=target, keep=keep, advance=progress.looked))
        progress.step()
    return found


def explained_by(
    about: LoadedModel, images: Tensor, targets: Sequence[Any], method: str, progress: Progress, **options: Any
) -> list[Explanation]:
    """One method on each image, with what it computed on the way."""
    return [e[method] for e in explained(about, images, targets, {method: options}, progress, keep=True)]


def probe(about: LoadedModel, images: Tensor) -> Probe:
    """Looks at the model that need no target."""
    model, model_inputs = unwrap(about.module), ModelInputs((images,))

    def nothing(output: Any, owner: Tensor, kind: str) -> Tensor:
        raise OptionError(f"no target was given to score {owner.numel()} outputs by {kind}: {type(output).__name__}")

    return Probe(model, model_inputs, read_structure(model, model_inputs), nothing, 1)


def picture_of(explanation: Explanation) -> Array:
    """The first image as bytes, shape (height, width, 3)."""
    assert explanation.pictures is not None
    picture: Array = explanation.pictures[0]
    return picture


def on_grid(explanation: Explanation, patches: Tensor) -> Tensor:
    """Values of patches, shape (…, S), as a grid of the shape of the explanation's."""
    rows, columns = explanation.grid.shape[2:]
    return patches.reshape(*patches.shape[:-1], rows, columns)


def label_of(explanation: Explanation, k: int) -> str:
    """The k-th target in words."""
    return explanation.label(0, k)
