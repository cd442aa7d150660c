"""Read boxes, masks, dense scores, similarities and class scores from what a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.output_tensors import any_output, fields_of, logits_of, missing_scores
from vitrail.errors import TargetError
from vitrail.inputs.targets import class_index
from vitrail.models.class_group import ClassGroup
from vitrail.targets.token_context import TokenContext

_QUERY_SCORES = ("class_queries_logits", "pred_logits", "logits")
_BOXES = ("pred_boxes",)
_QUERY_MASKS = ("masks_queries_logits", "pred_masks")
_DENSE = ("logits", "predicted_depth", "out")
_EMBEDDINGS = ("image_embeds", "image_features", "pooler_output")
#: Similarities of images to texts, shape (images, texts).
_SIMILARITIES = ("logits_per_image", "itm_score")

#: A class or text of the output: its index, its name, or several of them as one.
Label = int | str | ClassGroup


@dataclass(frozen=True, eq=False)
class TextColumns:
    """Texts of a call, and where the output has their scores.

    Attributes:
        columns: For each text the indices of its scores: one, or those of its tokens where a detector scores tokens.
        embeddings: Embeddings of the texts, shape (T, d), where the model is called without them; else None.
        scale: Factor on the cosine with these embeddings.
        bias: Added to it.
    """

    columns: Mapping[str, tuple[int, ...]]
    embeddings: Tensor | None = None
    scale: float = 1.0
    bias: float = 0.0


@dataclass(frozen=True, eq=False)
class CallContext:
    """What is known about a call besides the model's output.

    Attributes:
        module: The model, or None.
        classes: Class names, or None.
        size: Height and width of the images that the model takes, or None.
        texts: Texts of the call, or None.
        tokens: Tokens of the call of a language model, or None.
    """

    module: nn.Module | None = None
    classes: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    texts: TextColumns | None = None
    tokens: TokenContext | None = None

    @property
    def name(self) -> str:
        """The model's name, for messages."""
        return "the model" if self.module is None else type(self.module).__name__

    @property
    def stated_labels(self) -> int | None:
        """Number of classes that the model's configuration states."""
        config = getattr(self.module, "config", None)
        return getattr(config, "num_labels", None)


