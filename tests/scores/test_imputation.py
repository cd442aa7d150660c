"""ROAD's imputation against a direct solver and values of pytorch-grad-cam 1.5.7 and Quantus 0.6.0."""

import numpy as np
import pytest
import torch
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

from tests.scores.score_helpers import linear_problem
from vitrail.errors import InputError
from vitrail.scores import impute


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


def test_images_that_are_solved_stay_solved_while_others_are_not() -> None:
    """A tolerance of zero iterates as long as the hardest image of a large batch would."""
    images = torch.randn(3, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    removed = torch.zeros(3, 24, 24, dtype=torch.bool)
    removed[0, 5, 5] = True
    removed[1] = torch.rand(24, 24, generator=torch.Generator().manual_seed(1)) < 0.8
    removed[2, :, :20] = True
    exact = impute(images.double(), removed, noise=0, tolerance=1e-12).float()
    torch.testing.assert_close(impute(images, removed, noise=0, tolerance=0.0), exact, rtol=0, atol=1e-5)


def test_imputation_agrees_with_other_implementations() -> None:
    images, maps, _, _ = linear_problem()
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


def test_pixels_that_are_not_solved_give_a_warning(monkeypatch) -> None:
    monkeypatch.setattr("vitrail.scores.imputation.MAX_ITERATIONS", 2)
    images, removed = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 16, 16) > 0
    removed[1, 2:14, 2:14] = True  # the first image has nothing to solve
    with pytest.warns(RuntimeWarning, match="pixels of 1 images are not exact: after 2 iterations"):
        impute(images, removed)
