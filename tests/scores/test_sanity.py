"""Parameter randomisation and sensitivity to noise."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitrail
from tests.scores.score_helpers import batch
from vitrail.errors import InputError, OptionError
from vitrail.scores import sanity, sensitivity
from vitrail.testing import tiny_vit


@pytest.mark.parametrize("how", ["normal", "permute", "init"])
def test_randomised_weights_are_restored_bit_for_bit(how):
    model = tiny_vit().train()
    model.blocks[1].qkv.weight.data[0, 0] = float("nan")
    model.head.weight.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    objects = [id(p) for p in model.parameters()]

    def change_and_fail():
        with sanity.randomised(model, list(before), how):
            assert not torch.equal(model.embed.weight, before["embed.weight"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    for name, p in model.named_parameters():
        assert torch.equal(p.detach().view(torch.int32), before[name].view(torch.int32)), name
    assert objects == [id(p) for p in model.parameters()]
    assert model.training
    assert not model.head.weight.requires_grad
    with pytest.raises(InputError, match="no parameter"), sanity.randomised(model, ["tail.weight"], how):
        pass
    with pytest.raises(OptionError, match="unknown randomisation"), sanity.randomised(model, ["head.weight"], "zeros"):
        pass


def test_attention_maps_do_not_depend_on_the_head_and_gradient_maps_do():
    model, images = tiny_vit(depth=2), batch(2)[0]
    steps = sanity.randomisation_steps(model, images)
    assert [s.name for s in steps] == ["head", "block 1", "block 0", "embedding"]
    assert sorted(n for s in steps for n in s.parameters) == sorted(n for n, _ in model.named_parameters())
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def explain(method):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vitrail.explain(model, images, method, target=1).maps[:, 0]

    for cascading in (True, False):
        found = sanity.parameter_randomisation(model, lambda: explain("rollout"), steps, cascading=cascading)
        assert torch.allclose(found["head|spearman"], torch.ones(2).double())
        assert torch.allclose(found["head|ssim"], torch.ones(2).double())
        assert (found["embedding|spearman"] < 0.99).all()
    other = sanity.parameter_randomisation(model, lambda: explain("transformer_mm"), steps[:1])
    assert (other["head|spearman"] < 1 - 1e-6).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])

    def fails():
        raise ZeroDivisionError

    calls = iter([lambda: explain("rollout"), lambda: explain("rollout"), fails])
    with pytest.raises(ZeroDivisionError):
        sanity.parameter_randomisation(model, lambda: next(calls)(), steps)  # noqa: PLW0108 - another one each time
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_map_similarity():
    a = torch.rand(2, 20, 20)
    found = sanity.map_similarity(a, a.clone())
    assert all(torch.allclose(v, torch.ones(2).double()) for v in found.values())
    assert (sanity.map_similarity(a, -a)["pearson"] < -0.999).all()
    a[0] = 1.0
    found = sanity.map_similarity(a, torch.rand(2, 20, 20))
    assert all(v[0].isnan() and not v[1].isnan() for v in found.values())


def test_sensitivity_ignores_noise_that_changes_the_prediction():
    images = torch.randn(3, 1, 4, 4)
    constant = sensitivity.score_sensitivity(lambda x: torch.ones(len(x), 4, 4), images, samples=2)
    assert all(float(constant[name].max()) == 0 for name in ("max_over_map", "mean_over_map", "ratio"))
    moved = sensitivity.score_sensitivity(lambda x: x[:, 0], images, samples=3, radius=0.1, over="input")
    noise = torch.stack([n.double().norm() for n in sensitivity.noise_samples(images, 0.1, 3)])
    size = images.flatten(1).double().norm(dim=1)
    assert torch.allclose(moved["max_over_input"], noise.max() / size)
    assert torch.allclose(moved["mean_over_input"], noise.mean() / size)
    assert torch.allclose(moved["ratio"], torch.ones(3).double())
    predictions = iter([torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])])
    part = sensitivity.score_sensitivity(
        lambda x: x[:, 0], images, samples=2, radius=0.1, predict=lambda _: next(predictions)
    )
    assert part["samples"].tolist() == [2, 1, 0]
    assert part["max_over_map"].isnan().tolist() == [False, False, True]
