"""What must hold between methods, and under changes that must not matter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitrail
from vitrail.methods.postprocess import normalise
from vitrail.models.plain_vit import PlainViT
from vitrail.testing import quick, tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def grid(method, model=None, **options):
    return vitrail.explain(model or tiny_vit().double(), IMAGES, method, target=1, **options).grid


def test_normalising_rows_does_not_change_rollouts_ranking():
    a, b = grid("rollout"), grid("rollout", normalise=False)
    assert torch.allclose(normalise(a), normalise(b), atol=1e-12)


def test_vtranm_without_transformation_is_transformer_mm():
    for score in ("logit", "prob", "logprob"):
        a, b = grid("vtranm", variant="af", score=score), grid("transformer_mm", score=score)
        assert torch.allclose(a, b, rtol=1e-12)


def test_probability_and_its_logarithm_rank_alike_in_the_first_order():
    """Their gradients differ by a positive factor, which a method of one layer only scales by."""
    a, b = grid("gradcam", score="prob"), grid("gradcam", score="logprob")
    assert torch.allclose(normalise(a), normalise(b), atol=1e-10)


@pytest.mark.parametrize("pool", ["model", "mean"])
def test_legrad_does_without_stacking_where_the_tail_remembers_the_batch(pool):
    """As models do that put tokens back on a grid of as many pictures as they were given."""
    model, given = tiny_vit().double(), []
    expected = grid("legrad", model, blocks=3, pool=pool)
    model.register_forward_pre_hook(lambda _, args: given.append(args[0].shape[0]))
    model.norm.register_forward_pre_hook(lambda _, args: (args[0].reshape(given[-1], args[0].shape[1], -1),))
    assert torch.allclose(grid("legrad", model, blocks=3, pool=pool), expected, rtol=1e-10)
    assert len(given) > 4, "three more passes, one for each block"


@pytest.mark.parametrize("variant", range(1, 5))
def test_gradtoken_to_no_depth_is_variant_0(variant):
    assert torch.equal(grid("gradtoken", variant=variant, depth=3), grid("gradtoken", variant=0))


def test_gradtokens_scale_does_not_matter():
    """Scaling Q and unscaling K leaves the attention as it is; M changes by a factor at most."""
    model = tiny_vit().double()
    scaled = tiny_vit().double()
    last = scaled.blocks[-1]
    with torch.no_grad():
        last.qkv.weight[:32] *= 3
        last.qkv.bias[:32] *= 3
        last.qkv.weight[32:64] /= 3
        last.qkv.bias[32:64] /= 3
    assert torch.allclose(normalise(grid("gradtoken", model)), normalise(grid("gradtoken", scaled)), atol=1e-9)


@pytest.mark.parametrize("method", ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"])
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_registers_may_change_places(method):
    model, other = tiny_vit(prefix=4).double(), tiny_vit(prefix=4).double()
    order = [0, 3, 1, 2]
    with torch.no_grad():
        other.prefix.copy_(model.prefix[:, order])
        other.position[:, :4] = model.position[:, order]
    assert torch.allclose(grid(method, model), grid(method, other), rtol=1e-9, atol=1e-15)


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_two_alike_tokens_read_together_are_one():
    """A distillation token that is a copy of CLS, both read: the mean of two equal rows is that row."""

    class Twice(PlainViT):
        def forward(self, images):
            x = self.embed(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.prefix.expand(len(x), 2, -1), x], 1)
            x = x + torch.cat([self.position[:, :1], self.position], 1)
            x = self.norm(self.blocks(x))
            return self.head((x[:, 0] + x[:, 1]) / 2)

    twice = Twice().double()
    found = vitrail.explain(twice, IMAGES, methods=["raw_attention", "rollout"], target=1)
    assert "distillation" in found["rollout"].structure["readout"]
    one = vitrail.explain(twice, IMAGES, "raw_attention", target=1, layout=vitrail.Layout(readout="cls"))
    assert torch.allclose(found["raw_attention"].grid, one.grid, rtol=1e-12)


def test_last_block_gradients_vanish_where_nothing_is_read():
    from vitrail.capture.forward import forward_pass
    from vitrail.capture.inputs import ModelInputs
    from vitrail.capture.structure import read_structure
    from vitrail.capture.trace import ALL

    model_inputs = ModelInputs((IMAGES,))
    model = tiny_vit().double()
    with forward_pass(model, model_inputs, read_structure(model, model_inputs), [{"dA": ALL}]) as one:
        trace = one.trace(one.output[:, 1])
    assert not trace.blocks[-1].dA[:, :, 1:].any()
    assert trace.blocks[-1].dA[:, :, 0].any()
    assert trace.blocks[0].dA[:, :, 1:].any()


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_class_specific_methods_change_with_the_class_and_others_do_not():
    # Methods that need weights trained for the model are left out.
    methods = {name: method for name, method in vitrail.methods().items() if method.check_weights is None}
    quick_options = {name: method.quick for name, method in methods.items()}
    found = vitrail.explain(tiny_vit(seed=3), IMAGES.float(), methods=quick_options, target=[[0, 1, 2]])
    for name, method in methods.items():
        spread = found[name].grid.std(1).max() / found[name].grid.abs().max()
        assert (spread > 1e-3) == method.class_specific, name


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_a_constant_image_gives_finite_maps():
    found = vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), methods=quick(), target=[[0, 1, 2]])
    assert all(torch.isfinite(e.maps).all() for e in found.values())


def test_mean_pooling_reads_all_patches():
    model = tiny_vit(pool=True, prefix=0)
    found = vitrail.explain(model, IMAGES.float(), "raw_attention")
    assert found.structure["readout"] == "the mean of the patches"
    nn.init.zeros_(model.blocks[-1].qkv.weight)  # every patch then attends to all alike
    nn.init.zeros_(model.blocks[-1].qkv.bias)
    with pytest.warns(vitrail.errors.MapWarning):
        even = vitrail.explain(model, IMAGES.float(), "raw_attention")
    assert torch.allclose(even.grid, torch.full_like(even.grid, 1 / 16))
