"""ROAD of maps and a model with known answers."""

import pytest
import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.scores import score_road


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
