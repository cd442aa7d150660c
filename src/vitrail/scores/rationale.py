"""Do scores of words find the words people marked, and those the model needs?

Token-F1 of the top words, as the published experiments on ERASER's movie reviews have it, the area under precision and
recall, and comprehensiveness and sufficiency: how much of the class's probability goes when the top words go, or when
all others do. Words without a score, such as those behind the cut of a long text, are NaN: they cannot be picked, but
where people marked them they still count as missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.statistics import Array, Tally

#: How many words are picked: the steps of the published curves.
TOP = (10, 20, 30, 40, 50, 60, 70, 80)
#: Shares of the words that are taken away or kept, as ERASER has them.
SHARES = (0.01, 0.05, 0.10, 0.20, 0.50)

#: From texts and the class asked of each to that class's probability, shape (N,).
Judge = Callable[[list[str], list[int]], ArrayLike]


def gold(spans: Sequence[tuple[int, int]], words: int) -> NDArray[np.bool_]:
    """Marked passages as a mask over words, shape (W,): the union of all, ends left out.

    Example:
        >>> gold([(0, 2), (1, 3)], 5).tolist()
        [True, True, True, False, False]
    """
    mask = np.zeros(words, np.bool_)
    for start, stop in spans:
        if not 0 <= start <= stop <= words:
            raise InputError(f"the passage {start} to {stop} lies outside of a text of {words} words")
        mask[start:stop] = True
    return mask


def order(scores: ArrayLike | Tensor, clamp: bool = True) -> NDArray[np.int64]:
    """Words from the highest score to the lowest, those without a score (NaN) left out; of words alike, earlier first.

    Args:
        scores: One for each word, shape (W,).
        clamp: Take negative scores for zero, as the released code does before it ranks.

    Example:
        >>> order([0.5, float("nan"), -1.0, 0.0, 0.9]).tolist()
        [4, 0, 2, 3]
    """
    values = _values(scores)
    there = np.flatnonzero(~np.isnan(values))
    kept = np.maximum(values[there], 0.0) if clamp else values[there]
    return there[np.argsort(-kept, kind="stable")]


def token_f1(
    scores: Sequence[ArrayLike | Tensor], truths: Sequence[ArrayLike], top: Sequence[int] = TOP, clamp: bool = True
) -> dict[str, Array]:
    """Agreement of the k best words with the marked ones, for several k.

    Args:
        scores: For each text its words' scores, shape (W,), NaN for none.
        truths: For each text which words are marked, shape (W,).
        top: The numbers k.
        clamp: See `order`.

    Returns:
        For each text: "f1", shape (N, len(top)), 0 where nothing is marked or hit; and the counts it is made of, "hits"
        and "picked", of the same shape, and "marked", shape (N,).

    Example:
        >>> token_f1([[0.9, 0.1, 0.8, 0.0]], [[1, 1, 0, 0]], top=(1, 2))["f1"].round(3).tolist()
        [[0.667, 0.5]]
    """
    if len(scores) != len(truths):
        raise InputError(f"{len(scores)} texts have scores and {len(truths)} have marked words")
    if not top or min(top) < 1:
        raise OptionError(f"top={tuple(top)} must name at least one number, none below 1")
    hits, picked, marked = (np.zeros((len(scores), len(top))) for _ in range(3))
    for i, (own, truth) in enumerate(zip(scores, truths, strict=True)):
        mask = _mask(own, truth)
        ranked = order(own, clamp)
        for j, k in enumerate(top):
            hits[i, j], picked[i, j] = mask[ranked[:k]].sum(), len(ranked[:k])
        marked[i] = mask.sum()
    return {"f1": _f1(hits, picked, marked), "hits": hits, "picked": picked, "marked": marked[:, 0]}


def average_precision(scores: Sequence[ArrayLike | Tensor], truths: Sequence[ArrayLike]) -> dict[str, Array]:
    """Area under precision and recall over all words, as a sum of steps; words without a score come last.

    Returns:
        For each text "auprc", NaN where no word or every word is marked.

    Example:
        >>> average_precision([[0.9, 0.1, 0.8, 0.0]], [[1, 1, 0, 0]])["auprc"].round(3).tolist()
        [0.833]
    """
    found = np.full(len(scores), np.nan)
    for i, (own, truth) in enumerate(zip(scores, truths, strict=True)):
        mask, values = _mask(own, truth), _values(own)
        if mask.all() or not mask.any():
            continue
        values = np.where(np.isnan(values), -np.inf, values)
        ranked = np.argsort(-values, kind="stable")
        last = np.flatnonzero(np.append(values[ranked][1:] != values[ranked][:-1], True))  # words alike go together
        hits = np.cumsum(mask[ranked])[last]
        precision, recall = hits / (last + 1), hits / mask.sum()
        found[i] = float((np.diff(recall, prepend=0.0) * precision).sum())
    return {"auprc": found}


def faithfulness(
    judge: Judge,
    words: Sequence[Sequence[str]],
    scores: Sequence[ArrayLike | Tensor],
    classes: Sequence[int],
    shares: Sequence[float] = SHARES,
    blank: str | None = None,
    clamp: bool = False,
) -> dict[str, Array]:
    """Comprehensiveness and sufficiency, averaged over several shares of the words.

    Comprehensiveness is the class's probability minus the one without the top words: higher is better. Sufficiency is
    the class's probability minus the one with nothing but the top words: lower is better. Of each share at least one
    word is taken, and at least one is left.

    Args:
        judge: The model; see `judge`.
        words: For each text its words.
        scores: For each text its words' scores, shape (W,). Words without one (NaN) are left out from the start.
        classes: The class asked of each text.
        shares: Shares of the words that have a score.
        blank: What stands where a word was, such as the tokenizer's mask token; None leaves words out.
        clamp: See `order`.

    Returns:
        For each text: "comprehensiveness" and "sufficiency", shape (N,), and the same at each share, shape (N, shares),
        as "comprehensiveness_at" and "sufficiency_at".
    """
    asked: list[str] = []
    for text, values in zip(words, scores, strict=True):
        own = list(text)
        if len(_values(values)) != len(own):
            raise InputError(f"{len(own)} words need as many scores, not {len(_values(values))}")
        there = np.flatnonzero(~np.isnan(_values(values)))
        own, ranked = [own[i] for i in there], order(_values(values)[there], clamp)
        asked.append(" ".join(own))
        for share in shares:
            count = min(max(1, round(share * len(ranked))), max(1, len(ranked) - 1))
            best = np.zeros(len(own), np.bool_)
            best[ranked[:count]] = True
            asked += [_without(own, best, blank), _without(own, ~best, blank)]
    each = 1 + 2 * len(shares)
    said = np.asarray(judge(asked, [c for c in classes for _ in range(each)]), np.float64).reshape(len(words), each)
    gone, alone = said[:, :1] - said[:, 1::2], said[:, :1] - said[:, 2::2]
    return {
        "comprehensiveness": gone.mean(1), "sufficiency": alone.mean(1), "comprehensiveness_at": gone,
        "sufficiency_at": alone,
    }  # fmt: skip


def judge(model: Any, tokenizer: Any, batch_size: int = 8) -> Judge:
    """A model as `faithfulness` asks it: probabilities of texts that went through a tokenizer.

    Args:
        model: A sequence classifier.
        tokenizer: Its fast tokenizer, or a `vitrail.text.TokenizerSettings`, which says what is done with long texts.
        batch_size: Most windows at a time.
    """
    from vitrail.targets import class_scores
    from vitrail.text.tokens import TokenizerSettings
    from vitrail.text.windows import predict_texts

    reading = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)

    def ask(texts: list[str], classes: list[int]) -> ArrayLike:
        said = class_scores(predict_texts(texts, reading, model, batch_size), "prob").double().cpu().numpy()
        return np.asarray(said[np.arange(len(classes)), classes])

    return ask


@dataclass
class Rationales(Tally):
    """Values of texts as `token_f1`, `average_precision` and `faithfulness` return them, and what they amount to.

    Example:
        >>> tally = Rationales()
        >>> tally.add(["a", "b"], token_f1([[2.0, 1.0], [0.0, 1.0]], [[1, 0], [1, 0]], top=(1,)))
        >>> tally.macro().tolist(), tally.micro().tolist()
        ([0.5], [0.5])
    """

    def macro(self) -> Array:
        """Mean over texts of the F1 at each k."""
        return np.asarray(self._rows("f1").mean(0))

    def micro(self) -> Array:
        """F1 at each k from hits, picked and marked words of all texts together."""
        marked = self._rows("marked").sum()
        return _f1(self._rows("hits").sum(0), self._rows("picked").sum(0), marked)

    def _rows(self, name: str) -> Array:
        rows = self.column(name)
        return rows if rows.ndim == 2 else rows[:, None]


def micro_f1(means: Array) -> Array:
    """Micro-F1 from means over texts of hits, picked and marked words; a score for `statistics.interval`.

    Example:
        >>> micro_f1(np.array([1.0, 2.0, 2.0]))
        array(0.5)
    """
    return np.asarray(_f1(means[..., 0], means[..., 1], means[..., 2]))


def _f1(hits: Array, picked: Array, marked: Array | Any) -> Array:
    total = np.asarray(picked + marked, np.float64)
    return np.divide(2 * hits, total, out=np.zeros_like(total), where=total > 0)


def _values(scores: ArrayLike | Tensor) -> Array:
    values = np.asarray(scores.detach().cpu() if isinstance(scores, Tensor) else scores, np.float64)
    if values.ndim != 1:
        raise InputError(f"scores of shape {values.shape} are not one for each word of a text")
    return values


def _mask(scores: ArrayLike | Tensor, truth: ArrayLike) -> NDArray[np.bool_]:
    mask = np.asarray(truth, np.bool_)
    if mask.shape != _values(scores).shape:
        raise InputError(f"{len(_values(scores))} words have scores and {mask.size} are marked or not")
    return mask


def _without(words: Sequence[str], gone: NDArray[np.bool_], blank: str | None) -> str:
    if blank is None:
        return " ".join(w for w, g in zip(words, gone, strict=True) if not g)
    return " ".join(blank if g else w for w, g in zip(words, gone, strict=True))
