"""Labels and masks of targets as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.class_group import ClassGroup


def label_value(label: int | str | ClassGroup | None) -> Any:
    """A label as a JSON value; a group is an object with its classes and its name."""
    if isinstance(label, ClassGroup):
        return {"classes": list(label.classes), "name": label.name}
    return label


def label_of(value: Any) -> int | str | ClassGroup | None:
    """The label that `label_value` wrote.

    Example:
        >>> label_of(label_value(ClassGroup([1, 3], "odd")))
        ClassGroup([1, 3], 'odd')
    """
    if isinstance(value, dict):
        return ClassGroup(value["classes"], value.get("name"))
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class BinaryMask:
    """A mask as a value that can be compared and saved.

    Attributes:
        height: Its height.
        width: Its width.
        runs: Lengths of runs in row order, outside first.
    """

    height: int
    width: int
    runs: tuple[int, ...]

    @classmethod
    def of(cls, mask: Any) -> BinaryMask:
        """The mask of an array, a tensor, a PIL image or nested lists; everything but zero is inside.

        Raises:
            TargetError: It does not have two axes, or nothing is inside.

        Example:
            >>> BinaryMask.of([[0, 1], [1, 0]]).runs
            (1, 2, 1)
        """
        values = mask.detach().cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
        if values.ndim != 2 or not values.size:
            raise TargetError(f"a mask of shape {values.shape} is not one of a single image: pass (height, width)")
        inside = (values != 0).ravel()
        if not inside.any():
            raise TargetError(
                f"the mask of shape {values.shape} is empty: mark the pixels of the region with ones, or pass one "
                "pixel as (x, y)"
            )
        changes = np.flatnonzero(np.diff(inside)) + 1
        edges = np.concatenate([[0], changes, [inside.size]])
        runs = np.diff(edges).tolist()
        return cls(int(values.shape[0]), int(values.shape[1]), tuple([0, *runs] if inside[0] else runs))

    @property
    def count(self) -> int:
        """Number of pixels inside."""
        return sum(self.runs[1::2])

    def tensor(self) -> Tensor:
        """The mask as booleans, shape (height, width)."""
        inside = torch.repeat_interleave(torch.arange(len(self.runs)) % 2 == 1, torch.tensor(self.runs))
        return inside.view(self.height, self.width)

    def __repr__(self) -> str:
        return f"mask of {self.count} pixels in {self.width}×{self.height}"
