"""The target `region`: scores of a segmentation model, masks of queries, or depth, over a pixel or a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.class_group import ClassGroup
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import Corners, NamedTarget
from vitrail.targets.output_reader import Label, OutputReader, select_label
from vitrail.targets.saved_values import BinaryMask, label_of, label_value


@dataclass(frozen=True)
class Region(NamedTarget):
    """A part of the image as the target; see `region`.

    Attributes:
        where: A mask, a pixel (x, y), or None for the mask that the query predicts.
        label: Class, or None for the likeliest one in the region.
        query: Query whose mask is explained, for models that predict a mask a query; else None.
    """

    kind: ClassVar[str] = "region"
    where: BinaryMask | tuple[float, float] | None = None
    label: Label | None = None
    query: int | None = None

    def __str__(self) -> str:
        given = [] if self.where is None else [str(self.where)]
        given += [] if self.label is None else [f"label={self.label!r}"]
        given += [] if self.query is None else [f"query={self.query}"]
        return f"region({', '.join(given)})"

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> Region:
        """The mask in the size of the model's input, and the label or query that is explained."""
        masks = output.query_masks()
        if self.query is not None and masks is None:
            raise TargetError(f"query={self.query}: {output.context.name} predicts no mask for each query")
        pinned = self._located(output, image, geometry, masks)
        if masks is None:
            return self._pin_dense(pinned, output, image)
        if self.query is not None:
            return pinned
        weights = pinned.weights(masks)
        inside = (masks[image].detach().sigmoid() * weights).sum((-2, -1))
        probabilities = output.query_probabilities()
        if probabilities is None:
            return replace(pinned, query=int(inside.argmax()), label=None)
        own = probabilities[image].detach()
        label = None if self.label is None else output.label_index(self.label, own.shape[-1])
        indices = label.indices if isinstance(label, ClassGroup) else (label,)
        share = own.max(-1).values if label is None else own[:, list(indices)].sum(-1)
        query = int((inside * share).argmax())
        return replace(pinned, query=query, label=int(own[query].argmax()) if label is None else label)

    @staticmethod
    def _pin_dense(pinned: Region, output: OutputReader, image: int) -> Region:
        scores = output.dense()
        means = (scores[image].detach() * pinned.weights(scores)).sum((-2, -1))
        if pinned.label is None:
            return replace(pinned, label=int(means.argmax()))
        return replace(pinned, label=output.label_index(pinned.label, len(means)))

    def _located(
        self, output: OutputReader, image: int, geometry: ImageGeometry | None, masks: Tensor | None
    ) -> Region:
        """The same with the mask in the size of the model's input."""
        size = output.context.size
        if self.where is None:
            assert masks is not None and self.query is not None  # noqa: PT018
            if not 0 <= self.query < masks.shape[1]:
                raise TargetError(f"query {self.query} does not exist: there are {masks.shape[1]}, 0 to "
                                  f"{masks.shape[1] - 1}")  # fmt: skip
            own = masks[image, self.query].detach()
            shown = own if size is None else F.interpolate(own[None, None].float(), size, mode="bilinear")[0, 0]
            if not bool((shown > 0).any()):
                raise TargetError(f"the mask that query {self.query} predicts is empty: pass a pixel or a mask as well")
            return replace(self, where=BinaryMask.of(shown > 0))
        if isinstance(self.where, BinaryMask):
            return replace(self, where=_input_mask(self.where, size, geometry))
        if size is None:
            raise TargetError(f"the pixel {self.where} cannot be found: the size of the image is unknown")
        x, y = self.where if geometry is None else geometry.to_input(self.where[0] + 0.5, self.where[1] + 0.5)
        if not (0 <= x < size[1] and 0 <= y < size[0]):
            shown_size = size if geometry is None else geometry.size
            seen = f"; {geometry}" if geometry is not None and geometry.cropped else ""
            raise TargetError(
                f"the pixel {self.where} lies outside of the image, which has {shown_size[1]}×{shown_size[0]} "
                f"pixels{seen}"
            )
        mask = torch.zeros(size)
        mask[int(y), int(x)] = 1
        return replace(self, where=BinaryMask.of(mask))

    def weights(self, scores: Tensor) -> Tensor:
        """Weights of scores (…, h, w) whose sum is the mean over the region after bilinear resizing to its size."""
        assert isinstance(self.where, BinaryMask)
        mask = self.where.tensor().to(scores)
        if mask.shape == scores.shape[-2:]:
            return mask / mask.sum()
        with torch.enable_grad(), torch.inference_mode(mode=False):
            start = torch.zeros((1, 1, *scores.shape[-2:]), dtype=scores.dtype, device=scores.device)
            start.requires_grad_()
            resized = F.interpolate(start, mask.shape, mode="bilinear", align_corners=False)
            total = self.where.tensor().to(scores.device, scores.dtype)
            (found,) = torch.autograd.grad((resized[0, 0] * total).sum() / total.sum(), start)
        return found[0, 0]

    def values(self, output: OutputReader) -> Tensor:
        """Mean score of the label, of the query's mask, or of the depth over the region."""
        masks = output.query_masks()
        if masks is not None:
            assert self.query is not None
            chosen = masks[:, self.query]
        else:
            assert isinstance(self.label, int | ClassGroup)
            chosen = select_label(output.dense(), self.label, 1)
        return (chosen * self.weights(chosen)).sum((-2, -1))

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """Other labels of the region; for masks of queries, other queries."""
        masks = output.query_masks()
        scores = output.dense() if masks is None else masks
        means = (scores[image].detach() * self.weights(scores)).sum((-2, -1))
        order = means.argsort(descending=True).tolist()
        if masks is not None:
            return [replace(self, query=i, label=None) for i in order if i != self.query][:count]
        own = self.label.indices if isinstance(self.label, ClassGroup) else (self.label,)
        found: Sequence[NamedTarget] = [replace(self, label=i) for i in order if i not in own][:count]
        return found or super().others(output, image, count)

    def title(self, output: OutputReader) -> str:
        """Label and place, for display."""
        name = "" if self.label is None else output.label_name(self.label)
        if output.query_masks() is None and output.find(("predicted_depth",), 3) is not None:
            name = "depth"
        if self.query is not None:
            name = f"{name}, mask of query {self.query}" if name else f"mask of query {self.query}"
        count = self.where.count if isinstance(self.where, BinaryMask) else 1
        return f"{name}, {count} pixel{'' if count == 1 else 's'}"

    def corners(self, output: OutputReader, image: int) -> Corners | None:  # noqa: ARG002
        """The smallest box around the region."""
        assert isinstance(self.where, BinaryMask)
        ys, xs = self.where.tensor().nonzero().unbind(1)
        height, width = self.where.height, self.where.width
        low, high = (int(xs.min()), int(ys.min())), (int(xs.max()) + 1, int(ys.max()) + 1)
        return low[0] / width, low[1] / height, high[0] / width, high[1] / height

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values; a mask as the lengths of its runs."""
        where: Any = None if self.where is None else list(self.where) if isinstance(self.where, tuple) else None
        if isinstance(self.where, BinaryMask):
            where = {"height": self.where.height, "width": self.where.width, "runs": list(self.where.runs)}
        return {"kind": self.kind, "where": where, "label": label_value(self.label), "query": self.query}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Region:
        """The target from JSON values."""
        where = values.get("where")
        if isinstance(where, Mapping):
            where = BinaryMask(where["height"], where["width"], tuple(where["runs"]))
        elif where is not None:
            where = (where[0], where[1])
        return cls(where, label_of(values.get("label")), values.get("query"))


def region(where: Any = None, label: Label | None = None, *, query: int | None = None) -> Region:
    """A part of the image as the target: the mean score over a pixel or a mask.

    For semantic segmentation the score is that of a label, for depth the depth, and for models that predict a mask a
    query (Mask2Former, MaskFormer) the score of the query's mask. Scores are resized bilinearly to the model's input.

    Args:
        where: A pixel (x, y), or a mask of shape (height, width) in the size of the image that is passed or of the
            model's input. None with ``query``: the mask that the query predicts.
        label: Class by index or name, or a `ClassGroup`; by default the likeliest one in the region. For masks of
            queries: the class whose query is chosen.
        query: Query whose mask is explained; by default the one with the highest probability in the region.

    Raises:
        TargetError: The mask is empty or the pixel is not a pair of numbers.

    Example:
        >>> print(region((4, 2), label=1))
        region((4, 2), label=1)
        >>> scores = torch.arange(8.0).view(1, 2, 2, 2)
        >>> region([[1, 1], [0, 0]], label=1)({"logits": scores})
        tensor([4.5000])
    """
    if where is None:
        if query is None:
            raise TargetError("give a pixel as region((x, y)), a mask as region(mask), or region(query=3)")
        return Region(None, label, query)
    flat = isinstance(where, tuple | list) and len(where) == 2 and all(isinstance(v, int | float) for v in where)
    if flat:
        x, y = where
        if isinstance(x, bool) or isinstance(y, bool) or x != x or y != y or x < 0 or y < 0:
            raise TargetError(f"the pixel {where!r} must be (x, y) with numbers from 0")
        return Region((x, y), label, query)
    return Region(where if isinstance(where, BinaryMask) else BinaryMask.of(where), label, query)


def _input_mask(mask: BinaryMask, size: tuple[int, int] | None, geometry: ImageGeometry | None) -> BinaryMask:
    """A mask of the passed image as one of the model's input."""
    if size is None or (mask.height, mask.width) == size:
        return mask
    if geometry is None or (mask.height, mask.width) != geometry.size:
        also = "" if geometry is None else f" or of the image, {geometry.size[1]}×{geometry.size[0]}"
        raise TargetError(
            f"the mask has {mask.width}×{mask.height} pixels: it must have the size of the model's input, "
            f"{size[1]}×{size[0]}{also}"
        )
    inside = mask.tensor()
    ys, xs = torch.arange(size[0]) + 0.5, torch.arange(size[1]) + 0.5
    rows = [min(max(int(geometry.to_image(0.0, float(y))[1]), 0), mask.height - 1) for y in ys]
    columns = [min(max(int(geometry.to_image(float(x), 0.0)[0]), 0), mask.width - 1) for x in xs]
    resized = inside[rows][:, columns]
    if not bool(resized.any()):
        raise TargetError(f"the region lies outside of the part of the image that the model saw: {geometry}")
    return BinaryMask.of(resized)
