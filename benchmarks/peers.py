"""A small decoder explained by Vitrail and by LXT, Captum and inseq, in one process and with the same weights.

LXT 2.1 needs transformers 4.52.4, so this case runs in an environment of its own. A library that is not installed, or
does not run with the installed transformers, is left out and named in ``failed``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from unittest.mock import patch

import torch
from decoders import SHAPES, decoder, own_passes
from measuring import BARE, Calls, Run, add_ratios
from torch import Tensor, nn

import vitrail

#: Methods whose maps are compared; the others start at another baseline, or return another type.
COMPARED = ("attnlrp", "gradient_x_input")
#: Steps of integrated gradients.
STEPS = 20


def score(model: nn.Module, **inputs: Any) -> Tensor:
    """The logit of token 5 at the last position, shape (b,)."""
    logits: Tensor = model(**inputs, use_cache=False).logits
    return logits[:, -1, 5]


def tokenizer_of(words: int) -> Any:
    """A tokenizer whose words are "w0", "w1", …, with their numbers as ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))  # noqa: S106
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token"), "w0")
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def vitrail_calls(model: nn.Module, ids: Tensor) -> Calls:
    """Vitrail's methods."""
    inputs, target = {"input_ids": ids}, lambda output: output.logits[:, -1, 5]
    specs = ("attnlrp", "transformer_mm", "gradient_x_input", f"integrated_gradients:steps={STEPS}", "atman")
    return {f"vitrail {spec}": partial(_grid, model, inputs, spec, target) for spec in specs}


def _grid(model: nn.Module, inputs: Any, spec: str, target: Callable[..., Tensor]) -> Tensor:
    return vitrail.explain(model, inputs, spec, target=target).grid.flatten()


def lxt_calls(model: nn.Module, ids: Tensor) -> Calls:
    """AttnLRP in LXT's efficient form; its patches of transformers are undone after each call."""
    from lxt.efficient import monkey_patch
    from lxt.efficient.models.llama import LlamaMLP, LlamaRMSNorm, modeling_llama

    def attnlrp() -> Tensor:
        with (
            patch.object(LlamaMLP, "forward", LlamaMLP.forward),
            patch.object(LlamaRMSNorm, "forward", LlamaRMSNorm.forward),
            patch.object(nn.Dropout, "forward", nn.Dropout.forward),
            patch.object(modeling_llama, "eager_attention_forward", modeling_llama.eager_attention_forward),
            patch.object(modeling_llama, "ALL_ATTENTION_FUNCTIONS", modeling_llama.ALL_ATTENTION_FUNCTIONS),
        ):
            monkey_patch(modeling_llama)
            words = model.get_input_embeddings()(ids).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(score(model, inputs_embeds=words).sum(), words)
        return (gradient * words).sum(-1).flatten().detach()

    return {"lxt attnlrp": attnlrp}


def captum_calls(model: nn.Module, ids: Tensor) -> Calls:
    """Gradients at the embeddings, and its classes for language models."""
    from captum.attr import (
        FeatureAblation,
        LayerGradientXActivation,
        LayerIntegratedGradients,
        LLMAttribution,
        TextTokenInput,
    )

    layer = model.get_input_embeddings()
    forward = lambda words: score(model, input_ids=words)  # noqa: E731
    product, path = LayerGradientXActivation(forward, layer), LayerIntegratedGradients(forward, layer)
    tokenizer = tokenizer_of(model.config.vocab_size)
    text = TextTokenInput(" ".join(f"w{i}" for i in ids[0].tolist()), tokenizer)
    removal = LLMAttribution(FeatureAblation(model), tokenizer)
    start, answer = torch.zeros_like(ids), torch.tensor([5], device=ids.device)

    def ablation() -> Tensor:
        return removal.attribute(text, target=answer).seq_attr.flatten()

    return {
        "captum gradient_x_input": lambda: product.attribute(ids).sum(-1).flatten().detach(),
        f"captum integrated_gradients:steps={STEPS}": lambda: (
            path.attribute(ids, baselines=start, n_steps=STEPS).sum(-1).flatten()
        ),
        "captum feature ablation": ablation,
    }


