"""The grid pointing game as a protocol of plans."""

from __future__ import annotations

from vitrail.bench.batch import BenchProtocol, ScoreBatch, ScoresAndReasons
from vitrail.bench.multiclass_protocols import OBJECTS
from vitrail.scores.grid_pointing import score_grid_pointing

GRID_POINTING = "grid_pointing"


def _score_grid_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Explain the class of every cell, and score the maps."""
    del target
    labels = [list(truth.class_masks) for truth in batch.truths]  # by cell, row by row
    explanations, failures = batch.explainer(batch.ids, batch.images, labels, [method])
    reasons = {row: why for (_, row), why in failures.items()}
    if not explanations:
        return {}, reasons
    n = round(len(labels[0]) ** 0.5)
    return score_grid_pointing(explanations[method].maps, n=n), reasons


GRID_PROTOCOLS = (BenchProtocol(GRID_POINTING, ("grid",), _score_grid_pointing, targets=(OBJECTS,)),)
