"""Scores of other packages: a function from maps to one number per image, which plans and reports know by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from vitrail.errors import OptionError
from vitrail.methods.plugins import TABLES, load_plugins, refuse_name_clash
from vitrail.scores.presets import PRESETS

#: Names of the package's protocols, which no other score may have.
RESERVED_NAMES = (
    "segmentation", "pointing", "box_pointing", "wsol", "selectivity", "complexity", "sensitivity", "sanity",
    "multiclass", "multiclass_original", "rationale", "eraser", "explain", "grid_pointing", "difull", "dipart",
    "road", "saco", "monotonicity", "infidelity", "discrimination", "top_word", "event", "right_object", "source",
    "continuation", "marked_removal",
)  # fmt: skip
DIRECTIONS = ("up", "down", "none")
#: What a score may need of a data set.
NEEDS = ("mask", "boxes", "label")


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """Maps of one method for B images, and what is known about the images; the argument of a registered score.

    Attributes:
        maps: One map per image at the size of the model's input, in [0, 1], or [-1, 1] if signed, shape (B, h, w).
        signed: Whether negative relevance has a meaning.
        images: The model's inputs, shape (B, channels, h, w).
        classes: The explained class of each image, shape (B,).
        labels: The true class of each image, shape (B,); −1 where it is unknown or not a class of the model.
        masks: Mask of each image's explained object: 1 object, 0 background, 255 ignored, shape (h, w); None where
            there is none.
        boxes: Boxes of each image's explained object in pixels, x0, y0, x1, y1, shape (n, 4); None where there is none.
        model: The model.
    """

    maps: Tensor
    signed: bool
    images: Tensor
    classes: Tensor
    labels: Tensor
    masks: tuple[Tensor | None, ...]
    boxes: tuple[Tensor | None, ...]
    model: nn.Module


@dataclass(frozen=True)
class RegisteredScore:
    """A score by name.

    Attributes:
        name: Name in plans.
        compute: From `ScoreInputs` to one number per image, shape (B,); NaN where it is undefined.
        title: Column heading.
        direction: "up" if higher is better, "down" if lower is better, "none" if neither.
        description: What is measured, for reports.
        needs: What a data set must have: some of "mask", "boxes" and "label". Images without are left out.
        percent: Whether values are fractions that reports print in percent.
    """

    name: str
    compute: Callable[[ScoreInputs], Tensor]
    title: str
    direction: str
    description: str = ""
    needs: tuple[str, ...] = ()
    percent: bool = False


REGISTERED_SCORES: dict[str, RegisteredScore] = {}
TABLES["vitrail.scores"] = REGISTERED_SCORES


def register_score(
    name: str, title: str, direction: str, description: str = "", needs: tuple[str, ...] = (), percent: bool = False
) -> Callable[[Callable[[ScoreInputs], Tensor]], Callable[[ScoreInputs], Tensor]]:
    """Add a score, which plans can name as a protocol; the arguments are the fields of `RegisteredScore`.

    Raises:
        OptionError: The name is taken, or a field has an unknown value.

    Example:
        >>> @register_score("top_half", "Top half", "none", "share of relevance in the upper half", percent=True)
        ... def top_half(inputs):
        ...     positive = inputs.maps.clamp_min(0)
        ...     return positive[:, : positive.shape[1] // 2].sum((1, 2)) / positive.sum((1, 2))
        >>> REGISTERED_SCORES.pop("top_half").direction
        'none'
    """
    if name in RESERVED_NAMES or name in PRESETS:
        raise OptionError(f"{name!r} is a protocol of vitrail: choose another name for the score")
    if not name.isidentifier():
        raise OptionError(f"{name!r} is not a name: use letters, digits and _")
    if direction not in DIRECTIONS:
        raise OptionError(f"direction={direction!r} of {name} is not one of {', '.join(map(repr, DIRECTIONS))}")
    if not set(needs) <= set(NEEDS):  # a string is a sequence too, and is rejected
        raise OptionError(f"needs={needs!r} of {name} must be a tuple of some of {', '.join(map(repr, NEEDS))}")

    def add(compute: Callable[[ScoreInputs], Tensor]) -> Callable[[ScoreInputs], Tensor]:
        existing = REGISTERED_SCORES.get(name)
        refuse_name_clash("score", name, None if existing is None else existing.compute, compute)
        REGISTERED_SCORES[name] = RegisteredScore(name, compute, title, direction, description, tuple(needs), percent)
        return compute

    return add


def find_score(name: str) -> RegisteredScore | None:
    """Return a registered score by name, loading the package that declares it if need be; None if there is none."""
    if name not in REGISTERED_SCORES and name not in RESERVED_NAMES:
        load_plugins("vitrail.scores", name)
    return REGISTERED_SCORES.get(name)
