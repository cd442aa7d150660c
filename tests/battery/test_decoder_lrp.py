"""AttnLRP on decoders: every part by its published rule, against a replica and by conservation, in float64."""

from __future__ import annotations

import warnings

import pytest
import torch

import vitrail
from tests.battery.decoders import FAMILIES, decoder, words
from tests.replicas.decoder_lrp import attnlrp
from vitrail.errors import MapWarning, NotApplicableError

pytest.importorskip("transformers")
POSITION, WORD = 5, 7
#: Bloom shares its attention with no other family, and the replica does not change it.
REPLICATED = [f for f in FAMILIES if f != "Bloom"]
#: transformers computes norms in float32 whatever the model's precision is.
TOLERANCE = 1e-6


def wide(family):
    model = decoder(family)
    if family == "Mixtral":
        model.config._experts_implementation = "eager"  # torch's grouped products have no float64
    return model.double()


def target(output):
    return output.logits[:, POSITION, WORD]


def relevance(model, method, ids):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vitrail.explain(model, {"input_ids": ids}, method, target=target).grid[:, 0]


@pytest.mark.parametrize("family", REPLICATED)
@pytest.mark.parametrize("fixed", [False, True])
def test_relevance_is_that_of_the_replica(family, fixed):
    model, ids = wide(family), words(2)
    found = relevance(model, "attnlrp:released" if fixed else "attnlrp", ids)
    expected = attnlrp(model, ids, POSITION, WORD, fixed)
    assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE


@pytest.mark.parametrize("family", REPLICATED)
def test_relevance_is_conserved_where_attention_is_fixed(family):
    model, ids = wide(family), words(2)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    found = relevance(model, "conservative_lrp:gelu=identity", ids)
    with torch.no_grad():
        logit = target(model(ids))
    assert torch.allclose(found.sum(-1), logit, rtol=1e-5, atol=1e-6)


def test_an_activation_that_is_written_out_is_one_activation():
    """GPT-2 writes its GELU as x(1 + tanh(…)); the derivative and the factor are those of the function."""
    from transformers.activations import GELUTanh

    model, ids = decoder("GPT2").double(), words()
    written = {name: relevance(model, name, ids) for name in ("attnlrp", "conservative_lrp")}
    for block in model.transformer.h:
        block.mlp.act = GELUTanh()
    for name, expected in written.items():
        assert torch.allclose(relevance(model, name, ids), expected, rtol=1e-9, atol=1e-12), name


def test_grouped_products_of_experts_agree_with_single_ones():
    model, ids = decoder("Mixtral"), words()
    model.config._experts_implementation = "grouped_mm"
    grouped = [relevance(model, name, ids) for name in ("attnlrp", "attnlrp:gamma_linear=0.1")]
    model.config._experts_implementation = "eager"
    single = [relevance(model, name, ids) for name in ("attnlrp", "attnlrp:gamma_linear=0.1")]
    for a, b in zip(grouped, single, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
    assert not torch.allclose(single[0], single[1], rtol=1e-2)


def test_rules_without_a_gradient_refuse_mixtures_of_experts():
    with pytest.raises(NotApplicableError, match="mixture of experts"):
        relevance(decoder("Mixtral"), "transformer_attribution", words())


def test_texts_have_the_setting_of_the_authors_and_the_plain_rule_warns():
    model, ids = decoder("Llama"), words()
    default = relevance(model, "attnlrp", ids)
    assert torch.equal(default, relevance(model, "attnlrp:gamma_linear=0", ids))
    assert torch.equal(default, relevance(model, "attnlrp:plain", ids))
    with pytest.warns(MapWarning, match="sums that cancel"):
        vitrail.explain(model, {"input_ids": ids}, "attnlrp:plain,gamma_linear=0.05", target=target)
