"""Language models: decoders with a head for the next token, explained for a token by their prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.battery.decoders import FAMILIES, SIZES
from tests.zoo.entry import Entry, Subject
from vitrail.targets import token

PROMPTS = ["the capital of France is", "Anna has the red code .", "Ben has"]
#: Families with settings of their own beside those of the battery: windows are shorter than the prompts.
DECODERS: dict[str, dict[str, Any]] = {
    **FAMILIES,
    "Mistral": {"sliding_window": 4},
    "Qwen3": {},
    "Gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 4},
    "Gemma3Text": {"query_pre_attn_scalar": 8, "sliding_window": 4, "final_logit_softcapping": 5.0},
    "Phi3": {},
    "Qwen2Moe": {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
                 "shared_expert_intermediate_size": 8, "decoder_sparse_step": 1},
    "StableLm": {},
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4},
    "DeepseekV3": {"head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
                   "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 8,
                   "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
}  # fmt: skip
#: Checked in each run of the fast tests.
FAST = ("Llama", "Gemma2")
#: Blocks in which a norm stands between a branch and its sum; `leadlight` needs plain sums.
OTHER_SUMS = ("Gemma2", "Gemma3Text")
METHODS = ("rollout", "transformer_mm", "gradtoken", "leadlight", "gradient_x_input", "attnlrp:gamma_linear=0",
           "shapley:forwards=30")  # fmt: skip
MAMBA = ("gradient_x_input", "integrated_gradients:steps=4", "shapley:forwards=30")


def language_decoder(family: str) -> nn.Module:
    """A decoder of a family with random weights, in double precision."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**SIZES | DECODERS[family])
    return _random(transformers.AutoModelForCausalLM.from_config(config))


def mamba() -> nn.Module:
    """A model with a state instead of attention."""
    import transformers

    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "time_step_rank": 4, "expand": 2}
    config = transformers.MambaConfig(vocab_size=SIZES["vocab_size"], use_mambapy=False, **sizes)
    return _random(transformers.MambaForCausalLM(config))


def hybrid() -> nn.Module:
    """A convolution over the words in front of the only block that attends."""
    import transformers

    config = transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])
    return _random(transformers.Lfm2ForCausalLM(config))


def _random(model: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.3)
    experts = any("experts" in name for name, _ in model.named_modules())  # grouped products have no double precision
    return (model if experts else model.double()).eval()  # type: ignore[no-any-return]


def subject(build: Any) -> Subject:
    from tests.text.language import word_tokens

    return Subject(build(), PROMPTS, token("Paris", score="logprob"), options={"tokenizer": word_tokens()})


def entry(family: str) -> Entry:
    methods = tuple(m for m in METHODS if family not in OTHER_SUMS or m != "leadlight")
    return Entry(
        f"hf:{family}ForCausalLM", partial(subject, partial(language_decoder, family)),
        ("single_prompts", "inner_position"), methods, slow=family not in FAST, target="token",
    )  # fmt: skip


ENTRIES = [
    *map(entry, DECODERS),
    Entry("hf:MambaForCausalLM", partial(subject, mamba), ("single_prompts", "inner_position"), MAMBA,
          {"rollout": "Mamba", "transformer_mm": "Mamba", "leadlight": "Mamba", "attnlrp": "Mamba"}, target="token"),
    Entry("hf:Lfm2ForCausalLM", partial(subject, hybrid), ("single_prompts", "inner_position"), MAMBA,
          dict.fromkeys(("rollout", "transformer_mm", "leadlight", "attnlrp", "atman"), "outside the attention"),
          target="token"),
]  # fmt: skip
