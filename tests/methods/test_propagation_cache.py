"""A prompt of a causal model runs once under the rules: one forward pass, the same maps, the same refusals."""

from __future__ import annotations

import copy
import warnings
from unittest.mock import patch

import pytest
import torch

import vitrail
from tests.battery.decoders import WORDS, decoder, words
from tests.combinations import combinations
from vitrail.errors import VitrailError
from vitrail.methods.propagation_cache import PropagationCache

pytest.importorskip("transformers")
METHODS = ("attnlrp", "attnlrp:released", "attnlrp:gamma_linear=0.05", "conservative_lrp", "lrp")


def target(output):
    return output.logits[:, 4, [5, 9]]


def explained(model, method="attnlrp", inputs=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vitrail.explain(model, {"input_ids": words(2)} if inputs is None else inputs, method, target=target).grid


def in_two_passes():
    return patch.object(PropagationCache, "output_pass", lambda *_: None)


def forwards(model, call):
    counts = []
    handle = model.get_input_embeddings().register_forward_hook(lambda *_: counts.append(1))
    call()
    counts.clear()
    call()
    handle.remove()
    return len(counts)


@pytest.mark.parametrize(("family", "method"), combinations(["GPT2", "Llama", "Gemma2"], METHODS))
def test_one_forward_pass_gives_the_map_of_two(family, method):
    model = decoder(family).double()
    found = explained(model, method)
    with in_two_passes():
        expected = explained(model, method)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
    assert forwards(model, lambda: explained(model, method)) == 1
    with in_two_passes():
        assert forwards(model, lambda: explained(model, method)) == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    model = decoder("Llama").double()
    ids, mask = words(2), torch.ones(2, 7, dtype=torch.long)
    mask[1, slice(0, 2) if side == "left" else slice(5, None)] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    found = explained(model, inputs=inputs)
    with in_two_passes():
        expected = explained(model, inputs=inputs)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert not found[1].masked_select(mask[1] == 0).any()


def _on_block(change):
    return lambda model: model.model.layers[0].register_forward_hook(change)


def _hidden(output, change):
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def _skipped(model):
    model.model.layers[1].forward = lambda hidden, *_, **__: hidden


def _order(model):
    model.model.embed_tokens.register_forward_hook(lambda _, __, out: out.flip(1))


def _both_ways(model):
    for layer in model.model.layers:
        attend = layer.self_attn.forward
        layer.self_attn.forward = lambda *a, attend=attend, **k: attend(*a, **k | {"attention_mask": torch.zeros(7, 7)})


CHANGES = {
    "tokens mixed between blocks": _on_block(lambda _, __, out: _hidden(out, lambda x: 0.9 * x + 0.1 * x.roll(1, 1))),
    "a block detached": _on_block(lambda _, __, out: _hidden(out, lambda x: x.detach())),
    "a block skipped": _skipped,
    "tokens in another order": _order,
    "attention to later tokens": _both_ways,
    "other weights": lambda model: model.model.layers[0].mlp.up_proj.weight.data.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_is_explained_as_a_fresh_copy(change):
    def outcome(model):
        try:
            return explained(model)
        except VitrailError as error:
            return type(error)

    model = decoder("Llama")
    fresh = copy.deepcopy(model)
    before = explained(model)
    change(model)
    change(fresh)
    found, expected = outcome(model), outcome(fresh)
    if isinstance(expected, torch.Tensor):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(found, before, rtol=1e-3)
    else:
        assert found is expected


def test_values_of_the_target_are_those_of_the_model():
    model = decoder("Llama")
    ids = words()
    seen = []

    def noted(output):
        seen.append(output.logits.detach())
        return output.logits[:, -1, :WORDS].amax(-1)

    vitrail.explain(model, {"input_ids": ids}, "attnlrp", target=noted)
    with torch.no_grad():
        expected = model(ids).logits
    assert all(torch.allclose(one, expected, atol=1e-5) for one in seen)
