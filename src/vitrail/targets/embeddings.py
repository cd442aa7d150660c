"""The target `similar_to`: the cosine of an image's embedding and another one, for retrieval and siamese models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import OutputReader


@dataclass(frozen=True)
class SimilarTo(NamedTarget):
    """The cosine with another embedding as the target; see `similar_to`.

    Attributes:
        embedding: The other embedding, or None until the image was embedded.
        image: The image whose embedding is used, or None.
        name: Name for display.
    """

    kind: ClassVar[str] = "similar_to"
    embedding: tuple[float, ...] | None = None
    image: Any = field(default=None, compare=False, repr=False)
    name: str = "the other image"

    def __str__(self) -> str:
        what = self.name if self.embedding is None else f"an embedding of {len(self.embedding)} numbers"
        return f"similar_to({what})"

    def with_embedding(self, values: Tensor) -> SimilarTo:
        """The same with the embedding of the image."""
        return replace(self, embedding=tuple(values.detach().double().flatten().tolist()), image=None)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> SimilarTo:  # noqa: ARG002
        """The same, if the sizes of both embeddings agree."""
        if self.embedding is None:
            raise TargetError("the other image was not embedded: pass the target to vitrail.explain, or an embedding")
        size = output.image_embedding().shape[-1]
        if size != len(self.embedding):
            raise TargetError(
                f"the embedding has {len(self.embedding)} numbers, those of {output.context.name} have {size}: embed "
                "with the same model"
            )
        return self

    def values(self, output: OutputReader) -> Tensor:
        """The cosine."""
        own = output.image_embedding()
        other = torch.tensor(self.embedding, dtype=torch.float64).to(own)
        return F.normalize(own, dim=-1) @ F.normalize(other, dim=0)

    def title(self, output: OutputReader) -> str:  # noqa: ARG002
        """What it is compared with, for display."""
        return f"similarity to {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        values = None if self.embedding is None else list(self.embedding)
        return {"kind": self.kind, "embedding": values, "name": self.name}

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> SimilarTo:
        """The target from JSON values."""
        embedding = values.get("embedding")
        return cls(None if embedding is None else tuple(embedding), None, values.get("name", "the other image"))


def similar_to(other: Any, name: str | None = None) -> SimilarTo:
    """The cosine with another image or embedding as the target, for retrieval and siamese models.

    Args:
        other: An image as `vitrail.explain` takes it (tensor, PIL image, path), which the model embeds; or an embedding
            of shape (d,) or (1, d), as a tensor, array or list of numbers.
        name: Name for display.

    Example:
        >>> similar_to([1.0, 0.0])(torch.tensor([[3.0, 4.0]]))
        tensor([0.6000])
    """
    values = other
    if isinstance(values, Sequence) and not isinstance(values, str) and values and isinstance(values[0], int | float):
        values = torch.tensor([float(v) for v in values], dtype=torch.float64)
    if hasattr(values, "__array__") and not isinstance(values, Tensor) and not hasattr(values, "convert"):
        values = torch.as_tensor(values)
    if isinstance(values, Tensor) and values.dim() <= 2:
        if not values.numel() or (values.dim() == 2 and len(values) != 1) or values.dim() == 0:
            raise TargetError(f"an embedding of shape {tuple(values.shape)} is not one of a single image: pass (d,)")
        if not bool(torch.isfinite(values).all()) or not bool((values != 0).any()):
            raise TargetError("the embedding is zero or not finite: a direction is needed")
        return SimilarTo(None, None, name or "an embedding").with_embedding(values)
    return SimilarTo(None, other, name or "the other image")
