"""Scores of texts: agreement of word scores with human rationales, and faithfulness to the model (ERASER).

Token-F1 of the top words, as in the published experiments on ERASER's movie reviews; the area under the
precision-recall curve; comprehensiveness and sufficiency. Words without a score, such as those after the truncation of
a long text, are NaN: they cannot be selected, but count as missed where a human marked them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.statistics import Array, SampleScores

#: Numbers of selected words in the published token-F1 curves.
TOP_WORDS = (10, 20, 30, 40, 50, 60, 70, 80)
#: Shares of the words that are removed or kept, as in ERASER.
SHARES = (0.01, 0.05, 0.10, 0.20, 0.50)

#: From texts and one class for each text to the probabilities of these classes, shape (N,).
ClassProbability = Callable[[list[str], list[int]], ArrayLike]


def span_mask(spans: Sequence[tuple[int, int]], words: int) -> NDArray[np.bool_]:
    """Convert marked spans (ends exclusive) to a mask over words, shape (W,).

    Example:
        >>> span_mask([(0, 2), (1, 3)], 5).tolist()
        [True, True, True, False, False]
    """
    mask = np.zeros(words, np.bool_)
    for start, stop in spans:
        if not 0 <= start <= stop <= words:
            raise InputError(f"the span {start} to {stop} is outside of the text, which has {words} words")
        mask[start:stop] = True
    return mask


def rank_words(scores: ArrayLike | Tensor, clamp: bool = True) -> NDArray[np.int64]:
    """Indices of words from the highest score to the lowest, without words that have no score (NaN).

    Words of equal score keep their order in the text.

    Args:
        scores: One for each word, shape (W,).
        clamp: Set negative scores to zero first, as the released code does.

    Example:
        >>> rank_words([0.5, float("nan"), -1.0, 0.0, 0.9]).tolist()
        [4, 0, 2, 3]
    """
    values = _values(scores)
    scored = np.flatnonzero(~np.isnan(values))
    sort_by = np.maximum(values[scored], 0.0) if clamp else values[scored]
    return scored[np.argsort(-sort_by, kind="stable")]


def token_f1(
    scores: Sequence[ArrayLike | Tensor],
    truths: Sequence[ArrayLike],
    top: Sequence[int] = TOP_WORDS,
    clamp: bool = True,
) -> dict[str, Array]:
    """Token-F1 of the k words with the highest scores against the marked words, for several k.

    Args:
        scores: For each text its words' scores, shape (W,), NaN for none.
        truths: For each text which words are marked, shape (W,).
        top: Values of k.
        clamp: See `rank_words`.

    Returns:
        For each text: "f1", shape (N, len(top)), 0 where no word is marked or none of them is selected; and the counts
        of correct ("hits") and selected ("picked") words, same shape, and of "marked" words, shape (N,).

    Example:
        >>> token_f1([[0.9, 0.1, 0.8, 0.0]], [[1, 1, 0, 0]], top=(1, 2))["f1"].round(3).tolist()
        [[0.667, 0.5]]
    """
    if len(scores) != len(truths):
        raise InputError(f"scores and truths must be of the same texts, got {len(scores)} and {len(truths)}")
    if not top or min(top) < 1:
        raise OptionError(f"top={tuple(top)} must have at least one number, none below 1")
    correct, selected, marked = (np.zeros((len(scores), len(top))) for _ in range(3))
    for i, (text_scores, truth) in enumerate(zip(scores, truths, strict=True)):
        mask = _mask(text_scores, truth)
        ranked = rank_words(text_scores, clamp)
        for j, k in enumerate(top):
            correct[i, j], selected[i, j] = mask[ranked[:k]].sum(), len(ranked[:k])
        marked[i] = mask.sum()
    return {"f1": _f1(correct, selected, marked), "hits": correct, "picked": selected, "marked": marked[:, 0]}


def word_average_precision(scores: Sequence[ArrayLike | Tensor], truths: Sequence[ArrayLike]) -> dict[str, Array]:
    """Average precision (AUPRC, step-wise) of all words; words without a score come last.

    Returns:
        For each text "auprc", NaN where no word or every word is marked.

    Example:
        >>> word_average_precision([[0.9, 0.1, 0.8, 0.0]], [[1, 1, 0, 0]])["auprc"].round(3).tolist()
        [0.833]
    """
    areas = np.full(len(scores), np.nan)
    for i, (text_scores, truth) in enumerate(zip(scores, truths, strict=True)):
        mask, values = _mask(text_scores, truth), _values(text_scores)
        if mask.all() or not mask.any():
            continue
        values = np.where(np.isnan(values), -np.inf, values)
        ranked = np.argsort(-values, kind="stable")
        last = np.flatnonzero(np.append(values[ranked][1:] != values[ranked][:-1], True))  # ties are one threshold
        correct = np.cumsum(mask[ranked])[last]
        precision, recall = correct / (last + 1), correct / mask.sum()
        areas[i] = float((np.diff(recall, prepend=0.0) * precision).sum())
    return {"auprc": areas}


def comprehensiveness_sufficiency(
    probability: ClassProbability,
    words: Sequence[Sequence[str]],
    scores: Sequence[ArrayLike | Tensor],
    classes: Sequence[int],
    shares: Sequence[float] = SHARES,
    placeholder: str | None = None,
    clamp: bool = False,
) -> dict[str, Array]:
    """Comprehensiveness and sufficiency, averaged over several shares of the words.

    Comprehensiveness is the drop of the class's probability without the top words: higher is better. Sufficiency is the
    drop with the top words only: lower is better. For each share, at least one word is removed and at least one kept.

    Args:
        probability: The model; see `class_probability`.
        words: For each text its words.
        scores: For each text its words' scores, shape (W,). Words without one (NaN) are removed from the start.
        classes: The class of each text whose probability is measured.
        shares: Shares of the words that have a score.
        placeholder: Replacement of a removed word, such as the tokenizer's mask token; None removes it from the text.
        clamp: See `rank_words`.

    Returns:
        For each text: "comprehensiveness" and "sufficiency", shape (N,), and the same at each share, shape (N, shares),
        as "comprehensiveness_at" and "sufficiency_at".
    """
    texts: list[str] = []
    for text, values in zip(words, scores, strict=True):
        kept = list(text)
        if len(_values(values)) != len(kept):
            raise InputError(f"expected one score per word, got {len(_values(values))} scores for {len(kept)} words")
        scored = np.flatnonzero(~np.isnan(_values(values)))
        kept, ranked = [kept[i] for i in scored], rank_words(_values(values)[scored], clamp)
        texts.append(" ".join(kept))
        for share in shares:
            count = min(max(1, round(share * len(ranked))), max(1, len(ranked) - 1))
            top = np.zeros(len(kept), np.bool_)
            top[ranked[:count]] = True
            texts += [_without(kept, top, placeholder), _without(kept, ~top, placeholder)]
    each = 1 + 2 * len(shares)
    probabilities = np.asarray(probability(texts, [c for c in classes for _ in range(each)]), np.float64)
    probabilities = probabilities.reshape(len(words), each)
    without_top, only_top = (probabilities[:, :1] - probabilities[:, start::2] for start in (1, 2))
    return {
        "comprehensiveness": without_top.mean(1), "sufficiency": only_top.mean(1),
        "comprehensiveness_at": without_top, "sufficiency_at": only_top,
    }  # fmt: skip


def class_probability(model: Any, tokenizer: Any, batch_size: int = 8, scores: str | None = None) -> ClassProbability:
    """Make the function from texts to class probabilities that `comprehensiveness_sufficiency` takes.

    Args:
        model: A sequence classifier.
        tokenizer: Its fast tokenizer, or a `vitrail.text.TokenizerSettings`, which states how long texts are read.
        batch_size: Most windows in one forward pass.
        scores: What turns the model's class scores into probabilities: "softmax" or "sigmoid"; by default what the
            model states.
    """
    from vitrail.capture.score_function import class_probabilities
    from vitrail.text.prediction import predict_texts
    from vitrail.text.tokens import TokenizerSettings

    reading = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)

    def probability(texts: list[str], classes: list[int]) -> ArrayLike:
        logits = predict_texts(texts, reading, model, batch_size)
        probabilities = class_probabilities(model, logits, scores).double().cpu().numpy()
        return np.asarray(probabilities[np.arange(len(classes)), classes])

    return probability


@dataclass
class RationaleScores(SampleScores):
    """Accumulates the results of `token_f1`, `word_average_precision` and `comprehensiveness_sufficiency`.

    Example:
        >>> scores = RationaleScores()
        >>> scores.add(["a", "b"], token_f1([[2.0, 1.0], [0.0, 1.0]], [[1, 0], [1, 0]], top=(1,)))
        >>> scores.macro().tolist(), scores.micro().tolist()
        ([0.5], [0.5])
    """

    def macro(self) -> Array:
        """Macro-F1 at each k: the mean over texts."""
        return np.asarray(self.columns_of("f1").mean(0))

    def micro(self) -> Array:
        """Micro-F1 at each k: from the counts of all texts together."""
        marked = self.columns_of("marked").sum()
        return _f1(self.columns_of("hits").sum(0), self.columns_of("picked").sum(0), marked)

    def columns_of(self, name: str) -> Array:
        """Values of one name as columns, shape (texts, number of k)."""
        values = self.column(name)
        return values if values.ndim == 2 else values[:, None]


def micro_f1(means: Array) -> Array:
    """Micro-F1 from means over texts of correct, selected and marked words; a score for `statistics.interval`.

    Example:
        >>> micro_f1(np.array([1.0, 2.0, 2.0]))
        array(0.5)
    """
    return np.asarray(_f1(means[..., 0], means[..., 1], means[..., 2]))


def _f1(correct: Array, selected: Array, marked: Array | Any) -> Array:
    total = np.asarray(selected + marked, np.float64)
    return np.divide(2 * correct, total, out=np.zeros_like(total), where=total > 0)


def _values(scores: ArrayLike | Tensor) -> Array:
    values = np.asarray(scores.detach().cpu() if isinstance(scores, Tensor) else scores, np.float64)
    if values.ndim != 1:
        raise InputError(f"scores of a text must have shape (words,), got {values.shape}")
    return values


def _mask(scores: ArrayLike | Tensor, truth: ArrayLike) -> NDArray[np.bool_]:
    mask = np.asarray(truth, np.bool_)
    if mask.shape != _values(scores).shape:
        raise InputError(f"the marked words have shape {mask.shape}, the scores {_values(scores).shape}")
    return mask


def _without(words: Sequence[str], removed: NDArray[np.bool_], placeholder: str | None) -> str:
    if placeholder is None:
        return " ".join(w for w, r in zip(words, removed, strict=True) if not r)
    return " ".join(placeholder if r else w for w, r in zip(words, removed, strict=True))
