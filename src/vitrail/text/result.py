"""What came out for a text: a score for each of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vitrail.postprocess import normalise
from vitrail.text.tokens import Encoded, Span, join_pieces, words_of


@dataclass(frozen=True, eq=False)
class TextMap:
    """Scores of one text's words and tokens by one method, for K targets.

    Attributes:
        text: The text.
        words: Its words, as blanks separate them.
        spans: First character and the one after the last of each word.
        scores: Scores of the words as the method gave them, shape (K, W).
        shades: The same scaled to [0, 1], or to [-1, 1] where negative scores mean "against".
        seen: Which words the model was shown; the others have score 0.
        tokens: Its tokens, special ones included.
        token_spans: Characters of each token.
        token_scores: Scores of the tokens, shape (K, T); 0 for special ones.
        windows: In how many windows the model was shown the text.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[Span, ...]
    scores: Tensor
    shades: Tensor
    seen: tuple[bool, ...]
    tokens: tuple[str, ...]
    token_spans: tuple[Span, ...]
    token_scores: Tensor
    windows: int = 1

    def __repr__(self) -> str:
        best = ", ".join(f"{word} {score:.3g}" for word, score in self.top(3))
        return f"TextMap({len(self.words)} words, most relevant: {best})"

    def top(self, count: int = 10, k: int = 0) -> list[tuple[str, float]]:
        """The words with the highest scores for target k, best first; of words alike, the earlier first."""
        order = self.scores[k].argsort(descending=True, stable=True)[:count].tolist()
        return [(self.words[i], float(self.scores[k, i])) for i in order]


def text_map(encoded: Encoded, scores: Tensor, seen: Sequence[bool], signed: bool, join: str) -> TextMap:
    """Words of a text from scores of its tokens.

    Args:
        encoded: The text as it was read.
        scores: Scores of all tokens, shape (K, T); special ones are left out.
        seen: Which tokens the model was shown.
        signed: Whether negative scores mean "against".
        join: See `Reading`.
    """
    spans = words_of(encoded.text)
    pieces = [s if c and o else (0, 0) for s, c, o in zip(encoded.spans, encoded.content, seen, strict=True)]
    by_word = join_pieces(scores, pieces, spans, join)
    met = join_pieces(scores.new_ones(1, len(pieces)), pieces, spans, "max")[0] > 0
    shades = by_word.new_zeros(by_word.shape)
    if bool(met.any()):
        shades[:, met] = normalise(by_word[:, met], signed=signed, axes=1)
    words = tuple(encoded.text[a:b] for a, b in spans)
    return TextMap(
        encoded.text, words, spans, by_word.cpu(), shades.cpu(), tuple(met.tolist()), encoded.tokens, encoded.spans,
        scores.cpu(), len(encoded.windows),
    )  # fmt: skip