def inseq_calls(model: nn.Module, ids: Tensor) -> Calls:
    """Its gradient, integrated gradients and occlusion for one generated token."""
    import inseq

    tokenizer = tokenizer_of(model.config.vocab_size)
    prompt = " ".join(f"w{i}" for i in ids[0].tolist())
    wrapped = inseq.load_model(model, "input_x_gradient", tokenizer=tokenizer)

    def attribute(method: str, **options: Any) -> Tensor:
        found = wrapped.attribute(
            prompt, f"{prompt} w5", method=method, override_default_attribution=True, show_progress=False, **options
        )
        return found.sequence_attributions[0].target_attributions[: ids.shape[1]].sum(-1).flatten()

    return {
        "inseq gradient_x_input": partial(attribute, "input_x_gradient"),
        f"inseq integrated_gradients:steps={STEPS}": partial(attribute, "integrated_gradients", n_steps=STEPS),
        "inseq occlusion": partial(attribute, "occlusion"),
    }


def forwards_of(model: nn.Module, call: Callable[[], Any]) -> int:
    """Number of prompts that the model evaluates in a call."""
    counts: list[int] = []
    forward = model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        given = [*args, kwargs.get("inputs_embeds"), kwargs.get("input_ids")]
        counts.append(next(len(one) for one in given if isinstance(one, Tensor)))
        return forward(*args, **kwargs)

    with patch.object(model, "forward", counted):
        call()
    return sum(counts)


def peers(
    run: Run, *, cases: tuple[str, ...] = ("llama-2x64:float32:64", "llama-6x256:float32:64"), repeats: int = 5,
    limit: float = 60.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """The next token of a small decoder by Vitrail, LXT, Captum and inseq: time over the model's own passes.

    A case is shape:precision:tokens. Repeats are interleaved; a call that takes more seconds than the limit is measured
    once. ``forwards`` is the number of prompts that were evaluated, and ``correlation`` that with Vitrail's map of the
    same method.
    """
    results: list[dict[str, Any]] = []
    for case in ("llama-tiny:float32:16",) if run.tiny else cases:
        shape, precision, tokens = case.split(":")
        model = decoder(run, shape, precision, int(tokens) + 8)
        ids = torch.randint(1, SHAPES[shape]["vocab_size"], (1, int(tokens)), device=run.device)
        calls, missing = own_passes(model, {"input_ids": ids}), {}
        for library in (vitrail_calls, lxt_calls, captum_calls, inseq_calls):
            try:
                calls |= library(model, ids)
            except Exception as error:  # noqa: BLE001 - the others are still measured
                missing[library.__name__.removesuffix("_calls")] = repr(error)[:300]
        print(f"-- {case}", *missing.items(), flush=True)
        calls["vitrail attnlrp"]()  # measures the structure of the model, once
        forwards: dict[str, int] = {}

        def first(name: str, calls: Calls = calls, model: nn.Module = model, found: dict[str, int] = forwards) -> None:
            found[name] = forwards_of(model, calls[name])

        rows, failed = run.timer(repeats).compare(calls, first, limit)
        add_ratios(rows, {short: f"bare {name}" for short, name in BARE.items()})
        for name, row in rows.items():
            library, _, method = name.partition(" ")
            if library != "bare":
                row["forwards"] = forwards[name]
            if library != "vitrail" and method in COMPARED and f"vitrail {method}" in rows:
                pair = torch.stack([calls[f"vitrail {method}"](), calls[name]()]).double()
                row["correlation"] = float(torch.corrcoef(pair)[0, 1])
            print(f"{name:44s} forwards {row.get('forwards')}  correlation {row.get('correlation')}", flush=True)
        results.append({"case": case, "rows": rows, "failed": failed | missing, "libraries": _versions()})
        run.save(results)
    return results


def _versions() -> dict[str, str]:
    found = {}
    for name in ("lxt", "captum", "inseq", "transformers", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
