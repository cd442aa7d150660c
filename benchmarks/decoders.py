"""Cases of decoders: methods on long prompts against the model's own passes, with random weights."""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from measuring import BARE, PRECISIONS, Calls, Run, add_ratios, print_profile
from torch import Tensor, nn

import vitrail

#: Settings of transformers' Llama and Qwen 2 configurations; the number of positions is that of the prompt.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-tiny": {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "num_key_value_heads": 2},
    "llama-2x64": {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "num_key_value_heads": 4},
    "llama-6x256": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6,
                    "num_attention_heads": 8, "num_key_value_heads": 8},
    "qwen2.5-0.5b": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                     "num_attention_heads": 14, "num_key_value_heads": 2},
    "llama-7b": {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                 "num_attention_heads": 32, "num_key_value_heads": 32},
}  # fmt: skip
#: Short prompts that are measured before the longest one show how memory grows.
CASES = ("llama-6x256:float32:2048",)
LONG = ("qwen2.5-0.5b:bfloat16:4096", "qwen2.5-0.5b:bfloat16:8192", "qwen2.5-0.5b:bfloat16:16384",
        "llama-7b:bfloat16:4096")  # fmt: skip


def decoder(run: Run, shape: str, precision: str, tokens: int) -> nn.Module:
    """A decoder with random weights, on the device."""
    import transformers

    dtype, matmul = PRECISIONS[precision]
    torch.set_float32_matmul_precision(matmul)
    torch.manual_seed(0)
    family = "Qwen2" if shape.startswith("qwen") else "Llama"
    config = getattr(transformers, f"{family}Config")(**SHAPES[shape], max_position_embeddings=tokens)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with run.device:
            model: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config)
    finally:
        torch.set_default_dtype(before)
    return model.to(run.device, dtype).eval().requires_grad_(False)


def next_token(output: Any) -> Tensor:
    """The largest logit of the last position, shape (b,)."""
    logits: Tensor = output.logits
    return logits[:, -1].float().amax(-1)


def own_passes(model: nn.Module, inputs: dict[str, Any]) -> Calls:
    """The model's own passes: forward, gradient at all parameters, and at the embeddings of the words alone."""

    def forward() -> Any:
        with torch.no_grad():
            return model(**inputs, use_cache=False)

    def forward_backward() -> None:
        model.requires_grad_(True)
        next_token(model(**inputs, use_cache=False)).sum().backward()
        model.zero_grad(set_to_none=True)
        model.requires_grad_(False)

    def forward_input_gradient() -> Any:
        rest = {name: value for name, value in inputs.items() if name != "input_ids"}
        words = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
        return torch.autograd.grad(next_token(model(inputs_embeds=words, use_cache=False, **rest)).sum(), words)

    passes = {"F": forward, "F+B": forward_backward, "F+Bx": forward_input_gradient}
    return {f"bare {BARE[short]}": call for short, call in passes.items()}


def decoders(
    run: Run, *, cases: tuple[str, ...] = CASES, methods: tuple[str, ...] = ("transformer_mm", "attnlrp"),
    repeats: int = 3,
) -> list[dict[str, Any]]:  # fmt: skip
    """One prompt of a decoder, logits of the last position alone: time over the model's own passes, and memory.

    A case is shape:precision:tokens. A method whose name ends with "+recompute" computes the activations of blocks
    again. ``decoders_long`` has the long prompts, for a GPU.
    """
    results: list[dict[str, Any]] = []
    for case in ("llama-tiny:float32:96",) if run.tiny else cases:
        shape, precision, length = case.split(":")
        tokens = int(length)
        model = decoder(run, shape, precision, tokens)
        ids = torch.randint(0, SHAPES[shape]["vocab_size"], (1, tokens), device=run.device)
        inputs = {"input_ids": ids, "logits_to_keep": 1}
        calls = own_passes(model, inputs)
        for method in methods:
            name, _, again = method.partition("+")
            calls[method] = partial(
                vitrail.explain, model, inputs, name, target=next_token, recompute=again == "recompute"
            )
        print(f"-- {case}", flush=True)
        rows, failed = run.timer(repeats).compare(calls)
        add_ratios(rows, {short: f"bare {name}" for short, name in BARE.items()})
        for method in methods if run.profile else ():
            print_profile(method, calls[method], run.device)
        weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        results.append({"case": case, "weights_mib": weights, "rows": rows, "failed": failed})
        run.save(results)
        del model, calls
        gc.collect()
        if run.device.type == "cuda":
            torch.cuda.empty_cache()
    return results


