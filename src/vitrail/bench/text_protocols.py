"""Protocols of texts: agreement of word scores with marked words, and the effect of removing words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ScoresAndReasons, TextBatch
from vitrail.scores.rationale import (
    TOP_WORDS,
    class_probability,
    comprehensiveness_sufficiency,
    token_f1,
    word_average_precision,
)
from vitrail.scores.statistics import Array

RATIONALE, ERASER = "rationale", "eraser"


def _score_rationale(batch: TextBatch, method: str, target: str) -> ScoresAndReasons:
    """Token-F1 of the top 10 to 80 words and its mean, the counts it is made of, and AUPRC."""
    reasons = {
        row: "the text has no marked words" for row, marked_words in enumerate(batch.marked) if marked_words is None
    }
    reasons |= batch.missing_maps(method, target)
    rows = [row for row in range(len(batch.ids)) if row not in reasons]
    scores = batch.scores(method, target)
    scored, truths = [scores[row] for row in rows], [batch.marked[row] for row in rows]
    marked = [truth for truth in truths if truth is not None]
    f1 = token_f1(scored, marked)
    values: dict[str, Array] = {"f1": f1["f1"].mean(1)}
    for j, k in enumerate(TOP_WORDS):
        values |= {f"{name}@{k}": f1[name][:, j] for name in ("f1", "hits", "picked")}
    values |= {"marked": f1["marked"], **word_average_precision(scored, marked)}
    return _spread(values, rows, len(batch.ids)), reasons


def _score_eraser(batch: TextBatch, method: str, target: str) -> ScoresAndReasons:
    """Comprehensiveness and sufficiency of the explained class."""
    reasons = batch.missing_maps(method, target)
    rows = [row for row in range(len(batch.ids)) if row not in reasons]
    if not rows:
        return {}, reasons
    scores, classes = batch.scores(method, target), batch.target_classes(target)
    probability = class_probability(batch.model.loaded.module, batch.model.settings, batch.batch_size)
    scores_by_name = comprehensiveness_sufficiency(
        probability, [batch.words[row] for row in rows], [scores[row] for row in rows], [classes[row] for row in rows]
    )
    values = {name: scores_by_name[name] for name in ("comprehensiveness", "sufficiency")}
    return _spread(values, rows, len(batch.ids)), reasons


def _spread(values: dict[str, Array], rows: Sequence[int], count: int) -> dict[str, Tensor]:
    """Values of some texts as values of all; NaN for the others."""
    columns = {}
    for name, column_values in values.items():
        column = np.full(count, np.nan)
        column[list(rows)] = column_values
        columns[name] = torch.from_numpy(column)
    return columns


TEXT_PROTOCOLS = (
    BenchProtocol(RATIONALE, ("rationale",), _score_rationale, text=True),
    BenchProtocol(ERASER, (), _score_eraser, text=True),
)
"""The protocols of texts."""
