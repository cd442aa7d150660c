"""WordRelevance: the scores of a text's words, and how they are computed from the scores of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vitrail.methods.postprocess import normalise
from vitrail.text.tokens import EncodedText, Span, word_scores, word_spans


@dataclass(frozen=True, eq=False)
class WordRelevance:
    """Scores of one text's words and tokens from one method, for K targets.

    Attributes:
        text: The text.
        words: Its words, split at whitespace; or other units, such as sentences.
        spans: Start and end (exclusive) of each word, in characters.
        scores: Scores of the words as the method computed them, shape (K, W).
        normalised: The scores scaled to [0, 1], or to [-1, 1] for methods with signed scores, shape (K, W).
        seen: Which words were part of the model's input; the others have score 0.
        tokens: The tokens, special ones included.
        token_spans: Start and end (exclusive) of each token, in characters.
        token_scores: Scores of the tokens, shape (K, T); 0 for special ones.
        windows: Number of windows the text was split into.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[Span, ...]
    scores: Tensor
    normalised: Tensor
    seen: tuple[bool, ...]
    tokens: tuple[str, ...]
    token_spans: tuple[Span, ...]
    token_scores: Tensor
    windows: int = 1

    def __repr__(self) -> str:
        best = ", ".join(f"{word} {score:.3g}" for word, score in self.top(3))
        return f"WordRelevance({len(self.words)} words, most relevant: {best})"

    def top(self, count: int = 10, k: int = 0) -> list[tuple[str, float]]:
        """The words with the highest scores for target k, best first; of equal scores, the earlier word first."""
        order = self.scores[k].argsort(descending=True, stable=True)[:count].tolist()
        return [(self.words[i], float(self.scores[k, i])) for i in order]


def word_relevance(
    encoded: EncodedText,
    token_scores: Tensor,
    seen: Sequence[bool],
    signed: bool,
    reduction: str,
    units: Sequence[Span] | None = None,
) -> WordRelevance:
    """Compute the scores of a text's words from the scores of its tokens.

    Args:
        encoded: The text and its tokens.
        token_scores: Scores of all tokens, shape (K, T); special tokens are ignored.
        seen: Which tokens were part of the model's input.
        signed: Whether negative scores are evidence against the target.
        reduction: "sum" or "max", see `TokenizerSettings`.
        units: Characters of the units that are scored instead of words, in order; None for words.
    """
    spans = word_spans(encoded.text) if units is None else tuple(units)
    token_spans = [
        span if content and shown else (0, 0)
        for span, content, shown in zip(encoded.spans, encoded.content, seen, strict=True)
    ]
    scores = word_scores(token_scores, token_spans, spans, reduction)
    seen_words = word_scores(token_scores.new_ones(1, len(token_spans)), token_spans, spans, "max")[0] > 0
    normalised = scores.new_zeros(scores.shape)
    if bool(seen_words.any()):
        normalised[:, seen_words] = normalise(scores[:, seen_words], signed=signed, axes=1)
    words = tuple(encoded.text[start:end] for start, end in spans)
    return WordRelevance(
        encoded.text, words, spans, scores.cpu(), normalised.cpu(), tuple(seen_words.tolist()), encoded.tokens,
        encoded.spans, token_scores.cpu(), len(encoded.windows),
    )  # fmt: skip
