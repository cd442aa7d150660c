"""Protocols that remove pixels in ways the perturbation presets cannot: ROAD, SaCo, monotonicity and infidelity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vitrail.bench.batch import BenchProtocol, ScoreBatch, ScoresAndReasons
from vitrail.capture.outputs import class_logits
from vitrail.capture.score_function import class_probabilities
from vitrail.pipeline.memory import shrink_batch_to_fit
from vitrail.scores.infidelity import patch_effects, score_infidelity
from vitrail.scores.monotonicity import score_monotonicity
from vitrail.scores.road import Predict, score_road
from vitrail.scores.saco import score_saco

ROAD, SACO, MONOTONICITY, INFIDELITY = "road", "saco", "monotonicity", "infidelity"
#: Side of a patch of `infidelity` in pixels where it divides the image, else the model's own patches.
PATCH = 16


def _predictor(batch: ScoreBatch) -> Predict:
    """Class probabilities of images, at most a plan's batch at a time."""
    loaded, context = batch.explainer.model.loaded, batch.explainer.context
    module = loaded.module

    def predict(images: Tensor) -> Tensor:
        def forward(size: int) -> Tensor:
            with torch.inference_mode():
                parts = [class_logits(module, module(images[i : i + size])) for i in range(0, len(images), size)]
            logits = torch.cat([part for part in parts if part is not None])
            return class_probabilities(module, logits, loaded.scores)

        return shrink_batch_to_fit(context, forward)

    return predict


def _score(score: Callable[..., dict[str, Tensor]], batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    classes = batch.classes.gather(1, batch.target_columns(target)[:, None])[:, 0]
    seed = batch.explainer.context.plan.seed
    values = score(_predictor(batch), batch.images, batch.maps(method, target), classes, seed=seed)
    return values, batch.missing_maps(method, target)


def _score_infidelity(batch: ScoreBatch, method: str, target: str) -> ScoresAndReasons:
    """Perturbed images do not depend on the map, so the effects are computed once for all methods of a batch."""
    classes = batch.classes.gather(1, batch.target_columns(target)[:, None])[:, 0]
    height, width = batch.images.shape[2:]
    patch = PATCH if height % PATCH == 0 and width % PATCH == 0 else _divisor(height, width)
    if target not in batch.patch_effects:
        batch.patch_effects[target] = patch_effects(_predictor(batch), batch.images, classes, patch, cumulative=False)
    return score_infidelity(batch.maps(method, target), batch.patch_effects[target]), batch.missing_maps(method, target)


def _divisor(height: int, width: int) -> int:
    return next(side for side in range(PATCH, 0, -1) if height % side == 0 and width % side == 0)


FAITHFULNESS_PROTOCOLS = (
    BenchProtocol(ROAD, (), partial(_score, score_road)),
    BenchProtocol(SACO, (), partial(_score, score_saco)),
    BenchProtocol(MONOTONICITY, (), partial(_score, score_monotonicity)),
    BenchProtocol(INFIDELITY, (), _score_infidelity),
)