def decoders_long(
    run: Run, *, cases: tuple[str, ...] = LONG, methods: tuple[str, ...] = ("transformer_mm", "attnlrp"),
    repeats: int = 3,
) -> list[dict[str, Any]]:  # fmt: skip
    """The same for long prompts of Qwen2.5-0.5B's shape and one of a Llama of seven billion parameters, on a GPU."""
    return decoders(run, cases=cases, methods=methods, repeats=repeats)


def decoders_agreement(
    run: Run, *, cases: tuple[str, ...] = ("llama-6x256:float32:2048", "qwen2.5-0.5b:bfloat16:4096"),
    methods: tuple[str, ...] = ("transformer_mm", "attnlrp"),
) -> list[dict[str, Any]]:  # fmt: skip
    """Maps by plain torch operations, with blocks computed again, and with half of the blocks kept on the CPU.

    Each is compared with the map of the usual path: the largest difference as a share of the largest value, and the
    correlation. Half of the blocks are kept on the CPU by accelerate, where it is installed and the device is a GPU.
    """
    results: list[dict[str, Any]] = []
    for case in ("llama-tiny:float32:96",) if run.tiny else cases:
        shape, precision, length = case.split(":")
        model = decoder(run, shape, precision, int(length))
        ids = torch.randint(0, SHAPES[shape]["vocab_size"], (1, int(length)), device=run.device)
        inputs = {"input_ids": ids, "logits_to_keep": 1}
        maps = partial(_grid, model, inputs)
        usual = {method: maps(method, recompute=False) for method in methods}
        others = {method: {"recompute": maps(method, recompute=True)} for method in methods}
        with patch.dict(os.environ, VITRAIL_PLAIN="1"):
            for method in methods:
                others[method]["plain operations"] = maps(method, recompute=False)
        try:
            import accelerate
        except ImportError:
            print("accelerate is not installed", flush=True)
        else:
            blocks = len(model.model.layers)
            places = {f"model.layers.{i}": run.device if 2 * i < blocks else "cpu" for i in range(blocks)}
            rest = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
            places |= dict.fromkeys(rest, run.device)
            maps = partial(_grid, accelerate.dispatch_model(model, places, run.device, force_hooks=True), inputs)
            for method in methods:
                for again in (False, True):
                    name = "blocks on the CPU" + (", recompute" if again else "")
                    others[method][name] = maps(method, recompute=again)
                    peak = run.timer(1).peak_mib(partial(maps, method, recompute=again))
                    print(f"{method} {name}: peak {peak} MiB", flush=True)
        for method in methods:
            for name, found in others[method].items():
                row = {
                    "case": case, "method": method, "compared": name,
                    "difference": float((found - usual[method]).abs().max() / usual[method].abs().max()),
                    "correlation": float(torch.corrcoef(torch.stack([found, usual[method]]))[0, 1]),
                }  # fmt: skip
                print(row, flush=True)
                results.append(row)
        run.save(results)
        del model, maps
    return results


def _grid(model: nn.Module, inputs: dict[str, Any], method: str, recompute: bool) -> Tensor:
    found = vitrail.explain(model, inputs, method, target=next_token, recompute=recompute)
    return found.grid.double().flatten().cpu()
