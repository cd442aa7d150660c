"""The target `answer`: the log-probability of a continuation of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import OutputReader
from vitrail.targets.token_context import decoded_token, encoded_answer, tokenizer_of

#: Characters of an answer in a title.
_TITLE = 60


@dataclass(frozen=True)
class AnswerTarget(NamedTarget):
    """The log-probability of a continuation; see `answer`.

    Attributes:
        answer: The continuation, or its token ids.
        ids: Its tokens, once known.
        tokens: Their characters, once known.
        start: Index of its first token among those of the text, once known. All tokens but its last are in the text.
        columns: Where the output has the scores of each token, once known.
        rank: 0 for the continuation; n for the n-th likeliest other token at each of its positions.
        log_probabilities: Log-probability of each token, once known.
    """

    kind: ClassVar[str] = "answer"
    answer: str | tuple[int, ...]
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    start: int | None = None
    columns: tuple[int, ...] = ()
    rank: int = 0
    log_probabilities: tuple[float, ...] = field(default=(), compare=False)
    processor: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"answer({self.answer!r})" if not self.rank else f"other tokens than {self.answer!r}"

    @property
    def total(self) -> float:
        """Log-probability of the whole continuation, once known."""
        return sum(self.log_probabilities)

    @property
    def forced(self) -> tuple[int, ...]:
        """Tokens that are appended to the text: all but the last, whose score is read before it is written."""
        return self.ids[:-1]

    @property
    def reads_positions(self) -> bool:
        """It reads scores at a position."""
        return True

    def with_tokenizer(self, tokenizer: Any) -> AnswerTarget:
        """The same with the tokens of the continuation."""
        tokenizer = tokenizer_of(self.processor or tokenizer)
        if self.ids:
            return self
        if isinstance(self.answer, str):
            if tokenizer is None:
                raise TargetError(f"{self} needs the tokenizer of the model: pass tokenizer=… to vitrail.explain")
            ids = encoded_answer(self.answer, tokenizer)
        else:
            ids = self.answer
        tokens = () if tokenizer is None else tuple(decoded_token(tokenizer, i) for i in ids)
        return replace(self, ids=ids, tokens=tokens)

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> AnswerTarget:  # noqa: ARG002
        """Where the scores of its tokens are."""
        context = output.context.tokens
        known = self.with_tokenizer(None if context is None else context.tokenizer)
        if known.start is None or context is None:
            raise TargetError(
                f"{self} is appended to the text: pass the text with tokenizer=… to vitrail.explain, not tensors alone"
            )
        inside = context.rows[image].ids[known.start : known.start + len(known.forced)]
        # Other tokens than those of an answer are read at its positions, so the text has the answer.
        if inside != known.forced and not known.rank:
            raise TargetError(f"{self} does not follow the text: its tokens {known.forced} are not where it starts")
        columns = tuple(output.score_column(image, known.start + i - 1) for i in range(len(known.ids)))
        pinned = replace(known, columns=columns)
        each = pinned.log_probabilities_in(output)[image].detach()
        return replace(pinned, log_probabilities=tuple(each.tolist()))

    def values(self, output: OutputReader) -> Tensor:
        """The sum of the log-probabilities of its tokens."""
        return self.log_probabilities_in(output).sum(-1)

    def log_probabilities_in(self, output: OutputReader) -> Tensor:
        """Log-probability of each token, shape (n, tokens)."""
        scores = output.token_scores()[:, list(self.columns)]
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        chosen = torch.tensor(self.ids, device=scores.device).view(1, -1, 1).expand(len(scores), -1, 1)
        odds = scores.gather(-1, chosen)[..., 0] - scores.scatter(-1, chosen, -torch.inf).logsumexp(-1)
        return nn.functional.logsigmoid(odds)  # its gradient is accurate for near-certain tokens too

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """The likeliest other tokens at each of its positions: the first of each, the second of each, and so on."""
        scores = output.token_scores()[image, list(self.columns)].detach().clone()
        scores[torch.arange(len(self.ids)), list(self.ids)] = -torch.inf
        best = scores.topk(min(count, scores.shape[-1] - 1)).indices.T.tolist()
        context = output.context.tokens
        found = []
        for rank, ids in enumerate(best, 1):
            names = tuple(f"token {i}" if context is None else context.decode(i) for i in ids)
            found.append(replace(self, ids=tuple(ids), tokens=names, rank=rank, log_probabilities=()))
        return found

    def title(self, output: OutputReader) -> str:  # noqa: ARG002
        """The continuation and its log-probability."""
        numbers = ", ".join(f"token {i}" for i in self.ids)
        text = self.answer if isinstance(self.answer, str) and not self.rank else "".join(self.tokens) or numbers
        shown = repr(text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…")
        return shown + (f" (log-probability {self.total:.2f})" if self.log_probabilities else "")

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        text = self.answer if isinstance(self.answer, str) else list(self.answer)
        return {
            "kind": self.kind, "answer": text, "ids": list(self.ids), "tokens": list(self.tokens), "rank": self.rank,
            "log_probabilities": list(self.log_probabilities), "total": self.total if self.log_probabilities else None,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> AnswerTarget:
        """The target from JSON values."""
        text = values["answer"]
        return cls(
            text if isinstance(text, str) else tuple(text), tuple(values.get("ids", ())),
            tuple(values.get("tokens", ())), rank=values.get("rank", 0),
            log_probabilities=tuple(values.get("log_probabilities", ())),
        )  # fmt: skip


def answer(text: str | Sequence[int], *, tokenizer: Any = None) -> AnswerTarget:
    """A target for language models: the log-probability of a continuation of the text, word by word.

    The continuation is appended to the text (teacher forcing), and the log-probabilities of its tokens are added up.
    ``named_targets`` of the result has each of them. The maps are over the tokens of the text alone.

    Args:
        text: The continuation, with a space before it where one belongs there, or its token ids.
        tokenizer: Where it is not the one that `vitrail.explain` is called with.

    Example:
        >>> print(answer(" Paris, because"))
        answer(' Paris, because')
    """
    if isinstance(text, str):
        if not text:
            raise TargetError("answer('') is empty: give at least one token")
        return AnswerTarget(text, processor=tokenizer)
    ids = tuple(text)
    if not ids or not all(type(i) is int for i in ids):
        raise TargetError(f"{text!r} is not an answer: give a text or a list of token ids")
    return AnswerTarget(ids, processor=tokenizer)
