"""Monotonicity of linear models."""

import pytest
from torch import Tensor

from tests.scores.score_helpers import linear_problem
from vitrail.scores import score_monotonicity


def test_monotonicity_of_a_linear_model() -> None:
    images, maps, weights, classes = linear_problem()

    def predict(x: Tensor) -> Tensor:
        return x.flatten(1) @ weights.abs().T

    found = score_monotonicity(predict, images, maps, classes, steps=8)
    assert found["monotone"].tolist() == [1.0, 1.0]  # every pixel adds
    signed = score_monotonicity(lambda x: x.flatten(1) @ weights.T, images, maps, classes, steps=8)
    # Quantus 0.6.0 returns True for both: it replaces pixels of an empty image by the empty colour.
    assert signed["monotone"].tolist() == [0.0, 0.0]
    assert signed["rising"].tolist() == pytest.approx([2 / 7, 2 / 7])
