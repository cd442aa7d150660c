"""AttnLRP on decoders of transformers, by changed modules instead of a function mode, in float64.

The model is copied, and its norms, activations, gated products, experts and attention are replaced by ones whose
ordinary gradient is the published rule. Relevance is the embedding times the gradient at it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

NAME = "attnlrp_replica"


class _Divided(torch.autograd.Function):
    """A tensor whose gradient is divided by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient / ctx.by, None


def divided(x: Tensor, by: float) -> Tensor:
    return _Divided.apply(x, by)


def as_factor(y: Tensor, x: Tensor) -> Tensor:
    """y as the fixed factor y/x times x."""
    x_, y_ = x.detach(), y.detach()
    return x * torch.where(x_ == 0, torch.zeros_like(x_), y_ / torch.where(x_ == 0, torch.ones_like(x_), x_))


def _attention(fixed: bool):
    def attend(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
        times = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(times, 1) for t in (key, value))
        if not fixed:
            query, key, value = divided(query, 4), divided(key, 4), divided(value, 2)
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if softcap is not None:
            logits = as_factor(torch.tanh(logits / softcap) * softcap, logits)
        n = logits.shape[-1]
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        window = getattr(module, "sliding_window", None)
        if window is None and type(module).__name__.startswith("Mistral"):
            window = module.config.sliding_window
        if window is not None:
            mask &= ~torch.ones(n, n, dtype=torch.bool).tril(-window)
        weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
        weights = weights.detach() if fixed else weights
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attend


def _norm(module: nn.Module):
    original = module.forward

    def layer_norm(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.detach().square().mean(-1, keepdim=True) + module.eps).sqrt()
        return centred / scale * module.weight + (0 if module.bias is None else module.bias)

    return layer_norm if isinstance(module, nn.LayerNorm) else lambda x: as_factor(original(x), x)


def _experts(module: nn.Module):
    def forward(states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(states)
        for expert in range(module.num_experts):
            gate, up = (states @ module.gate_up_proj[expert].T).chunk(2, -1)
            active = as_factor(torch.nn.functional.silu(gate), gate)
            out = divided(active, 2) * divided(up, 2) @ module.down_proj[expert].T
            share = torch.where(chosen == expert, weights, 0.0).sum(-1, keepdim=True)
            total = total + out * share.detach().to(out.dtype)
        return total

    return forward


def _changed(model: nn.Module, fixed: bool) -> nn.Module:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = deepcopy(model)
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention(fixed))
    for config in (model.config, getattr(model.config, "text_config", None)):
        if config is not None:
            config._attn_implementation = NAME
    for name, module in list(model.named_modules()):
        kind, leaf = type(module).__name__, name.rpartition(".")[2]
        gated = f"{name.rpartition('.')[0]}.up_proj" in dict(model.named_modules())
        if kind.endswith("Norm") and not list(module.children()):
            module.forward = _norm(module)
        elif kind.endswith("Experts"):
            module.forward = _experts(module)
        elif leaf in ("act_fn", "activation_fn", "act"):
            run, by = module.forward, 2 if gated else 1
            module.forward = lambda x, run=run, by=by: divided(as_factor(run(x), x), by)
        elif leaf == "up_proj":
            run = module.forward
            module.forward = lambda x, run=run: divided(run(x), 2)
    return model


def attnlrp(model: nn.Module, ids: Tensor, position: int, word: int, fixed: bool = False) -> Tensor:
    """Relevance of each word for a logit, shape (b, n).

    Args:
        model: A decoder of transformers, in float64.
        ids: Numbers of the words, shape (b, n).
        position: Whose prediction.
        word: The predicted word.
        fixed: Whether attention weights are constants.
    """
    changed = _changed(model, fixed)
    cap = getattr(changed.config, "final_logit_softcapping", None)
    if cap is not None:
        changed.config.final_logit_softcapping = None
    vectors = changed.get_input_embeddings()(ids).detach().requires_grad_()
    logits = changed(inputs_embeds=vectors, use_cache=False).logits
    if cap is not None:
        logits = as_factor(torch.tanh(logits / cap) * cap, logits)
    (gradient,) = torch.autograd.grad(logits[:, position, word].sum(), vectors)
    positions = _positions(changed, vectors)
    return ((vectors + positions) * gradient).sum(-1).detach()


def _positions(model: nn.Module, vectors: Tensor) -> Tensor:
    """Vectors of positions that are added to the words before the first block: relevance counts what enters it."""
    length = vectors.shape[1]
    if hasattr(model, "transformer") and hasattr(model.transformer, "wpe"):
        return model.transformer.wpe(torch.arange(length))[None].detach()
    decoder = getattr(getattr(model, "model", None), "decoder", None)
    if decoder is not None and hasattr(decoder, "embed_positions"):
        return decoder.embed_positions.weight[2 : 2 + length][None].detach()
    return torch.zeros(())
