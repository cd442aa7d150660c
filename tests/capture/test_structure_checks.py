"""Tokens that are mixed outside attention, with a gradient or without one, are found and refused by name."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitrail
from tests.battery.decoders import decoder, words
from vitrail.capture import verify
from vitrail.errors import GuessWarning, NotApplicableError
from vitrail.models.plain_vit import PlainViT

IMAGES = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CHAINED = ("rollout", "transformer_mm", "vtranm", "gradtoken", "leadlight", "attnlrp")


def vit():
    torch.manual_seed(0)
    model = PlainViT(width=16, depth=4, heads=2, classes=3).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def explained(model, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vitrail.explain(model, IMAGES, method, target=1).grid


MIXING = {
    "detached neighbour": lambda x: 0.9 * x + 0.1 * x.detach().roll(1, 1),
    "detached mean": lambda x: x + 0.1 * x.detach().mean(1, keepdim=True),
    "mean by numpy": lambda x: x + 0.1 * torch.from_numpy(x.detach().numpy().mean(1, keepdims=True)),
    "neighbour": lambda x: 0.9 * x + 0.1 * x.roll(1, 1),
    "another order": lambda x: x.flip(1),
}
#: Each token is changed by itself alone.
BY_TOKEN = {
    "scaled and shifted": lambda x: 1.1 * x + 0.1,
    "detached itself": lambda x: x + 0.1 * x.detach(),
}


@pytest.mark.parametrize("change", MIXING.values(), ids=MIXING)
def test_tokens_mixed_between_blocks_are_refused_by_name(change):
    model = vit()
    model.blocks[1].register_forward_hook(lambda _, __, output: change(output))
    for method in CHAINED:
        with pytest.raises(NotApplicableError, match=r"blocks\.1 and that of blocks\.2 \(forward hooks on blocks\.1\)"):
            explained(model, method)
    for method in ("gradient_x_input", "occlusion"):
        assert explained(model, method).any()


@pytest.mark.parametrize("change", BY_TOKEN.values(), ids=BY_TOKEN)
def test_tokens_changed_by_themselves_are_no_mixing(change):
    model = vit()
    model.blocks[1].register_forward_hook(lambda _, __, output: change(output))
    for method in ("rollout", "transformer_mm", "attnlrp"):
        assert explained(model, method).any()


@pytest.mark.parametrize(("place", "where"), [("blocks.0.norm2", "blocks.0 and that of blocks.1"),
                                              ("norm", "behind the attention of blocks.3")])  # fmt: skip
def test_tokens_mixed_without_a_gradient_elsewhere(place, where):
    model = vit()
    model.get_submodule(place).register_forward_hook(lambda _, __, output: MIXING["detached mean"](output))
    with pytest.raises(NotApplicableError, match=where):
        explained(model, "transformer_mm")


def test_pixels_that_are_read_wrongly_are_no_mixing(monkeypatch):
    """Gradients that nearly cancel give the token of a pixel wrongly in reduced precision, such as TF32."""
    owners = verify.owners

    def some_wrong(*given):
        ids, shared = owners(*given)
        wrong = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.04
        return torch.where(wrong, (ids + 7) % 17, ids), shared

    monkeypatch.setattr(verify, "owners", some_wrong)
    assert explained(vit(), "transformer_mm").any()
    model = vit()
    model.blocks[1].register_forward_hook(lambda _, __, output: MIXING["detached mean"](output))
    with pytest.raises(NotApplicableError, match=r"forward hooks on blocks\.1"):
        explained(model, "transformer_mm")


def test_a_hook_that_comes_later_is_refused():
    model = vit()
    assert explained(model, "transformer_mm").any()
    handle = model.blocks[1].register_forward_hook(lambda _, __, output: MIXING["detached mean"](output))
    with pytest.raises(NotApplicableError, match=r"forward hooks on blocks\.1"):
        explained(model, "transformer_mm")
    handle.remove()
    assert explained(model, "transformer_mm").any()


def test_words_of_a_decoder_mixed_without_a_gradient():
    pytest.importorskip("transformers")
    model = decoder("Llama")

    def explained_words(method):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return vitrail.explain(model, {"input_ids": words()}, method, target=lambda o: o.logits[:, -1, 5]).grid

    assert explained_words("transformer_mm").any()
    change = MIXING["detached mean"]
    model.model.layers[0].register_forward_hook(
        lambda _, __, out: (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
    )
    with pytest.raises(NotApplicableError, match=r"model\.layers\.0 and that of model\.layers\.1"):
        explained_words("transformer_mm")
    assert explained_words("gradient_x_input").any()


def in_range(_, given):
    """A model that checks its input."""
    if given[0].abs().max() > 4.2:
        msg = "pixels are out of range"
        raise ValueError(msg)


def no_changed_images(_, given):
    if 0 < (given[0] != IMAGES).float().mean() < 1:
        msg = "a changed image"
        raise RuntimeError(msg)


def test_mixing_is_found_in_a_model_that_refuses_pixels_out_of_range():
    model = vit()
    model.register_forward_pre_hook(in_range)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessWarning)
        assert vitrail.explain(model, IMAGES, "transformer_mm", target=1).grid.any()
    model.blocks[1].register_forward_hook(lambda _, __, output: MIXING["detached mean"](output))
    with pytest.raises(NotApplicableError, match=r"blocks\.1 and that of blocks\.2"):
        explained(model, "transformer_mm")


def test_a_model_that_refuses_every_changed_input_is_named():
    """Mixing without a gradient cannot be ruled out, which the call says with the model's own error."""
    model = vit()
    model.register_forward_pre_hook(no_changed_images)
    reason = "not tested for tokens that are mixed without a gradient.*RuntimeError: a changed image"
    with pytest.warns(GuessWarning, match=reason):
        vitrail.explain(model, IMAGES, "transformer_mm", target=1)


def test_a_model_that_attends_otherwise_on_changed_inputs_is_named():
    """A block that is left out by what it reads, as in models of early exits."""
    model = vit()
    block, changed = model.blocks[3].forward, []
    model.register_forward_pre_hook(lambda _, given: changed.append(0 < (given[0] != IMAGES).float().mean() < 1))
    model.blocks[3].forward = lambda x: x if changed[-1] else block(x)
    with pytest.warns(GuessWarning, match="it calls attention 3 times instead of 4"):
        vitrail.explain(model, IMAGES, "transformer_mm", target=1)
