"""The target `contrast`: why one target and not another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.class_target import as_named_target
from vitrail.targets.named_target import Corners, NamedTarget, from_dict
from vitrail.targets.output_reader import OutputReader

OTHERS = "others"
#: Number of other candidates that a target is compared with.
CANDIDATES = 5


@dataclass(frozen=True)
class Contrast(NamedTarget):
    """One target minus others; see `contrast`.

    Attributes:
        first: The target that is explained.
        against: Targets that it is compared with; None for the model's next candidates.
        candidates: Number of these.
    """

    kind: ClassVar[str] = "contrast"
    first: NamedTarget
    against: tuple[NamedTarget, ...] | None = None
    candidates: int = CANDIDATES

    def __str__(self) -> str:
        if self.against is None:
            return f"contrast({self.first}, 'others')"
        listed = ", ".join(map(str, self.against))
        return f"contrast({self.first}, {listed if len(self.against) == 1 else f'[{listed}]'})"

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of all targets in it."""
        return tuple(dict.fromkeys(text for one in (self.first, *(self.against or ())) for text in one.texts))

    @property
    def needs_texts(self) -> bool:
        """Whether one of its targets needs texts."""
        return any(one.needs_texts for one in (self.first, *(self.against or ())))

    @property
    def reads_positions(self) -> bool:
        """Whether one of its targets reads scores at positions of a text."""
        return any(one.reads_positions for one in (self.first, *(self.against or ())))

    @property
    def processor(self) -> Any:
        """The first processor among those of its targets."""
        found = (one.processor for one in (self.first, *(self.against or ())))
        return next((one for one in found if one is not None), None)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> Contrast:
        """Both sides pinned; "others" are the model's next candidates for this image."""
        first = self.first.for_contrast().pin(output, image, geometry)
        if self.against is not None:
            others = tuple(o.for_contrast().pin(output, image, geometry) for o in self.against)
            return replace(self, first=first, against=others)
        candidates = first.others(output, image, self.candidates)
        if not candidates:
            raise TargetError(f"{self.first} has no other candidates: write contrast(a, b) with a target of your own")
        return replace(self, first=first, against=tuple(candidates))

    def values(self, output: OutputReader) -> Tensor:
        """The first value minus that of the other, or the log-sum-exp of several others."""
        assert self.against is not None
        others = [one.values(output) for one in self.against]
        return self.first.values(output) - (others[0] if len(others) == 1 else torch.stack(others).logsumexp(0))

    def title(self, output: OutputReader) -> str:
        """Both sides, for display."""
        assert self.against is not None
        names = [one.title(output) for one in self.against]
        rest = "" if len(names) <= 3 else f" and {len(names) - 3} more"
        return f"{self.first.title(output)} against {', '.join(names[:3])}{rest}"

    def corners(self, output: OutputReader, image: int) -> Corners | None:
        """The box of the first target."""
        return self.first.corners(output, image)

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        against = OTHERS if self.against is None else [one.to_dict() for one in self.against]
        return {"kind": self.kind, "first": self.first.to_dict(), "against": against, "candidates": self.candidates}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Contrast:
        """The target from JSON values."""
        against = values["against"]
        others = None if against == OTHERS else tuple(from_dict(one) for one in against)
        return cls(from_dict(values["first"]), others, values.get("candidates", CANDIDATES))


def contrast(first: Any, second: Any, *, candidates: int = CANDIDATES) -> Contrast:
    """A target for "why this and not that": the value of one target minus that of another.

    Args:
        first: The target that is explained: a class, a `ClassGroup`, a function, or one of `vitrail.targets`.
        second: What it is compared with: another target, a list of several, which are joined by log-sum-exp, or
            "others", the model's own next candidates. These are other classes of a classifier, other labels of the same
            query of a detector or of the same region, and other texts of the call.
        candidates: Number of candidates for "others".

    Example:
        >>> contrast(0, 2)(torch.tensor([[3.0, 5.0, 1.0]]))
        tensor([2.])
        >>> print(contrast("cat", "others"))
        contrast('cat', 'others')
    """
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise TargetError(f"candidates={candidates!r} must be an integer of at least 1")
    if isinstance(second, str) and second == OTHERS:
        return Contrast(as_named_target(first), None, candidates)
    several = second if isinstance(second, list | tuple) else [second]
    if not several:
        raise TargetError("contrast(a, []): give at least one target to compare with, or 'others'")
    return Contrast(as_named_target(first), tuple(as_named_target(one) for one in several), candidates)
