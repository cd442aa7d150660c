"""A class, a group of classes or a function, as a named target, for contrasts and rows of mixed targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from vitrail.errors import TargetError
from vitrail.inputs.targets import class_or_group
from vitrail.models.class_group import SEPARATOR, ClassGroup
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import Label, OutputReader, select_label
from vitrail.targets.saved_values import label_of, label_value


@dataclass(frozen=True)
class ClassTarget(NamedTarget):
    """The logit of a class, or the log-sum-exp of those of a group.

    Attributes:
        label: Index, name or group; None for the predicted class.
    """

    kind: ClassVar[str] = "class"
    label: Label | None = None

    def __str__(self) -> str:
        return "the predicted class" if self.label is None else repr(self.label)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> ClassTarget:  # noqa: ARG002
        """The index of the class."""
        scores = output.class_scores()[image].detach()
        if self.label is None:
            return ClassTarget(int(scores.argmax()))
        label = self.label
        if isinstance(label, str) and SEPARATOR in label:
            label = class_or_group(label, output.context.classes)
        return ClassTarget(output.label_index(label, len(scores)))

    def values(self, output: OutputReader) -> Tensor:
        """Its logit."""
        assert isinstance(self.label, int | ClassGroup)
        return select_label(output.class_scores(), self.label)

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """The likeliest other classes."""
        own = self.label.indices if isinstance(self.label, ClassGroup) else (self.label,)
        order = output.class_scores()[image].detach().argsort(descending=True).tolist()
        return [replace(self, label=i) for i in order if i not in own][:count]

    def title(self, output: OutputReader) -> str:
        """Name of the class."""
        return "" if self.label is None else output.label_name(self.label)

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        return {"kind": self.kind, "label": label_value(self.label)}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ClassTarget:
        """The target from JSON values."""
        return cls(label_of(values.get("label")))


@dataclass(frozen=True)
class FunctionTarget(NamedTarget):
    """A function of the output, one number for each example.

    Attributes:
        function: The function.
    """

    kind: ClassVar[str] = "function"
    function: Callable[[Any], Tensor]

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> FunctionTarget:  # noqa: ARG002
        """The same function."""
        return self

    def values(self, output: OutputReader) -> Tensor:
        """What the function returns."""
        found = self.function(output.output)
        if not isinstance(found, Tensor) or found.numel() != output.rows:
            raise TargetError(f"{self} must return one number for each of {output.rows} examples")
        return found.flatten()

    def title(self, output: OutputReader) -> str:  # noqa: ARG002
        """Name of the function."""
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Its name; a function cannot be read back."""
        return {"kind": self.kind, "name": str(self)}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> FunctionTarget:
        """Refused: the code of a function is not saved."""
        raise TargetError(f"the target was the function {values.get('name')}, whose code is not saved")


def as_named_target(target: Any) -> NamedTarget:
    """A target of any kind as a named target.

    Raises:
        TargetError: It is none.

    Example:
        >>> as_named_target(3)
        ClassTarget(label=3)
    """
    if isinstance(target, NamedTarget):
        return target
    if hasattr(target, "item") and getattr(target, "ndim", 1) == 0:
        target = target.item()
    if target is None or isinstance(target, str | ClassGroup) or (isinstance(target, int) and target is not True):
        return ClassTarget(target)
    if callable(target) and not isinstance(target, type):
        return FunctionTarget(target)
    raise TargetError(
        f"{target!r} is no target: give a class, a ClassGroup, a function, or one of vitrail.targets (prompt, box, "
        "region, contrast, similar_to)"
    )
