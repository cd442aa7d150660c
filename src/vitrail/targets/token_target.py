"""The target `token`: the score of a token that a language model may write next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.errors import TargetError
from vitrail.models.image_geometry import ImageGeometry
from vitrail.targets.contrasts import Contrast, contrast
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import OutputReader
from vitrail.targets.token_context import decoded_token, token_index, tokenizer_of

TOKEN_SCORES = ("logodds", "logit", "logprob")


@dataclass(frozen=True)
class TokenTarget(NamedTarget):
    """The score of a token at a position of a text; see `token`.

    Attributes:
        token: Text or number of the token; None for the predicted one.
        position: Token of the text after which it stands; negative numbers count from the end.
        score: "logodds", "logit" or "logprob"; None for the log-odds, for the log-probability where parts of the text
            are removed, and for the logit inside a contrast.
        rank: Where no token is given: 0 for the likeliest, 1 for the next, and so on.
        index: Its number in the vocabulary, once known.
        name: Its characters, once known.
        column: Where the output has its score, once known.
        probability: Its probability, once known.
    """

    kind: ClassVar[str] = "token"
    token: int | str | None = None
    position: int = -1
    score: str | None = None
    rank: int = 0
    index: int | None = None
    name: str = ""
    column: int | None = None
    probability: float | None = field(default=None, compare=False)
    processor: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        shown = "the next token" if self.token is None else f"token({self.token!r})"
        if self.token is None and self.rank:
            shown = f"the next token of rank {self.rank + 1}"
        return shown if self.position == -1 else f"{shown} at position {self.position}"

    @property
    def reads_positions(self) -> bool:
        """It reads scores at a position."""
        return True

    def with_tokenizer(self, tokenizer: Any) -> TokenTarget:
        """The same with the number of a token that was given by its text."""
        tokenizer = tokenizer_of(self.processor or tokenizer)
        if self.index is not None or self.token is None:
            return self
        if isinstance(self.token, int):
            name = "" if tokenizer is None else _name_of(tokenizer, self.token)
            return replace(self, index=self.token, name=name)
        if tokenizer is None:
            raise TargetError(f"{self} needs the tokenizer of the model: pass tokenizer=… to vitrail.explain, or an id")
        index = token_index(self.token, tokenizer)
        return replace(self, index=index, name=decoded_token(tokenizer, index))

    def for_removal(self) -> TokenTarget:
        """The log-probability, unless a score was given: log-odds have no bound above, where a token is certain."""
        return replace(self, score="logprob") if self.score is None else self

    def for_contrast(self) -> TokenTarget:
        """The logit, unless a score was given: the difference of two is that of the log-probabilities."""
        return replace(self, score="logit") if self.score is None else self

    def pin(self, output: OutputReader, image: int, geometry: ImageGeometry | None = None) -> TokenTarget:  # noqa: ARG002
        """The number of the token and where its score is."""
        logits, context = output.token_scores(), output.context.tokens
        known = self.with_tokenizer(None if context is None else context.tokenizer)
        column = output.score_column(image, self.position)
        scores = logits[image, column].detach().float()
        index = known.index
        if index is None:
            if self.rank >= len(scores):
                raise TargetError(f"{self} does not exist: the vocabulary has {len(scores)} tokens")
            index = int(scores.topk(self.rank + 1).indices[-1])
        if not 0 <= index < len(scores):
            raise TargetError(
                f"token {index} does not exist: the vocabulary has {len(scores)} tokens, 0 to {len(scores) - 1}"
            )
        name = known.name or (f"token {index}" if context is None else context.decode(index))
        return replace(known, index=index, name=name, column=column, probability=float(scores.softmax(-1)[index]))

    def values(self, output: OutputReader) -> Tensor:
        """Its log-odds, logit or log-probability."""
        assert self.column is not None and self.index is not None  # noqa: PT018
        scores = output.token_scores()[:, self.column]
        if self.score == "logit":
            return scores[:, self.index]
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        itself = torch.tensor([self.index], device=scores.device)
        odds = scores[:, self.index] - scores.index_fill(-1, itself, -torch.inf).logsumexp(-1)
        # Not the usual formula of the log-probability, whose gradient rounds 1 - p to zero for a near-certain token.
        return nn.functional.logsigmoid(odds) if self.score == "logprob" else odds

    def others(self, output: OutputReader, image: int, count: int) -> Sequence[NamedTarget]:
        """The likeliest other tokens at the same position."""
        scores, context = output.token_scores()[image, self.column].detach(), output.context.tokens
        order = scores.topk(min(count + 1, len(scores))).indices.tolist()
        found = [i for i in order if i != self.index][:count]
        names = [f"token {i}" if context is None else context.decode(i) for i in found]
        return [replace(self, token=n, index=i, name=n, probability=None) for i, n in zip(found, names, strict=True)]

    def title(self, output: OutputReader) -> str:  # noqa: ARG002
        """The token and its probability."""
        return repr(self.name) + ("" if self.probability is None else f" ({_percent(self.probability)})")

    def to_dict(self) -> dict[str, Any]:
        """The target as JSON values."""
        return {
            "kind": self.kind, "token": self.token, "position": self.position, "score": self.score, "rank": self.rank,
            "index": self.index, "name": self.name, "probability": self.probability,
        }  # fmt: skip

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> TokenTarget:
        """The target from JSON values."""
        names = ("token", "position", "score", "rank", "index", "name", "probability")
        return cls(**{name: values[name] for name in names if name in values})


def token(
    token: int | str | None = None,
    against: Any = None,
    *,
    position: int = -1,
    score: str | None = None,
    tokenizer: Any = None,
) -> TokenTarget | Contrast:
    """A target for language models: a token that the model may write next.

    Args:
        token: Its text, with the space before it where the vocabulary has one, or its id; None for the predicted one.
        against: A token or several that it is compared with, or "others" for the model's next candidates.
        position: Token of the text after which it stands: −1 for the end of the text, 0 for its first token.
        score: What is explained: "logodds", the logit minus the log-sum-exp of all other tokens' logits; "logit";
            "logprob", the log-probability. By default the log-odds, and the log-probability for methods that remove
            parts of the text. A logit has no fixed zero: what raises the logits of all tokens alike, as the first token
            of a text does, changes no probability, and has no part in log-odds.
        tokenizer: Where `vitrail.explain` is called without one.

    Raises:
        TargetError: An argument is not understood. A text of several tokens is refused when it is explained.

    Example:
        >>> print(token(" Paris", against=" Rome"))
        contrast(token(' Paris'), token(' Rome'))
    """
    if token is not None and (isinstance(token, bool) or not isinstance(token, int | str)):
        raise TargetError(f"{token!r} is not a token: give its text or id, or None for the predicted one")
    if isinstance(position, bool) or not isinstance(position, int):
        raise TargetError(f"position={position!r} must be an integer: −1 for the end of the text")
    if score is not None and score not in TOKEN_SCORES:
        raise TargetError(f"score={score!r} is not one of {', '.join(map(repr, TOKEN_SCORES))}")
    first = TokenTarget(token, position, score, processor=tokenizer)
    if against is None:
        return first
    if against == "others":
        return contrast(first, against)
    others = against if isinstance(against, list | tuple) else [against]
    return contrast(first, [o if isinstance(o, NamedTarget) else replace(first, token=o) for o in others])


def _name_of(tokenizer: Any, index: int) -> str:
    return decoded_token(tokenizer, index) if 0 <= index < len(tokenizer) else ""


def _percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.001 else "<0.1 %"
