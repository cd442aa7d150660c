"""SaCo of known groups and of linear models."""

import pytest
import torch
from torch import Tensor

from tests.scores.score_helpers import linear_problem
from vitrail.scores import saco_coefficient, score_saco


def test_saco_is_the_signed_share_of_weights() -> None:
    salience, effect = torch.tensor([[4.0, 2.0, 1.0]]), torch.tensor([[0.3, 0.1, 0.2]])
    assert saco_coefficient(salience, effect).item() == pytest.approx((2 + 3 - 1) / 6)
    assert saco_coefficient(salience, effect.sort(descending=True).values).item() == 1.0
    assert saco_coefficient(torch.ones(1, 3), effect).item() == 0.0


def test_saco_is_one_for_the_effects_of_a_linear_model_and_zero_for_constant_maps() -> None:
    images, maps, weights, classes = linear_problem()

    def predict(x: Tensor) -> Tensor:
        return x.flatten(1) @ weights.T

    exact = (images.flatten(1) * weights[classes]).view(2, 8, 8)
    assert score_saco(predict, images, exact, classes, 8)["saco"].tolist() == [1.0, 1.0]
    assert score_saco(predict, images, -exact, classes, 8)["saco"].tolist() == [-1.0, -1.0]
    constant = score_saco(predict, images, torch.ones_like(maps), classes)
    assert (constant["saco"].tolist(), constant["flat"].tolist()) == ([0.0, 0.0], [True, True])
