"""Relevance of decoders by LXT and attributions by Captum, as stored values for tests.

    python studies/decoder_references.py tests/battery/data/decoder_references.json

LXT 2.1 runs with transformers 4.52.4, so this script has an environment of its own (``pip install lxt==2.1
transformers==4.52.4 captum``) and does not import vitrail. Weights are drawn with numpy, so that any version of
transformers builds the same models.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
#: Families: the part of the class names, and settings of their own.
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Qwen3": SIZES | {"head_dim": 4},
    "GPT2": {"vocab_size": 40, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 32, "n_inner": 24},
}
IDS = np.random.default_rng(7).integers(3, 40, (2, 9))
POSITION, WORD, OTHER = 8, 5, 11


def reference_model(family: str) -> nn.Module:
    """A small decoder whose weights are drawn with numpy, by the order of their names."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    config._attn_implementation = "eager"  # noqa: SLF001
    model: nn.Module = getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")(
        config
    )
    generator = np.random.default_rng(3)
    for name, weight in sorted(model.named_parameters()):
        drawn = generator.normal(0, 0.3, tuple(weight.shape))
        drawn = 1 + drawn if weight.dim() == 1 and name.endswith("weight") else drawn
        weight.data = torch.from_numpy(drawn).to(weight.dtype)
    return model.eval().requires_grad_(False)


def contrast(logits: Tensor) -> Tensor:
    """A word's logit minus another's at one position, shape (b,)."""
    return logits[:, POSITION, WORD] - logits[:, POSITION, OTHER]


def _positions(model: nn.Module, length: int) -> Tensor:
    """Vectors of positions that GPT-2 adds to those of the words, or zero."""
    return model.transformer.wpe.weight[:length] if hasattr(model, "transformer") else torch.zeros(())


def _gradient_times_input(model: nn.Module, ids: Tensor, positions: bool) -> Tensor:
    words = model.get_input_embeddings()(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(contrast(model(inputs_embeds=words, use_cache=False).logits).sum(), words)
    start = words + _positions(model, ids.shape[1]) if positions else words
    return (start * gradient).sum(-1).detach()


def _integrated(model: nn.Module, ids: Tensor) -> Tensor:
    from captum.attr import IntegratedGradients

    words = model.get_input_embeddings()(ids).detach()
    method = IntegratedGradients(lambda x: contrast(model(inputs_embeds=x, use_cache=False).logits))
    return method.attribute(words, n_steps=32, method="gausslegendre").sum(-1).detach()


def _captum_gradient(model: nn.Module, ids: Tensor) -> Tensor:
    from captum.attr import InputXGradient

    words = model.get_input_embeddings()(ids).detach()
    method = InputXGradient(lambda x: contrast(model(inputs_embeds=x, use_cache=False).logits))
    return method.attribute(words).sum(-1).detach()


def main(path: Path) -> None:
    """Write the values: first those without changed classes, since LXT changes transformers' classes for good."""
    from lxt.efficient import monkey_patch
    from lxt.efficient.models import gpt2
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3

    ids = torch.from_numpy(IDS)
    found: dict[str, Any] = {name: {} for name in FAMILIES}
    for name in FAMILIES:
        model = reference_model(name).double()
        found[name]["logits"] = contrast(model(ids).logits).tolist()
        found[name]["gradient_x_input"] = _captum_gradient(model, ids).tolist()
        found[name]["integrated_gradients"] = _integrated(model, ids).tolist()
    modules = {"Llama": modeling_llama, "Qwen2": modeling_qwen2, "Qwen3": modeling_qwen3, "GPT2": modeling_gpt2}
    for name, module in modules.items():
        monkey_patch(module, gpt2.attnLRP if name == "GPT2" else None)
        model = reference_model(name).double()
        found[name]["attnlrp"] = _gradient_times_input(model, ids, positions=True).tolist()
    packages = ("lxt", "captum", "transformers", "torch")
    content = {"versions": {name: version(name) for name in packages}, "values": found}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
