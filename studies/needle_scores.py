"""Scores of the relevance of one prompt of `studies/needles.py`, and the rows of its table from values of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from value_tables import Values

from vitrail.data.needles import NeedlePrompt, draw_needle
from vitrail.text.tokens import word_scores, word_spans

SCORES = {
    "word": "source is the top word", "token": "source has the top token", "sentence": "source is in the top sentence",
    "source": "source above the second candidate",
}  # fmt: skip
TARGETS = ("odds", "others", "contrast", "answer")
#: Columns that name a row, and all columns.
KEYS = ("model", "method", "target", "score")
COLUMNS = ("model", "method", "control", "target", "score", "prompts", "mean", "low", "high")
#: Relevance that depends on positions alone, and at random.
CONTROLS = ("last tokens first", "first tokens first", "random")


@dataclass(frozen=True)
class EncodedNeedle:
    """A prompt as tokens.

    Attributes:
        ids: Numbers of the tokens, up to the one before the answer.
        spans: Characters of each token in the prompt.
        answer: Token that begins the answer.
        other: Token that begins the second candidate.
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    answer: int
    other: int


def score(prompt: NeedlePrompt, one: EncodedNeedle, values: np.ndarray[Any, Any]) -> dict[str, float]:
    """Scores of the relevance of one target, shape (n,), by name; equal leaders share the lead."""
    words = word_spans(prompt.text)
    by_word, by_sentence = (
        word_scores(torch.from_numpy(values)[None], one.spans, units)[0].numpy() for units in (words, prompt.sentences)
    )

    def lead(scores: np.ndarray[Any, Any], units: Sequence[tuple[int, int]]) -> float:
        right = np.array([a < prompt.source[1] and b > prompt.source[0] for a, b in units])
        leaders = scores == scores.max()
        return float((leaders & right).sum() / leaders.sum())

    def own(source: tuple[int, int]) -> float:
        return float(sum(s for s, (a, b) in zip(by_word, words, strict=True) if a < source[1] and b > source[0]))

    difference = own(prompt.source) - own(prompt.other_source)
    return {
        "word": lead(by_word, words), "token": lead(values, one.spans), "sentence": lead(by_sentence, prompt.sentences),
        "source": 0.5 * (float(np.sign(difference)) + 1),
    }  # fmt: skip


def controls(one: EncodedNeedle) -> dict[str, np.ndarray[Any, Any]]:
    """Relevance that depends on positions alone: the later or the earlier a token, the more."""
    rising = np.arange(1.0, len(one.ids) + 1)
    return {"last tokens first": rising, "first tokens first": rising[::-1].copy()}


def prompt_values(
    found: Mapping[tuple[int, str], np.ndarray[Any, Any]], encoded: Mapping[int, EncodedNeedle], seed: int
) -> Values:
    """Values of each prompt by ``TARGET SCORE`` and method, those of the controls included.

    A value's place is the number of its prompt; NaN for prompts that the method was not measured on.

    Args:
        found: Relevance by number of the prompt and method, shape (targets, n).
        encoded: Prompts as tokens, by number.
        seed: Of the prompts.
    """
    position = {(i, m): np.stack([v] * len(TARGETS)) for i, one in encoded.items() for m, v in controls(one).items()}
    length = max(encoded, default=-1) + 1
    values: Values = {}
    for (index, method), relevance in sorted(found.items()) + sorted(position.items()):
        prompt = draw_needle(seed, index)
        for target, own in zip(TARGETS, relevance, strict=True):
            for name, value in score(prompt, encoded[index], own).items():
                by_method = values.setdefault(f"{target} {name}", {})
                by_method.setdefault(method, [float("nan")] * length)[index] = value
    return values


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % bootstrap interval."""
    data, rng = np.array(values), np.random.default_rng(0)
    means = data[rng.integers(0, len(data), (2000, len(data)))].mean(1)
    return float(data.mean()), *(float(v) for v in np.percentile(means, [2.5, 97.5]))  # type: ignore[return-value]


def rows_of(model: str, values: Values) -> list[dict[str, Any]]:
    """Rows of the table, method by method, from the values of each prompt."""
    rows = []
    for method in dict.fromkeys(method for by_method in values.values() for method in by_method):
        for key, by_method in values.items():
            target, _, name = key.partition(" ")
            own = [value for value in by_method.get(method, ()) if np.isfinite(value)]
            if own:
                mean, low, high = (round(v, 4) for v in interval(own))
                rows.append({
                    "model": model, "method": method, "control": method in CONTROLS, "target": target, "score": name,
                    "prompts": len(own), "mean": mean, "low": low, "high": high,
                })  # fmt: skip
    return rows
