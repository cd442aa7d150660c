"""The grid pointing game, and DiFull and DiPart, in which the cells of a grid cannot influence each other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ScoreBatch, ScoresAndReasons
from vitrail.bench.explainer import ChunkExplainer
from vitrail.bench.multiclass_protocols import OBJECTS
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError, error_line
from vitrail.scores.disconnected import DisconnectedGrid
from vitrail.scores.grid_pointing import score_grid_pointing

GRID_POINTING, DIFULL, DIPART = "grid_pointing", "difull", "dipart"


def _cells(batch: ScoreBatch) -> tuple[list[list[int]], int]:
    """The class of every cell of each grid, row by row, and the cells in a row."""
    labels = [list(truth.class_masks) for truth in batch.truths]
    return labels, round(len(labels[0]) ** 0.5)


def _score_grid_pointing(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Explain the class of every cell, and score the maps."""
    del target
    labels, n = _cells(batch)
    explanations, failures = batch.explainer(batch.ids, batch.images, labels, [method])
    reasons = {row: why for (_, row), why in failures.items()}
    if not explanations:
        return {}, reasons
    return score_grid_pointing(explanations[method].maps, n=n), reasons


def _score_disconnected(setting: str, batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Explain the class of every cell of grids whose cells are enlarged to the model's input, and score its share.

    The relevance of patches is scored before scaling and without interpolation, so that none crosses a border.
    """
    del target
    labels, n = _cells(batch)
    grids = F.interpolate(batch.images, scale_factor=n, mode="bilinear")
    shares: list[Tensor] = []
    reasons: dict[int, str] = {}
    for cell in range(n * n):
        try:
            explainer = _disconnected(batch, grids, n, cell if setting == DIFULL else None)
        except NotApplicableError as error:
            return {}, dict.fromkeys(range(len(batch.ids)), error_line(error))
        explanations, failures = explainer(batch.ids, grids, [[row[cell]] for row in labels], [method])
        reasons |= {row: why for (_, row), why in failures.items()}
        if not explanations:
            return {}, reasons
        found = explanations[method].grid
        shares.append(score_grid_pointing(found, torch.full((len(found), 1), cell), n)["cell_share"])
    return {setting: torch.stack(shares).mean(0)}, reasons


def _disconnected(batch: ScoreBatch, grids: Tensor, n: int, cell: int | None) -> ChunkExplainer:
    """The batch's explainer with disconnected cells; the model is made once in a process."""
    own = batch.explainer.model
    if (n, cell) not in own.disconnected:
        module = DisconnectedGrid(own.loaded.module, n, cell).to(grids.device).eval()
        structure = read_structure(module, ModelInputs((grids[:1],)), module.layout)
        model = replace(own, loaded=replace(own.loaded, module=module), structure=structure)
        own.disconnected[n, cell] = model, module.layout
    model, layout = own.disconnected[n, cell]
    return replace(batch.explainer, model=model, layout=layout)


GRID_PROTOCOLS = (
    BenchProtocol(GRID_POINTING, ("grid",), _score_grid_pointing, targets=(OBJECTS,)),
    BenchProtocol(DIFULL, ("grid",), partial(_score_disconnected, DIFULL), targets=(OBJECTS,)),
    BenchProtocol(DIPART, ("grid",), partial(_score_disconnected, DIPART), targets=(OBJECTS,)),
)
