"""Tiny decoders of twelve families of transformers with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WORDS, LENGTH = 40, 7
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
#: Families: the part of the class names, and settings of their own.
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "n_inner": 24},
    "Llama": {},
    "Mistral": {"sliding_window": 16},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "Gemma3Text": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "Phi": {},
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "GPTNeoX": {},
    "Bloom": {"n_layer": 2, "n_head": 2},
    "Mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
}


def decoder(family: str, **settings: Any) -> nn.Module:
    """A tiny decoder with a language head, in evaluation mode; its weights are large enough to attend unevenly."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family] | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0, 0.3)
    return model


def words(batch: int = 1) -> torch.Tensor:
    """Random words, shape (b, n)."""
    return torch.randint(3, WORDS, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
