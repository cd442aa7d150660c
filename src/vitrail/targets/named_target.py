"""NamedTarget: what of a model's output is explained, as a value with a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.output_reader import OutputReader

#: Corners of a box: left, top, right and bottom.
Corners = tuple[float, float, float, float]


class NamedTarget(ABC):
    """A target of `vitrail.explain` that prints itself and can be saved.

    A target is asked for once and pinned for each image: what the model's output decides, such as which query is
    nearest to a box, is decided on the unchanged image. Perturbed images are evaluated with the pinned target.
    """

    #: Name of the kind in manifests.
    kind: ClassVar[str]
    processor: Any = None
    kinds: ClassVar[dict[str, type[NamedTarget]]] = {}

    def __init_subclass__(cls) -> None:
        NamedTarget.kinds[cls.kind] = cls

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts for the model to read, if it reads texts."""
        return ()

    @property
    def needs_texts(self) -> bool:
        """Whether a model that reads no texts is refused."""
        return False

    @property
    def reads_positions(self) -> bool:
        """Whether it reads scores at positions of a text, whose tokens must not be left out then."""
        return False

    def for_removal(self) -> NamedTarget:
        """The pinned target as methods evaluate it that remove parts of the input."""
        return self

    def for_contrast(self) -> NamedTarget:
        """The target as one side of a contrast."""
        return self

    @abstractmethod
    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> NamedTarget:
        """The same target with everything decided that depends on the output for one image.

        Args:
            output: The output for the unchanged images.
            image: Which image.
            geometry: Where the model's input lies in the image that was passed, or None for tensors.
        """

    @abstractmethod
    def values(self, output: OutputReader) -> Tensor:
        """Values of a pinned target for all examples of an output, shape (n,), in its graph."""

    @abstractmethod
    def title(self, output: OutputReader) -> str:
        """Name of a pinned target, for display."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values; `from_dict` reads it."""

    @classmethod
    @abstractmethod
    def of_dict(cls, values: Mapping[str, Any]) -> NamedTarget:
        """The target from JSON values."""

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:  # noqa: ARG002
        """The model's next candidates beside a pinned target, pinned, likeliest first."""
        raise TargetError(f"{self} has no other candidates: write contrast(a, b) with a target of your own")

    def corners(self, output: OutputReader, image: int) -> Corners | None:  # noqa: ARG002
        """The box of a pinned target as shares of the image's width and height, for drawing; None if it has none."""
        return None

    def __call__(self, output: Any) -> Tensor:
        """The value of each example of an output, shape (n,), for outputs that need no context."""
        reader = OutputReader(output)
        return pinned_values([self.pin(reader, i) for i in range(reader.rows)], reader)


def pinned_values(pinned: list[NamedTarget], output: OutputReader, owner: Tensor | None = None) -> Tensor:
    """Values of pinned targets, one for each example, shape (n,).

    Args:
        pinned: The pinned target of each image.
        output: The output.
        owner: Image that each example was made from, shape (n,); None for the images themselves.
    """
    different = list(dict.fromkeys(pinned))
    if len(different) == 1:
        return different[0].values(output)
    each = torch.stack([one.values(output) for one in different], 1)
    which = torch.tensor([different.index(one) for one in pinned], device=each.device)
    return each.gather(1, (which if owner is None else which[owner.to(each.device)])[:, None])[:, 0]


def from_dict(values: Mapping[str, Any]) -> NamedTarget:
    """The target that ``to_dict`` of a target wrote.

    Raises:
        TargetError: The kind is unknown, or the target was a function.

    Example:
        >>> from vitrail.targets import box, contrast
        >>> target = contrast(box(3, label="cat"), "others")
        >>> from_dict(target.to_dict()) == target
        True
    """
    kind = NamedTarget.kinds.get(str(values.get("kind")))
    if kind is None:
        known = ", ".join(NamedTarget.kinds)
        raise TargetError(f"{values.get('kind')!r} is not one of the kinds of targets, {known}")
    return kind.of_dict(values)
