"""A causal model cannot depend on later words: every method gives them exactly no relevance."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitrail
from tests.battery.decoders import FAMILIES, LENGTH, decoder, words
from tests.zoo.small_models import quick as that_apply
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import NotApplicableError
from vitrail.testing import quick

pytest.importorskip("transformers")
POSITION = 3


def at(position):
    return lambda output: output.logits[:, position, 5]


def maps(model, ids, position, names):
    """Relevance of each word by each method that applies, shape (n,); in one call where all methods apply."""
    applying = that_apply(model, ModelInputs((), {"input_ids": ids}), at(position)) if len(names) > 1 else names
    methods = {name: quick().get(name, {}) for name in names if name in applying}
    found, calls = {}, [methods]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while calls:
            call = calls.pop()
            try:
                found |= vitrail.explain(model, {"input_ids": ids}, methods=call, target=at(position))
            except NotApplicableError:  # seen in the pass only: one by one
                calls += [{name: options} for name, options in call.items()] if len(call) > 1 else []
    return {name: explanation.grid[0, 0] for name, explanation in found.items()}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in ("GPT2", "Llama") else pytest.mark.slow) for f in FAMILIES]
)
def test_words_after_the_target_have_no_relevance(family):
    model, ids = decoder(family), words()
    names = [name for name, method in vitrail.methods().items() if method.family != "control" and name in quick()]
    found = maps(model, ids, POSITION, names)
    assert {"rollout", "raw_attention", "leadlight", "gradtoken", "transformer_mm", "shapley"} <= set(found)
    # A map that keeps positive values alone may be zero; most are not.
    assert sum(bool(relevance.any()) for relevance in found.values()) > 0.8 * len(found)
    for name, relevance in found.items():
        assert relevance.shape == (LENGTH,), name
        assert bool((relevance[POSITION + 1 :] == 0).all()), name


@pytest.mark.parametrize("family", ["GPT2", "Llama"])
@pytest.mark.parametrize("method", ["rollout", "raw_attention", "transformer_mm", "leadlight", "gradtoken"])
def test_the_map_is_that_of_the_text_up_to_the_target(family, method):
    model, ids = decoder(family), words()
    inner = maps(model, ids, POSITION, [method])[method]
    cut = maps(model, ids[:, : POSITION + 1], POSITION, [method])[method]
    assert torch.allclose(inner[: POSITION + 1], cut, rtol=1e-3, atol=1e-5 * float(cut.abs().max()))
    other = maps(model, ids, POSITION + 1, [method])[method]
    assert not torch.allclose(inner, other, atol=1e-3 * float(other.abs().max()))


def test_targets_of_one_call_have_a_limit_each():
    model, ids = decoder("GPT2"), words()
    both = vitrail.explain(
        model, {"input_ids": ids}, methods=["rollout", "transformer_mm"], target=lambda o: o.logits[:, [2, 4], 5]
    )
    for name, explanation in both.items():
        for k, position in enumerate((2, 4)):
            alone = maps(model, ids, position, [name])[name]
            assert torch.allclose(explanation.grid[0, k], alone, atol=1e-6), name


def test_the_gradient_at_a_prompt_takes_one_pass():
    model, inputs = decoder("Llama"), {"input_ids": words(2)}
    target = lambda output: output.logits[:, 4, 5]  # noqa: E731
    vitrail.explain(model, inputs, "gradient_x_input", target=target)
    runs, forward = [], model.forward
    model.forward = lambda *args, **kwargs: (runs.append(1), forward(*args, **kwargs))[1]
    found = vitrail.explain(model, inputs, "gradient_x_input", target=target).grid[:, 0]
    assert len(runs) == 1
    vectors = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(target(model(inputs_embeds=vectors)).sum(), vectors)
    torch.testing.assert_close(found, (vectors * gradient).sum(-1).detach())
    assert not found[:, 5:].any(), "no relevance behind the position that is read"
