"""Models whose weights accelerate loads for each call give the maps of the plain model."""

from __future__ import annotations

import pytest
import torch

import vitrail
from vitrail.capture.offloaded import offloaded_to
from vitrail.errors import ModelError
from vitrail.testing import tiny_vit

METHODS = ["rollout", "gradtoken", "vtranm", "attnlrp", "occlusion"]


@pytest.mark.parametrize("place", ["one device", "memory", "disk"])
def test_offloaded_models_have_the_same_maps(place, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model, image = tiny_vit(), torch.randn(2, 3, 32, 32)
    expected = vitrail.explain(model, image, methods=METHODS)
    assert offloaded_to(model) is None
    if place == "one device":
        model = accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    elif place == "memory":
        model = accelerate.cpu_offload(model, execution_device="cpu")
    else:
        model = accelerate.disk_offload(model, str(tmp_path), execution_device="cpu")
    meta = {name for name, parameter in model.named_parameters() if parameter.is_meta}
    assert bool(meta) == (place != "one device")
    found = vitrail.explain(model, image, methods=METHODS)
    for method in METHODS:
        torch.testing.assert_close(found[method].maps, expected[method].maps)
    assert {name for name, parameter in model.named_parameters() if parameter.is_meta} == meta, "released again"


def test_weights_that_nothing_loads_are_refused():
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.cpu_offload(tiny_vit(), execution_device="cpu")
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    accelerate.hooks.remove_hook_from_module(layer)
    layer.to("meta")
    assert offloaded_to(model) is None
    with pytest.raises(ModelError, match="meta device"):
        vitrail.explain(model, torch.randn(1, 3, 32, 32), "rollout")
