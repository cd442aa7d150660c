"""The target `prompt`: the similarity of an image to a text, on the model's own scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import Corners, NamedTarget
from vitrail.targets.output_reader import OutputReader


@dataclass(frozen=True)
class Prompt(NamedTarget):
    """The similarity to a text as the target; see `prompt`.

    Attributes:
        text: The text, or the number of a text of the call.
        against: Texts that it is compared with.
        templates: Sentences with "{}" in place of the text.
        processor: Processor or tokenizer, by object or by name.
        query: For detectors: the query whose score is explained, once it is pinned.
    """

    kind: ClassVar[str] = "prompt"
    text: str | int
    against: tuple[str | int, ...] = ()
    templates: tuple[str, ...] = ("{}",)
    processor: Any = field(default=None, compare=False, repr=False)
    query: int | None = None

    def __str__(self) -> str:
        against = "" if not self.against else f", against={self._short(self.against)!r}"
        templates = "" if self.templates == ("{}",) else f", template={self._short(self.templates)!r}"
        return f"prompt({self.text!r}{against}{templates})"

    @staticmethod
    def _short(values: tuple[Any, ...]) -> Any:
        return values[0] if len(values) == 1 else list(values)

    def sentences(self, text: str | int) -> tuple[str, ...]:
        """A text in every template."""
        return () if isinstance(text, int) else tuple(template.replace("{}", text) for template in self.templates)

    @property
    def texts(self) -> tuple[str, ...]:
        """All sentences that the model has to read."""
        return tuple(dict.fromkeys(s for text in (self.text, *self.against) for s in self.sentences(text)))

    @property
    def needs_texts(self) -> bool:
        """Whether the prompt is a text, and not the number of one."""
        return bool(self.texts)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> Prompt:  # noqa: ARG002
        """For detectors, the query with the highest score for the text."""
        scores = self._scores(output)
        for text in (self.text, *self.against):
            columns = self._columns(text, output)
            if max(columns) >= scores.shape[-1]:
                raise TargetError(f"text {max(columns)} does not exist: the call has {scores.shape[-1]} texts, 0 to "
                                  f"{scores.shape[-1] - 1}")  # fmt: skip
        if scores.dim() == 2:
            return self
        own = scores[image].detach()[:, list(self._columns(self.text, output))].mean(-1)
        return replace(self, query=int(own.argmax()))

    @staticmethod
    def _scores(output: OutputReader) -> Tensor:
        """Scores of the texts, shape (n, T), or (n, queries, T) for detectors."""
        detected = output.query_scores() if output.find(("pred_boxes",), 3) is not None else None
        return output.similarities() if detected is None else detected

    def _columns(self, text: str | int, output: OutputReader) -> tuple[int, ...]:
        if isinstance(text, int):
            return (text,)
        known = {} if output.context.texts is None else output.context.texts.columns
        missing = [sentence for sentence in self.sentences(text) if sentence not in known]
        if missing:
            raise TargetError(
                f"the model did not read the text {missing[0]!r}: pass images to vitrail.explain, so that the texts of "
                "the target are added, or give the number of a text of the call, as in prompt(0)"
            )
        return tuple(column for sentence in self.sentences(text) for column in known[sentence])

    def values(self, output: OutputReader) -> Tensor:
        """The similarity to the text, minus the log-sum-exp of those to the others."""
        scores = self._scores(output)
        scores = scores if scores.dim() == 2 else scores[:, self.query or 0]

        def mean(text: str | int) -> Tensor:
            columns = self._columns(text, output)
            found = [scores[:, i] for i in columns]
            return found[0] if len(found) == 1 else torch.stack(found).mean(0)

        own = mean(self.text)
        if not self.against:
            return own
        others = [mean(text) for text in self.against]
        return own - (others[0] if len(others) == 1 else torch.stack(others).logsumexp(0))

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """Other texts of the call, most similar first."""
        scores = self._scores(output)[image].detach()
        scores = scores if scores.dim() == 1 else scores[self.query or 0]
        own = self._columns(self.text, output)
        order = [i for i in scores.argsort(descending=True).tolist() if i not in own and bool(scores[i].isfinite())]
        texts = {} if output.context.texts is None else output.context.texts.columns
        named = {columns[0]: text for text, columns in texts.items() if len(columns) == 1}
        return [replace(self, text=named.get(i, i), against=(), templates=("{}",)) for i in order[:count]]

    def title(self, output: OutputReader) -> str:
        """The text and those it is compared with, for display."""
        name = self._name(self.text, output)
        return name if not self.against else f"{name} against {', '.join(self._name(t, output) for t in self.against)}"

    def _name(self, text: str | int, output: OutputReader) -> str:
        if isinstance(text, str):
            return text if self.templates == ("{}",) else self.sentences(text)[0]
        named = {} if output.context.texts is None else output.context.texts.columns
        return next((sentence for sentence, columns in named.items() if columns == (text,)), f"text {text}")

    def corners(self, output: OutputReader, image: int) -> Corners | None:
        """For detectors, the box of the query."""
        if self.query is None:
            return None
        x0, y0, x1, y1 = output.boxes()[image, self.query].detach().float().tolist()
        return x0, y0, x1, y1

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values; of the processor its name."""
        named = self.processor if isinstance(self.processor, str) else getattr(self.processor, "name_or_path", None)
        return {
            "kind": self.kind, "text": self.text, "against": list(self.against), "templates": list(self.templates),
            "processor": named or None, "query": self.query,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Prompt:
        """The target from JSON values."""
        return cls(
            values["text"], tuple(values.get("against") or ()), tuple(values.get("templates") or ("{}",)),
            values.get("processor"), values.get("query"),
        )  # fmt: skip


def prompt(
    text: str | int,
    against: str | int | Sequence[str | int] | None = None,
    *,
    template: str | Sequence[str] | None = None,
    processor: Any = None,
) -> Prompt:
    """A text as the target of a model of images and texts: how similar the image is to it.

    The value is the model's own score, for CLIP the cosine times the logit scale. With ``against`` it is the score
    minus that of the other text, or minus the log-sum-exp of several, which is the log-odds of the text in a softmax
    over them. For detectors that read texts (OWL-ViT) it is the score of the query that leads on the unchanged image.

    Args:
        text: The text; or the number of a text of the call, where images and texts are given together as tensors.
        against: Texts that it is compared with, in the same form.
        template: A sentence with "{}" in place of the text, as "a photo of {}"; of several the mean score is taken.
        processor: Hugging Face processor or tokenizer, or open_clip tokenizer, by object or by name. It is not needed
            for models that were loaded by name, and for numbers of texts.

    Raises:
        TargetError: A text is empty, or a template has no "{}".

    Example:
        >>> print(prompt("a dog", against="a cat", template="a photo of {}"))
        prompt('a dog', against='a cat', template='a photo of {}')
        >>> prompt(1, against=0)({"logits_per_image": torch.tensor([[1.0, 4.0]])})
        tensor([3.])
    """
    others = () if against is None else (against,) if isinstance(against, str | int) else tuple(against)
    for one in (text, *others):
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise TargetError(f"{one!r} is no prompt: give a text, or the number of a text of the call")
        if isinstance(one, str) and not one.strip():
            raise TargetError("the prompt is empty: give a text with at least one word")
        if isinstance(one, int) and one < 0:
            raise TargetError(f"text {one} does not exist: texts of the call are counted from 0")
    templates = ("{}",) if template is None else (template,) if isinstance(template, str) else tuple(template)
    for sentence in templates:
        if not isinstance(sentence, str) or "{}" not in sentence:
            raise TargetError(f"template={sentence!r} has no place for the text: write it as 'a photo of {{}}'")
    if not templates:
        raise TargetError("template=[]: give at least one template, as 'a photo of {}'")
    return Prompt(text, others, templates, processor)
