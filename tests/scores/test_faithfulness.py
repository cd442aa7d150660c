"""ROAD's imputation, SaCo, monotonicity and infidelity against known answers and values of other implementations.

The stored values were computed with pytorch-grad-cam 1.5.7 and Quantus 0.6.0 on the inputs of ``problem``.
"""

import numpy as np
import pytest
import torch
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores import (
    impute,
    patch_effects,
    saco_coefficient,
    score_infidelity,
    score_monotonicity,
    score_road,
    score_saco,
)


def problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two images of one channel, a map for each, the weights of a linear model of three classes, and two classes."""
    generator = torch.Generator().manual_seed(0)
    images, maps = torch.rand(2, 1, 8, 8, generator=generator), torch.rand(2, 8, 8, generator=generator)
    return images, maps, torch.rand(3, 64, generator=generator) * 2 - 1, torch.tensor([0, 2])


def direct_solution(image: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """The imputed image by a direct solver, one equation for each removed pixel."""
    height, width = image.shape
    index = {tuple(p): i for i, p in enumerate(np.argwhere(removed))}
    matrix, right = lil_matrix((len(index), len(index))), np.zeros(len(index))
    for (y, x), row in index.items():
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                near, weight = (y + dy, x + dx), 1 / 6 if 0 in (dy, dx) else 1 / 12
                if (dy, dx) == (0, 0) or not (0 <= near[0] < height and 0 <= near[1] < width):
                    continue
                matrix[row, row] += weight
                if near in index:
                    matrix[row, index[near]] -= weight
                else:
                    right[row] += weight * image[near]
    solved = image.copy()
    solved[removed] = spsolve(matrix.tocsc(), right)
    return solved


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_imputation_solves_the_system(share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(2, 2, 13, 9, generator=generator, dtype=torch.float64)
    removed = torch.rand(2, 13, 9, generator=generator) < share
    found = impute(images, removed, noise=0, tolerance=1e-10)
    for image, mask, result in zip(images, removed, found, strict=True):
        for channel, solved in zip(image.numpy(), result.numpy(), strict=True):
            np.testing.assert_allclose(solved, direct_solution(channel, mask.numpy()), atol=1e-7)


def test_imputation_agrees_with_other_implementations() -> None:
    images, maps, _, _ = problem()
    order = maps.flatten(1).argsort(1, descending=True).argsort(1).view_as(maps)
    found = impute(images, order < 26, noise=0, tolerance=1e-7)
    torch.testing.assert_close(found.sum((1, 2, 3)), torch.tensor([32.316139, 31.806047]), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[0, 0, 0, 3:5], torch.tensor([0.3126276, 0.3074228]), rtol=1e-5, atol=0)


def test_imputation_keeps_the_rest_and_needs_a_pixel() -> None:
    images = torch.rand(1, 3, 6, 6)
    removed = torch.zeros(1, 6, 6, dtype=torch.bool)
    assert torch.equal(impute(images, removed), images)
    everything = impute(images, ~removed, noise=0)
    torch.testing.assert_close(everything, images.mean((2, 3), keepdim=True).expand_as(images))
    noisy = impute(torch.zeros(1, 1, 64, 64), torch.ones(1, 64, 64, dtype=torch.bool), noise=0.5)
    assert noisy.std().item() == pytest.approx(0.5, rel=0.05)
    with pytest.raises(InputError, match="removed pixels of shape"):
        impute(images, removed[:, :3])


def test_road_of_a_model_that_reads_one_half() -> None:
    images = torch.zeros(1, 1, 8, 8)
    images[..., :4] = 1

    def predict(x: Tensor) -> Tensor:
        return x[..., :2].mean((2, 3))

    right = torch.zeros(1, 8, 8)
    right[..., :4] = 1
    good, bad = (score_road(predict, images, maps, torch.tensor([0]), (50,), noise=0) for maps in (right, -right))
    assert good["road_lerf"].item() == 1.0
    assert good["road_morf"].item() < 0.05  # the left half is imputed from the zeros beside it
    assert good["road"].item() == pytest.approx(-bad["road"].item(), abs=1e-6)
    with pytest.raises(OptionError, match="between 0 and 100"):
        score_road(predict, images, right, torch.tensor([0]), (0, 50))


def test_saco_is_the_signed_share_of_weights() -> None:
    salience, effect = torch.tensor([[4.0, 2.0, 1.0]]), torch.tensor([[0.3, 0.1, 0.2]])
    assert saco_coefficient(salience, effect).item() == pytest.approx((2 + 3 - 1) / 6)
    assert saco_coefficient(salience, effect.sort(descending=True).values).item() == 1.0
    assert saco_coefficient(torch.ones(1, 3), effect).item() == 0.0


def test_saco_is_one_for_the_effects_of_a_linear_model_and_zero_for_constant_maps() -> None:
    images, maps, weights, classes = problem()

    def predict(x: Tensor) -> Tensor:
        return x.flatten(1) @ weights.T

    exact = (images.flatten(1) * weights[classes]).view(2, 8, 8)
    assert score_saco(predict, images, exact, classes, 8)["saco"].tolist() == [1.0, 1.0]
    assert score_saco(predict, images, -exact, classes, 8)["saco"].tolist() == [-1.0, -1.0]
    constant = score_saco(predict, images, torch.ones_like(maps), classes)
    assert (constant["saco"].tolist(), constant["flat"].tolist()) == ([0.0, 0.0], [True, True])


def test_infidelity_agrees_with_quantus() -> None:
    images, maps, weights, classes = problem()
    for patch, expected in ((2, [69.193085, 81.03673]), (4, [94.12177, 109.128494])):
        effects = patch_effects(lambda x: x.flatten(1) @ weights.T, images, classes, patch)
        found = score_infidelity(maps, effects)["infidelity"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_infidelity_of_a_linear_models_weights_is_zero() -> None:
    images, maps, weights, classes = problem()
    effects = patch_effects(lambda x: x.flatten(1) @ weights.T, images, classes, 2, cumulative=False)
    exact = weights[classes].view(2, 8, 8)
    assert score_infidelity(exact, effects)["infidelity"].max() < 1e-9
    assert score_infidelity(-3 * exact, effects)["infidelity_scaled"].max() < 1e-9  # any factor, also a negative one
    assert score_infidelity(maps, effects)["infidelity_scaled"].min() > 0.1
    nothing = score_infidelity(torch.ones_like(maps), effects)
    assert nothing["infidelity_scaled"].tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(OptionError, match="must divide"):
        patch_effects(lambda x: x.flatten(1), images, classes, 3)


def test_monotonicity_of_a_linear_model() -> None:
    images, maps, weights, classes = problem()

    def predict(x: Tensor) -> Tensor:
        return x.flatten(1) @ weights.abs().T

    found = score_monotonicity(predict, images, maps, classes, steps=8)
    assert found["monotone"].tolist() == [1.0, 1.0]  # every pixel adds
    signed = score_monotonicity(lambda x: x.flatten(1) @ weights.T, images, maps, classes, steps=8)
    # Quantus 0.6.0 returns True for both: it replaces pixels of an empty image by the empty colour.
    assert signed["monotone"].tolist() == [0.0, 0.0]
    assert signed["rising"].tolist() == pytest.approx([2 / 7, 2 / 7])
