"""Infidelity of linear models, and values of Quantus 0.6.0."""

import numpy as np
import pytest
import torch

from tests.scores.score_helpers import linear_problem
from vitrail.errors import OptionError
from vitrail.scores import patch_effects, score_infidelity


def test_infidelity_agrees_with_quantus() -> None:
    images, maps, weights, classes = linear_problem()
    for patch, expected in ((2, [69.193085, 81.03673]), (4, [94.12177, 109.128494])):
        effects = patch_effects(lambda x: x.flatten(1) @ weights.T, images, classes, patch)
        found = score_infidelity(maps, effects)["infidelity"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_infidelity_of_a_linear_models_weights_is_zero() -> None:
    images, maps, weights, classes = linear_problem()
    effects = patch_effects(lambda x: x.flatten(1) @ weights.T, images, classes, 2, cumulative=False)
    exact = weights[classes].view(2, 8, 8)
    assert score_infidelity(exact, effects)["infidelity"].max() < 1e-9
    assert score_infidelity(-3 * exact, effects)["infidelity_scaled"].max() < 1e-9  # any factor, also a negative one
    assert score_infidelity(maps, effects)["infidelity_scaled"].min() > 0.1
    nothing = score_infidelity(torch.ones_like(maps), effects)
    assert nothing["infidelity_scaled"].tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(OptionError, match="must divide"):
        patch_effects(lambda x: x.flatten(1), images, classes, 3)
