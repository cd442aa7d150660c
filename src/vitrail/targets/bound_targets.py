"""BoundTargets: the named targets of a call, one row of K for each image, and their values in the model's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.class_target import as_named_target
from vitrail.targets.named_target import Corners, NamedTarget, pinned_values
from vitrail.targets.output_reader import CallContext, OutputReader

Rows = tuple[tuple[NamedTarget, ...], ...]


@dataclass(frozen=True)
class TargetRecord:
    """One named target of one image, as it was explained.

    Attributes:
        asked: The target as it was given.
        pinned: The same with everything decided that depends on the model's output.
        title: Name for display.
        corners: Left, top, right and bottom of its box as shares of the model's input, or None.
    """

    asked: NamedTarget
    pinned: NamedTarget
    title: str
    corners: Corners | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values."""
        box = None if self.corners is None else list(self.corners)
        return {"asked": self.asked.to_dict(), "pinned": self.pinned.to_dict(), "title": self.title, "box": box}


@dataclass(frozen=True, eq=False)
class PinnedTargets:
    """Targets that are decided for each image: a function of outputs for any examples made from these images.

    Attributes:
        rows: Pinned targets, one row of K for each image.
        context: What is known about the call.
        records: What was asked and explained, in the same shape.
    """

    rows: Rows
    context: CallContext
    records: tuple[tuple[TargetRecord, ...], ...]

    def for_removal(self) -> PinnedTargets:
        """The targets as methods evaluate them that remove parts of the input."""
        return replace(self, rows=tuple(tuple(one.for_removal() for one in row) for row in self.rows))

    def __call__(self, output: Any, owner: Tensor | None = None) -> Tensor:
        """Values of all targets, shape (n, K).

        Args:
            output: The model's output for n examples.
            owner: Image that each example was made from, shape (n,); None for the images themselves.
        """
        reader = OutputReader(output, self.context)
        columns = [list(column) for column in zip(*self.rows, strict=True)]
        return torch.stack([pinned_values(column, reader, owner) for column in columns], 1)


@dataclass(frozen=True, eq=False)
class BoundTargets:
    """Named targets with the context of their call; a function from the output to their values, shape (b, K).

    Attributes:
        rows: One row of K targets for each image.
        context: What is known about the call.
        geometries: Where each model input lies in the image that was passed, or None.
    """

    rows: Rows
    context: CallContext
    geometries: tuple[ImageGeometry | None, ...] = ()

    def __call__(self, output: Any) -> Tensor:
        """Pin the targets on an output, and return their values."""
        return self.pinned(output)(output)

    @property
    def count(self) -> int:
        """Targets of each image, K."""
        return len(self.rows[0])

    def select(self, images: slice | Sequence[int]) -> BoundTargets:
        """The targets of some images."""
        indices = range(len(self.rows))[images] if isinstance(images, slice) else images
        geometries = tuple(self.geometries[i] for i in indices) if self.geometries else ()
        tokens = self.context.tokens
        context = self.context if tokens is None else replace(self.context, tokens=tokens.select(indices))
        return replace(self, rows=tuple(self.rows[i] for i in indices), context=context, geometries=geometries)

    def pinned(self, output: Any) -> PinnedTargets:
        """The targets with everything decided that depends on the output."""
        reader = OutputReader(output, self.context)
        rows, records = [], []
        with torch.no_grad():
            for i, row in enumerate(self.rows):
                geometry = self.geometries[i] if self.geometries else None
                rows.append(tuple(one.pin(reader, i, geometry) for one in row))
                records.append(tuple(
                    TargetRecord(asked, pinned, pinned.title(reader), pinned.corners(reader, i))
                    for asked, pinned in zip(row, rows[-1], strict=True)
                ))  # fmt: skip
        return PinnedTargets(tuple(rows), self.context, tuple(records))


def has_named_target(target: Any) -> bool:
    """Whether a target of `vitrail.explain` is one of `vitrail.targets`, or holds some.

    Example:
        >>> from vitrail.targets import box
        >>> has_named_target([[box(1), box(2)]]), has_named_target([[1, 2]])
        (True, False)
    """
    if isinstance(target, list | tuple):
        return any(has_named_target(one) for one in target)
    return isinstance(target, NamedTarget)


def target_rows_of(target: Any, batch: int) -> Rows:
    """One row of targets for each image, from a target, one for each image, or rows of K.

    Example:
        >>> from vitrail.targets import box
        >>> len(target_rows_of([[box(1), box(2)]], 3)), len(target_rows_of(box(1), 3)[0])
        (3, 1)
    """
    if not isinstance(target, list | tuple):
        return ((as_named_target(target),),) * batch
    nested = [isinstance(one, list | tuple) for one in target]
    if any(nested) and not all(nested):
        raise TargetError("rows of targets and single targets are mixed: write [[a, b]] for a and b of every image")
    if not any(nested):
        if len(target) != batch:
            raise TargetError(
                f"{len(target)} targets for {batch} image(s): give one, one per image, or [[a, b]] for several of "
                "every image"
            )
        return tuple((as_named_target(one),) for one in target)
    rows = tuple(tuple(as_named_target(one) for one in row) for row in target)
    if len(rows) not in (1, batch) or len({len(row) for row in rows}) != 1 or not rows[0]:
        lengths = sorted({len(row) for row in rows})
        raise TargetError(
            f"{len(rows)} rows of {lengths} targets for {batch} image(s): give one row for all "
            "images, or one of equal length for each"
        )
    return rows * batch if len(rows) == 1 else rows
