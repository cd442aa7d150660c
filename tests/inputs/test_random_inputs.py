from __future__ import annotations

import pytest
import torch

import vitrail
from tests.zoo.sequences import ENTRIES
from vitrail.inputs.random_inputs import random_inputs
from vitrail.models import describe

SIGNALS = [entry for entry in ENTRIES if "Video" in entry.name or "Audio" in entry.name or "Sequence" in entry.name]


@pytest.mark.parametrize("name", [entry.name for entry in SIGNALS])
def test_inputs_of_videos_and_sound_fit_the_model(name):
    pytest.importorskip("transformers")
    subject = next(entry for entry in SIGNALS if entry.name == name).build()
    model = subject.model.float()
    given = random_inputs(describe(model), batch=2)
    with torch.no_grad():
        assert given.into(model).logits.shape == (2, 5)
    assert given.axes is not None


@pytest.mark.parametrize(
    "name", ["scenes-clip", "scenes-detr", "scenes-seg", "scenes-video", "tones", "lm-recall", "scenes-vlm"]
)
def test_inputs_fit_the_included_models(name):
    loaded = vitrail.load(name)
    given = random_inputs(loaded, batch=2)
    with torch.no_grad():
        output = given.into(loaded.module)
    found = next(iter(output.values())) if isinstance(output, dict) else output
    assert len(found) == 2
    assert torch.isfinite(found).all()
