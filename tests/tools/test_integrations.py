"""Captum's interface: arguments, completeness, numpy, and agreement with Captum where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import InputError, OptionError
from vitrail.testing import tiny_vit
from vitrail.tools.integrations import Attribution
from vitrail.tools.integrations.captum import convergence_delta

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
STARTS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MODEL = tiny_vit().double()


def integrated(**options):
    return Attribution(MODEL, "integrated_gradients", scaled=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("baselines", [None, 0.5, STARTS[:1], STARTS], ids=["none", "number", "image", "images"])
@pytest.mark.parametrize("target", [2, [0, 1, 4]])
def test_integrated_gradients_agree_with_captum(baselines, target):
    captum = pytest.importorskip("captum.attr")
    theirs, their_delta = captum.IntegratedGradients(MODEL).attribute(
        IMAGES, 0 if baselines is None else baselines, target, n_steps=9, return_convergence_delta=True
    )
    for size in (None, 2):
        ours, delta = integrated().attribute(
            IMAGES, target, baselines=baselines, n_steps=9, internal_batch_size=size, return_convergence_delta=True
        )
        assert torch.allclose(ours, theirs.sum(1, keepdim=True), rtol=1e-6, atol=1e-8)
        assert torch.allclose(delta, their_delta, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_noise_agrees_with_captums_noise_tunnel_in_the_mean():
    """Both average a gradient over noisy copies; without noise they are the gradient itself."""
    captum = pytest.importorskip("captum.attr")
    theirs = captum.NoiseTunnel(captum.InputXGradient(MODEL)).attribute(IMAGES, target=1, nt_samples=2, stdevs=0.0)
    ours = Attribution(
        MODEL, "gradient_x_input", scaled=False, smooth="noise", smooth_samples=2, smooth_noise=0.0
    ).attribute(IMAGES, target=1)
    assert torch.allclose(ours, theirs.sum(1, keepdim=True), rtol=1e-8, atol=1e-12)


def test_completeness_of_a_known_function():
    """For a product of two means the integral is known: each factor gets half of it from a baseline of 0."""

    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, images):
            left, right = images[..., :16].mean((1, 2, 3)), images[..., 16:].mean((1, 2, 3))
            return torch.stack([self.scale * left * right, left], 1)

    model, images = Product(), IMAGES + 1
    maps, delta = Attribution(model, "integrated_gradients", scaled=False).attribute(
        images, 0, n_steps=4, return_convergence_delta=True
    )
    assert delta.abs().max() < 1e-12
    assert torch.allclose(maps[..., :16].sum((1, 2, 3)), model(images)[:, 0] / 2)
    coarse = Attribution(model, "integrated_gradients", scaled=False, rule="ends", score="prob")
    _, missed = coarse.attribute(images, 0, n_steps=2, return_convergence_delta=True)
    probabilities = [model(x).softmax(1)[:, 0] for x in (images, 0 * images)]
    assert missed.abs().min() > 1e-6
    total = coarse.attribute(images, 0, n_steps=2).sum((1, 2, 3))
    assert torch.allclose(missed, total - (probabilities[0] - probabilities[1]))


def test_numpy_in_numpy_out():
    maps, delta = integrated().attribute(
        IMAGES.numpy(), np.array([0, 1, 2]), baselines=STARTS.numpy(), n_steps=5, return_convergence_delta=True
    )
    assert isinstance(maps, np.ndarray)
    assert isinstance(delta, np.ndarray)
    assert (maps.shape, delta.shape) == ((3, 1, 32, 32), (3,))
    expected = integrated().attribute(IMAGES, [0, 1, 2], baselines=STARTS, n_steps=5)
    assert np.allclose(maps, expected.numpy())
    rollout = Attribution(tiny_vit(), "rollout").attribute(IMAGES.numpy(), np.array(1))
    assert isinstance(rollout, np.ndarray)
    assert rollout.max() == 1


def test_a_function_is_a_target():
    _, delta = integrated().attribute(IMAGES, lambda y: y[:, 0] - y[:, 1], n_steps=40, return_convergence_delta=True)
    assert delta.abs().max() < 1e-3


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("rollout", {"n_steps": 4}, "rollout takes no n_steps: it has no option 'steps'; methods that have it: tam"),
        ("transformer_mm", {"baselines": 0.0}, "transformer_mm takes no baselines.*integrated_gradients"),
        ("transformer_mm", {"return_convergence_delta": True}, "transformer_mm has no convergence delta"),
        ("integrated_gradients:reduce=abs", {"return_convergence_delta": True}, "with reduce='sum' has one"),
        ("integrated_gradients", {"baselines": torch.zeros(2, 3, 32, 32)}, r"baseline of shape \(2, 3, 32, 32\)"),
    ],
)
def test_what_a_method_does_not_have_is_refused_by_name(method, given, message):
    with pytest.raises(OptionError, match=message):
        Attribution(MODEL, method).attribute(IMAGES, 1, **given)


def test_a_delta_needs_the_model():
    from dataclasses import replace

    e = vitrail.explain(MODEL, IMAGES, "integrated_gradients", steps=2, target=1)
    assert convergence_delta(e).shape == (3,)
    with pytest.raises(InputError, match="no model to be evaluated on"):
        convergence_delta(replace(e, source=None))
