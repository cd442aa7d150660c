"""The target `box`: a box that a detector predicts, its label or one of its coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.class_group import ClassGroup
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import Corners, NamedTarget
from vitrail.targets.output_reader import Label, OutputReader, select_label
from vitrail.targets.saved_values import label_of, label_value

COORDINATES = ("x0", "y0", "x1", "y1", "cx", "cy", "width", "height")


@dataclass(frozen=True)
class Box(NamedTarget):
    """A box of a detector as the target; see `box`.

    Attributes:
        query: Number of the query that predicts the box, or None.
        nearest: Corners of a box in pixels; the query is the one that overlaps it most.
        label: Class or text that is explained, or None for the query's likeliest one.
        coordinate: Coordinate that is explained instead of a label, or None.
        processor: Processor or tokenizer for labels that the model reads as texts.
    """

    kind: ClassVar[str] = "box"
    query: int | None = None
    nearest: Corners | None = None
    label: Label | None = None
    coordinate: str | None = None
    processor: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        where = f"query={self.query}" if self.query is not None else f"nearest={self.nearest}"
        label = "" if self.label is None else f", label={self.label!r}"
        coordinate = "" if self.coordinate is None else f", coordinate={self.coordinate!r}"
        return f"box({where}{label}{coordinate})"

    @property
    def texts(self) -> tuple[str, ...]:
        """The label, where it is a text."""
        labels = self.label.classes if isinstance(self.label, ClassGroup) else (self.label,)
        return tuple(label for label in labels if isinstance(label, str))

    @property
    def needs_texts(self) -> bool:
        """Whether a processor was given for the label."""
        return bool(self.texts) and self.processor is not None

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> Box:
        """The query and the label that are explained for one image."""
        boxes = output.boxes()[image].detach()
        query = self.query if self.nearest is None else self._nearest(output, image, boxes, geometry)
        assert query is not None
        if not 0 <= query < len(boxes):
            raise TargetError(f"query {query} does not exist: {output.context.name} has {len(boxes)}, 0 to "
                              f"{len(boxes) - 1}")  # fmt: skip
        pinned = replace(self, query=query, nearest=None)
        if self.coordinate is not None:
            return replace(pinned, label=None)
        scores = output.query_scores()
        if scores is None:
            raise TargetError(f"{output.context.name} has no scores of queries: pass coordinate= to explain a box")
        own = scores[image, query].detach()
        label = int(own.argmax()) if self.label is None else output.label_index(self.label, len(own))
        if isinstance(label, ClassGroup) and not isinstance(self.label, ClassGroup):
            label = max(label.indices, key=lambda i: float(own[i]))  # the token that leads among those of the text
        return replace(pinned, label=label)

    def _nearest(self, output: OutputReader, image: int, boxes: Tensor, geometry: ImageGeometry | None) -> int:
        assert self.nearest is not None
        wanted = boxes.new_tensor(shares_of(self.nearest, output.context.size, geometry))
        overlap = intersection_over_union(boxes, wanted)
        probabilities = output.query_probabilities()
        if probabilities is not None:
            detected = probabilities[image].detach().sum(-1) if self._softmax(output) else None
            objects = None if detected is None else detected > 0.5
            if objects is not None and bool(objects.any()) and float(overlap[objects].max()) > 0:
                overlap = overlap.masked_fill(~objects, -1.0)
        if float(overlap.max()) <= 0:
            raise TargetError(
                f"no box that {output.context.name} predicts overlaps {self.nearest}: vitrail.targets.detections lists "
                "them with their queries"
            )
        return int(overlap.argmax())

    @staticmethod
    def _softmax(output: OutputReader) -> bool:
        scores, shown = output.find(("class_queries_logits", "pred_logits", "logits"), 3), output.query_scores()
        return scores is not None and shown is not None and scores.shape != shown.shape

    def values(self, output: OutputReader) -> Tensor:
        """The score of the label, or the coordinate as a share of the image's width or height."""
        assert self.query is not None
        if self.coordinate is not None:
            x0, y0, x1, y1 = output.boxes()[:, self.query].unbind(-1)
            return {
                "x0": x0, "y0": y0, "x1": x1, "y1": y1, "cx": (x0 + x1) / 2, "cy": (y0 + y1) / 2,
                "width": x1 - x0, "height": y1 - y0,
            }[self.coordinate]  # fmt: skip
        scores = output.query_scores()
        assert scores is not None and isinstance(self.label, int | ClassGroup)  # noqa: PT018
        return select_label(scores[:, self.query], self.label)

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """Other labels of the same query."""
        scores = output.query_scores()
        if scores is None or self.coordinate is not None or self.query is None:
            return super().others(output, image, count)
        own = self.label.indices if isinstance(self.label, ClassGroup) else (self.label,)
        order = scores[image, self.query].detach().argsort(descending=True).tolist()
        return [replace(self, label=i) for i in order if i not in own][:count]

    def title(self, output: OutputReader) -> str:
        """Label and query, for display."""
        what = self.coordinate if self.label is None else output.label_name(self.label)
        return f"{what}, query {self.query}"

    def corners(self, output: OutputReader, image: int) -> Corners | None:
        """The predicted box."""
        assert self.query is not None
        x0, y0, x1, y1 = output.boxes()[image, self.query].detach().float().tolist()
        return x0, y0, x1, y1

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        nearest = None if self.nearest is None else list(self.nearest)
        return {
            "kind": self.kind, "query": self.query, "nearest": nearest, "label": label_value(self.label),
            "coordinate": self.coordinate,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Box:
        """The target from JSON values."""
        nearest = values.get("nearest")
        return box(
            query=values.get("query"), nearest=nearest, label=label_of(values.get("label")),
            coordinate=values.get("coordinate"),
        )  # fmt: skip


def box(
    query: int | None = None,
    *,
    nearest: Sequence[float] | None = None,
    label: Label | None = None,
    coordinate: str | None = None,
    processor: Any = None,
) -> Box:
    """A box of a detector as the target: the score of its label, or one of its coordinates.

    Args:
        query: Number of the query that predicts the box, as `vitrail.targets.detections` lists it.
        nearest: Corners x0, y0, x1, y1 in pixels of the image that is passed, instead of a query: the query whose box
            overlaps them most. Where the model has a class "no object", queries that predict an object come first.
        label: Class by index or name, a `ClassGroup`, or a text for models that read the labels (OWL-ViT, Grounding
            DINO); by default the query's likeliest label.
        coordinate: "x0", "y0", "x1", "y1", "cx", "cy", "width" or "height", instead of a label.
        processor: Hugging Face processor or tokenizer, by object or by name, for labels that the model reads as texts;
            models that were loaded by name need none.

    Raises:
        TargetError: The arguments contradict each other.

    Example:
        >>> print(box(3, label="cat"))
        box(query=3, label='cat')
        >>> output = {"logits": torch.tensor([[[0.0, 2.0], [1.0, 0.0]]]), "pred_boxes": torch.rand(1, 2, 4)}
        >>> box(0)(output), box(1, label=1)(output)
        (tensor([2.]), tensor([0.]))
    """
    if (query is None) == (nearest is None):
        raise TargetError("give one of query= and nearest=: box(3) or box(nearest=(x0, y0, x1, y1))")
    if query is not None and (isinstance(query, bool) or not hasattr(query, "__index__") or query < 0):
        raise TargetError(f"query={query!r} must be the number of a query, 0 or more")
    if coordinate is not None and coordinate not in COORDINATES:
        raise TargetError(f"coordinate={coordinate!r} is not one of {', '.join(COORDINATES)}")
    if coordinate is not None and label is not None:
        raise TargetError(f"give label={label!r} or coordinate={coordinate!r}, not both: they are different targets")
    corners: Corners | None = None
    if nearest is not None:
        values = [float(v) for v in nearest]
        if len(values) != 4 or not all(map(isfinite, values)) or values[0] >= values[2] or values[1] >= values[3]:
            raise TargetError(f"nearest={nearest!r} must be x0, y0, x1, y1 in pixels with x0 < x1 and y0 < y1")
        corners = (values[0], values[1], values[2], values[3])
    return Box(None if query is None else int(query), corners, label, coordinate, processor)


def shares_of(corners: Corners, size: tuple[int, int] | None, geometry: ImageGeometry | None) -> Corners:
    """Corners in pixels of the image that was passed as shares of the model's input.

    Raises:
        TargetError: The size of the image is unknown, or the box lies outside of it.

    Example:
        >>> shares_of((8, 0, 16, 32), (32, 32), None)
        (0.25, 0.0, 0.5, 1.0)
    """
    if size is None:
        raise TargetError(f"the box {corners} is in pixels, and the size of the image is unknown: pass query=")
    x0, y0, x1, y1 = corners
    height, width = size
    shown = (height, width) if geometry is None else geometry.size
    if geometry is not None:
        (x0, y0), (x1, y1) = geometry.to_input(x0, y0), geometry.to_input(x1, y1)
    if x1 <= 0 or y1 <= 0 or x0 >= width or y0 >= height:
        seen = "" if geometry is None or not geometry.cropped else f"; {geometry}"
        raise TargetError(
            f"the box {tuple(corners)} lies outside of the image, which has {shown[1]}×{shown[0]} pixels{seen}"
        )
    return x0 / width, y0 / height, x1 / width, y1 / height


def intersection_over_union(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Overlap of boxes with one box, shapes (q, 4) and (4,) to (q,).

    Example:
        >>> intersection_over_union(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([0.5, 0.0, 1.0, 1.0]))
        tensor([0.5000])
    """
    low, high = torch.maximum(boxes[:, :2], wanted[:2]), torch.minimum(boxes[:, 2:], wanted[2:])
    shared = (high - low).clamp_min(0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(-1)
    return shared / (area + (wanted[2:] - wanted[:2]).prod() - shared).clamp_min(1e-12)
