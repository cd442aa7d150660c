"""PlainDecoder: the same function as Llama, causal, and independent of padding."""

from __future__ import annotations

import pytest
import torch

from vitrail.models.plain_decoder import PlainDecoder

WORDS, SIZES = 20, {"width": 16, "depth": 2, "heads": 2, "hidden": 24}


def decoder(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PlainDecoder(WORDS, length=32, **SIZES).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
    return model


def ids(batch=2, length=7):
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(0))


def test_it_is_a_llama():
    transformers = pytest.importorskip("transformers")
    own = decoder()
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    other = transformers.LlamaForCausalLM(config).eval()
    state = {"model.embed_tokens.weight": own.word_embed.weight, "model.norm.weight": own.norm.weight}
    state["lm_head.weight"] = own.head.weight
    for i, block in enumerate(own.blocks):
        name = f"model.layers.{i}."
        for part, weight in zip("qkv", block.qkv.weight.chunk(3), strict=True):
            state[f"{name}self_attn.{part}_proj.weight"] = weight
        state[f"{name}self_attn.o_proj.weight"] = block.proj.weight
        state[f"{name}input_layernorm.weight"] = block.norm1.weight
        state[f"{name}post_attention_layernorm.weight"] = block.norm2.weight
        state |= {f"{name}mlp.{key}": value for key, value in block.mlp.state_dict().items()}
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.allclose(own(ids())["logits"], other(input_ids=ids()).logits, atol=1e-4)


def test_later_words_change_nothing():
    model, first = decoder(), ids()
    second = first.clone()
    second[:, 5:] = (second[:, 5:] + 1) % WORDS
    with torch.no_grad():
        a, b = model(first)["logits"], model(second)["logits"]
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.allclose(a[:, 5:], b[:, 5:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(side):
    model, words = decoder(), ids()
    padding, kept = torch.zeros(2, 3, dtype=torch.long), torch.ones_like(ids())
    order = (lambda a, b: (b, a)) if side == "left" else (lambda a, b: (a, b))
    padded, mask = torch.cat(order(words, padding), 1), torch.cat(order(kept, padding), 1)
    with torch.no_grad():
        alone, both = model(words)["logits"], model(padded, attention_mask=mask)["logits"]
    assert both.isfinite().all()
    assert torch.allclose(both[mask.bool()].view_as(alone), alone, atol=1e-5)
