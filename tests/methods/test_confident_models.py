"""Removal of parts of the input where the model is almost certain: what a removal changes is not rounded away."""

from __future__ import annotations

import pytest
import torch

import vitrail
from vitrail.testing import quick, tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("method", ["occlusion", "shapley", "context_cite"])
def test_maps_do_not_depend_on_the_precision(method: str, scores: str) -> None:
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[2] += 16
    given = {"methods": {method: quick()[method]}, "target": 2, "scores": scores}
    found = vitrail.explain(model, IMAGES, **given)[method]
    assert (found.logits.softmax(-1)[:, 2] > 1 - 1e-6).all()
    assert found.grid.dtype == torch.float32
    expected = vitrail.explain(model.double(), IMAGES.double(), **given)[method].grid
    torch.testing.assert_close(found.grid.double(), expected, rtol=0, atol=2e-4 * float(expected.abs().max()))


def test_groups_of_classes() -> None:
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[1:3] += 16
    given = {"method": "occlusion", "target": vitrail.ClassGroup([1, 2])}
    found = vitrail.explain(model, IMAGES, **given).grid
    expected = vitrail.explain(model.double(), IMAGES.double(), **given).grid
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-4 * float(expected.abs().max()))
