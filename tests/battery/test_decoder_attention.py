"""Methods that read or change attention, on decoders, against replicas by an attention function of their own."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.battery.decoders import decoder, words

pytest.importorskip("transformers")
NAME = "attention_replica"


def run(model, ids, change=lambda A: A):
    """Log-probability of word 5 after the last token, and the attention logits of each block, in the graph."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    logits = []

    def attend(module, query, key, value, mask, scaling=None, **_):
        times = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(times, 1) for t in (key, value))
        O = query @ key.mT * scaling  # noqa: E741
        logits.append(O)
        n = O.shape[-1]
        O = change(O.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf))  # noqa: E741
        return (O.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
        out = model(inputs_embeds=vectors, use_cache=False).logits[:, -1].log_softmax(-1)[0, 5]
    finally:
        model.config._attn_implementation = before
    return out, logits


def target(output):
    return output.logits[:, -1].log_softmax(-1)[:, 5]


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_transformer_mm_at_the_logits_of_attention(family):
    model, ids = decoder(family, num_key_value_heads=1).double(), words()
    score, logits = run(model, ids)
    gradients = torch.autograd.grad(score, logits)
    n = ids.shape[1]
    R = torch.eye(n, dtype=torch.float64)
    for dO in gradients:
        R = R + (dO[0].mean(0) * (1 - torch.eye(n))) @ R
    expected = R[-1] - torch.eye(n)[-1]
    found = vitrail.explain(model, {"input_ids": ids}, "transformer_mm:logits", target=target)
    assert found.signed
    assert torch.allclose(found.grid[0, 0], expected, rtol=1e-6, atol=1e-9)
    assert float(expected.min()) < 0 < float(expected.max())


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_atman_suppresses_a_word_in_all_blocks(family):
    model, ids = decoder(family, num_key_value_heads=1).double(), words()

    def suppress(O, j):  # noqa: E741
        low = O.masked_fill(O.isinf(), torch.inf).amin(-1, keepdim=True)
        kept = torch.ones(O.shape[-1], dtype=O.dtype)
        kept[j] = 0.1
        return torch.where(O.isinf(), O, (O - low) * kept)

    with torch.no_grad():
        every = run(model, ids, lambda logits: suppress(logits, []))[0]
        expected = torch.stack([every - run(model, ids, lambda o, j=j: suppress(o, j))[0] for j in range(ids.shape[1])])
    found = vitrail.explain(model, {"input_ids": ids}, "atman", target=target).grid[0, 0]
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
    assert float(expected.abs().max()) > 1e-3


def test_atman_suppresses_whole_units():
    """Two prompts with other units: the loss of a unit is that without all of its tokens, in equal shares."""
    model = decoder("Llama", num_key_value_heads=1).double()
    ids = torch.cat([words(), words().flip(1)])
    length = ids.shape[1]
    units = torch.stack([torch.arange(length) // 2, (torch.arange(length) - 1).clamp(max=1)])  # -1 is in no unit

    def suppress(O, tokens):  # noqa: E741
        low = O.masked_fill(O.isinf(), torch.inf).amin(-1, keepdim=True)
        return torch.where(O.isinf(), O, (O - low) * torch.where(tokens, 0.1, 1.0).to(O.dtype))

    found = vitrail.explain(model, {"input_ids": ids, "token_units": units}, "atman", target=target).grid[:, 0]
    for i in range(2):
        with torch.no_grad():
            every = run(model, ids[i : i + 1], lambda logits: suppress(logits, torch.zeros(length).bool()))[0]
            for unit in units[i].unique():
                members = units[i] == unit
                lost = every - run(model, ids[i : i + 1], lambda o, m=members: suppress(o, m))[0]
                expected = 0.0 if unit < 0 else float(lost) / int(members.sum())
                assert found[i][members].tolist() == pytest.approx([expected] * int(members.sum()), rel=1e-5, abs=1e-7)
    assert float(found.abs().max()) > 1e-3