@dataclass(frozen=True, eq=False)
class OutputReader:
    """The output of one call, as targets read it.

    Attributes:
        output: What the model returned.
        context: What is known about the call.

    Example:
        >>> reader = OutputReader({"logits": torch.zeros(2, 5, 16, 16)})
        >>> reader.dense().shape
        torch.Size([2, 5, 16, 16])
    """

    output: Any
    context: CallContext = field(default_factory=CallContext)

    def find(self, names: tuple[str, ...], axes: int) -> Tensor | None:
        """The first tensor with one of some names and a number of axes, or None."""
        for name in names:
            value = self.output.get(name) if isinstance(self.output, Mapping) else getattr(self.output, name, None)
            if isinstance(value, Tensor) and value.dim() == axes:
                return value
        return None

    @property
    def rows(self) -> int:
        """Number of examples."""
        for names, axes in ((_BOXES, 3), (_QUERY_MASKS, 4), (_DENSE[:2], 4), (_SIMILARITIES, 2)):
            found = self.find(names, axes)
            if found is not None:
                return len(found)
        return len(any_output(self.output))

    def boxes(self) -> Tensor:
        """Predicted boxes as x0, y0, x1, y1, each a share of the image's width or height, shape (n, queries, 4)."""
        found = self.find(_BOXES, 3)
        if found is None:
            raise TargetError(
                f"{self.context.name} returned {fields_of(self.output)}, which holds no boxes: a box is a target of "
                "detectors, whose output has pred_boxes"
            )
        cx, cy, width, height = found.unbind(-1)
        return torch.stack([cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2], -1)

    def query_scores(self) -> Tensor | None:
        """Scores of the classes of each query, shape (n, queries, C), without that of "no object"; None if absent."""
        found = self.find(_QUERY_SCORES, 3)
        return found[..., :-1] if found is not None and self.has_no_object(found) else found

    def query_probabilities(self) -> Tensor | None:
        """Probabilities of the classes of each query, shape (n, queries, C)."""
        found = self.find(_QUERY_SCORES, 3)
        if found is None:
            return None
        return found.softmax(-1)[..., :-1] if self.has_no_object(found) else found.sigmoid()

    def has_no_object(self, scores: Tensor) -> bool:
        """Whether the last class of the queries is "no object"."""
        if self.find(("class_queries_logits",), 3) is not None:
            return True
        counts = (self.context.stated_labels, len(self.context.classes or ()) or None)
        return any(count is not None and scores.shape[-1] == count + 1 for count in counts)

    def query_masks(self) -> Tensor | None:
        """Scores of the mask of each query, shape (n, queries, h, w), or None."""
        return self.find(_QUERY_MASKS, 4)

    def dense(self) -> Tensor:
        """Scores of each pixel, shape (n, C, h, w); a depth has one class."""
        found = self.output if isinstance(self.output, Tensor) and self.output.dim() == 4 else self.find(_DENSE, 4)
        if found is None:
            depth = self.find(("predicted_depth",), 3)
            found = None if depth is None else depth[:, None]
        if found is None:
            raise TargetError(
                f"{self.context.name} returned {fields_of(self.output)}, which has no score for each pixel: a region "
                "is a target of models for segmentation or depth"
            )
        return found

    def token_scores(self) -> Tensor:
        """Scores of the tokens of the vocabulary at each position, shape (n, positions, vocabulary)."""
        bare = self.output[0] if isinstance(self.output, tuple) and self.output else self.output
        found = bare if isinstance(bare, Tensor) and bare.dim() == 3 else self.find(("logits",), 3)
        if found is None:
            raise TargetError(
                f"{self.context.name} returned {fields_of(self.output)}, which has no scores of tokens at each "
                "position: tokens and answers are targets of language models"
            )
        return found

    def score_column(self, image: int, position: int) -> int:
        """Where the output has the scores of what follows a token of a text; negative positions count from the end.

        Raises:
            TargetError: The text is shorter.
        """
        tokens, positions = self.context.tokens, self.token_scores().shape[1]
        if tokens is not None and positions != tokens.scored:
            raise TargetError(
                f"{self.context.name} returned scores of {positions} positions, and {tokens.scored} were expected for "
                f"texts of {tokens.length} tokens: which score belongs to which token is unknown. Learned tokens in "
                "front of a text (prompt tuning) do this; use target=lambda output: output.logits[:, -1, id]"
            )
        length = positions if tokens is None else len(tokens.rows[image].columns)
        if not -length <= position < length:
            raise TargetError(f"position={position} does not exist: text {image} has {length} tokens")
        position %= length
        return position if tokens is None else tokens.score_index(tokens.rows[image].columns[position])

    def class_scores(self) -> Tensor:
        """Class scores, shape (n, C)."""
        found = logits_of(self.output, self.context.stated_labels)
        if found is None:
            raise TargetError(missing_scores(self.output))
        return found

    def image_embedding(self) -> Tensor:
        """Embeddings of the images, shape (n, d)."""
        value = self.find(_EMBEDDINGS, 2)
        if value is None:
            value = self.output[0] if isinstance(self.output, tuple) and self.output else self.output
        if not isinstance(value, Tensor) or value.dim() != 2:
            raise TargetError(
                f"no image embedding found in {fields_of(self.output)}: the model must return image_embeds, "
                "pooler_output or one tensor of shape (images, d)"
            )
        return value

    def similarities(self) -> Tensor:
        """Similarity of each image to each text, on the model's own scale, shape (n, T)."""
        texts = self.context.texts
        if texts is not None and texts.embeddings is not None:
            image = F.normalize(self.image_embedding(), dim=-1)
            return texts.scale * image @ texts.embeddings.to(image).T + texts.bias
        found = self.find(_SIMILARITIES, 2)
        if found is None:
            raise TargetError(
                f"{self.context.name} returned {fields_of(self.output)}, which holds no similarity of images to "
                "texts: a prompt is a target of models that read texts, such as CLIP; name a class instead"
            )
        return found

    def label_index(self, label: Label, count: int) -> int | ClassGroup:
        """The index of a class or text, or the group of indices.

        Raises:
            TargetError: It does not exist.
        """
        if isinstance(label, ClassGroup):
            parts = [self.label_index(one, count) for one in label.classes]
            return ClassGroup([i for one in parts for i in (one.indices if isinstance(one, ClassGroup) else (one,))])
        texts = {} if self.context.texts is None else self.context.texts.columns
        if isinstance(label, str) and label in texts:
            columns = texts[label]
            return columns[0] if len(columns) == 1 else ClassGroup(columns)
        index = class_index(label, self.context.classes) if isinstance(label, str) else label
        if not 0 <= index < count:
            raise TargetError(f"label {index} does not exist: the output has {count} labels, 0 to {count - 1}")
        return index

    def label_name(self, label: Label) -> str:
        """Name of a class or text, for display."""
        if isinstance(label, ClassGroup):
            return label.title(self.context.classes)
        if isinstance(label, str):
            return label
        texts = {} if self.context.texts is None else self.context.texts.columns
        named = next((text for text, columns in texts.items() if label in columns), None)
        if named is not None:
            return named
        classes = self.context.classes
        return classes[label].split(",")[0] if classes and label < len(classes) else f"class {label}"


def select_label(scores: Tensor, label: int | ClassGroup, axis: int = -1) -> Tensor:
    """The scores of one label; those of a group are joined by log-sum-exp.

    Example:
        >>> select_label(torch.tensor([[1.0, 2.0, 3.0]]), 1)
        tensor([2.])
    """
    if isinstance(label, ClassGroup):
        return torch.stack([scores.select(axis, i) for i in label.indices]).logsumexp(0)
    return scores.select(axis, label)
