"""Random weights and noise: put back bit for bit, and seen by maps that should see them."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitrail
from perturbing import batch
from vitrail.errors import InputError, OptionError
from vitrail.scores import sanity, sensitivity
from vitrail.testing import tiny_vit

# -- random weights and noise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["normal", "permute", "init"])
def test_randomised_weights_are_put_back_bit_for_bit(how):
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
    with pytest.raises(OptionError, match="not a way"), sanity.randomised(model, ["head.weight"], "zeros"):
        pass


def test_maps_of_attention_ignore_the_head_and_maps_of_gradients_do_not():
    model, images = tiny_vit(depth=2), batch(2)[0]
    stages = sanity.stages(model, images)
    assert [s.name for s in stages] == ["head", "block 1", "block 0", "embedding"]
    assert sorted(n for s in stages for n in s.parameters) == sorted(n for n, _ in model.named_parameters())
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def explain(method):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vitrail.explain(model, images, method, target=1).maps[:, 0]

    for cascading in (True, False):
        found = sanity.parameter_randomisation(model, lambda: explain("rollout"), stages, cascading=cascading)
        assert torch.allclose(found["head|spearman"], torch.ones(2).double())
        assert torch.allclose(found["head|ssim"], torch.ones(2).double())
        assert (found["embedding|spearman"] < 0.99).all()
    other = sanity.parameter_randomisation(model, lambda: explain("transformer_mm"), stages[:1])
    assert (other["head|spearman"] < 1 - 1e-6).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])

    def fails():
        raise ZeroDivisionError

    calls = iter([lambda: explain("rollout"), lambda: explain("rollout"), fails])
    with pytest.raises(ZeroDivisionError):
        sanity.parameter_randomisation(model, lambda: next(calls)(), stages)  # noqa: PLW0108 - another one each time
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_similarity_of_maps():
    a = torch.rand(2, 20, 20)
    found = sanity.similarity(a, a.clone())
    assert all(torch.allclose(v, torch.ones(2).double()) for v in found.values())
    assert (sanity.similarity(a, -a)["pearson"] < -0.999).all()
    a[0] = 1.0
    found = sanity.similarity(a, torch.rand(2, 20, 20))
    assert all(v[0].isnan() and not v[1].isnan() for v in found.values())


def test_sensitivity_counts_only_noise_that_changes_no_answer():
    images = torch.randn(3, 1, 4, 4)
    still = sensitivity.sensitivity(lambda x: torch.ones(len(x), 4, 4), images, samples=2)
    assert all(float(still[name].max()) == 0 for name in ("max_over_map", "mean_over_map", "ratio"))
    moved = sensitivity.sensitivity(lambda x: x[:, 0], images, samples=3, radius=0.1, over="input")
    noise = torch.stack([n.double().norm() for n in sensitivity.noises(images, 0.1, 3)])
    size = images.flatten(1).double().norm(dim=1)
    assert torch.allclose(moved["max_over_input"], noise.max() / size)
    assert torch.allclose(moved["mean_over_input"], noise.mean() / size)
    assert torch.allclose(moved["ratio"], torch.ones(3).double())
    answers = iter([torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])])
    part = sensitivity.sensitivity(lambda x: x[:, 0], images, samples=2, radius=0.1, predict=lambda _: next(answers))
    assert part["samples"].tolist() == [2, 1, 0]
    assert part["max_over_map"].isnan().tolist() == [False, False, True]
