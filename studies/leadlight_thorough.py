"""Maps of IIA and DIX spread by keys, as a source of few passes for leadlight, beside leadlight:single on first halves.

    python studies/leadlight_thorough.py run --assets DIR --models vit-t --device cuda --out DIR

The options are those of ``grid_pointing.py``. ``SOURCE+keys`` is the map of a method averaged over patches with similar
keys as in leadlight (power 4, two rounds, shifted, mixed with a share of 0.75); ``SOURCE+ratio+keys`` is multiplied
before that by leadlight's ratio of what speaks for the class to what speaks for and against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grid_pointing
import torch
import torch.nn.functional as F
from model_halves import explain as plain_explain
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL, Trace
from vitrail.inputs.targets import resolve_target
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.methods.postprocess import upsample

SPREAD, RATIO = "+keys", "+ratio"
POWER, ROUNDS, MIX = 4, 2, 0.75
METHODS = ["leadlight:single", "leadlight:object", "iia", "dix", *(f"{s}{r}{SPREAD}" for s in ("iia", "dix")
           for r in ("", RATIO))]  # fmt: skip
#: Methods whose quotient is the ratio of leadlight:single: its relevance before the spreading, and its source.
QUOTIENT = ("leadlight:single,mix=0", "vtranm:af+l")


def key_cosine(trace: Trace) -> Tensor:
    """Cosine between the keys of patches, mean over the second half of the blocks, shape (b, S, S)."""
    heads = [trace.patches(block.K, -2) for block in trace.blocks[len(trace.blocks) // 2 :]]
    joined = torch.cat([F.normalize(keys.transpose(1, 2).flatten(2), dim=-1) for keys in heads], -1)
    return joined @ joined.transpose(-2, -1) / len(heads)


def scaled(relevance: Tensor) -> Tensor:
    """Divide by the maximum, where that is positive."""
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))


def affinity(loaded: Any, images: Tensor) -> Tensor:
    """Affinity between patches by their keys, with rows that sum to one, shape (b, S, S)."""
    inputs = to_model_inputs(images, loaded)
    with forward_pass(loaded.module, inputs, read_structure(loaded.module, inputs), [{"K": ALL}]) as one:
        logits = class_logits(loaded.module, one.output)
        target = resolve_target(None, one.output, len(images), loaded.classes, logits)
        cosine = key_cosine(one.trace(target.scalar(0, "logit")))
    raised = cosine.clamp_min(0) ** POWER
    return raised / raised.sum(-1, keepdim=True)


def spread(relevance: Tensor, W: Tensor) -> Tensor:
    """Relevance mixed with its average over similar patches; shapes (b, K, S) and (b, S, S)."""
    R = averaged = scaled(relevance.clamp_min(0))
    for _ in range(ROUNDS):
        averaged = averaged @ W.transpose(-2, -1)
    return (1 - MIX) * R + MIX * scaled(averaged - averaged.amin(-1, keepdim=True))


def explain(loaded: Any, images: Tensor, methods: Sequence[str], target: Any, **given: Any) -> dict[str, Any]:
    """Explanations by methods, with spread forms of them."""
    forms = [name for name in methods if name.endswith(SPREAD)]
    sources = [name.removesuffix(SPREAD).removesuffix(RATIO) for name in forms]
    needed = dict.fromkeys([*(m for m in methods if m not in forms), *sources, *(QUOTIENT if forms else ())])
    found = plain_explain(loaded, images, list(needed), target, **given)
    W = affinity(loaded, images) if forms else None
    for form, source in zip(forms, sources, strict=True):
        grid = found[source].grid.float()
        relevance = grid.flatten(2)
        if RATIO in form:
            above, below = (found[name].grid.float().flatten(2) for name in QUOTIENT)
            relevance = relevance * above / below.clamp_min(1e-9 * below.amax())
        new = spread(relevance, W.to(relevance)).view_as(grid)
        maps = upsample(new, tuple(found[source].maps.shape[-2:]))
        low, high = maps.amin((-2, -1), keepdim=True), maps.amax((-2, -1), keepdim=True)
        found[form] = replace(found[source], grid=new, maps=(maps - low) / (high - low).clamp_min(1e-12))
    return {name: found[name] for name in methods if name in found}


if __name__ == "__main__":
    torch.set_grad_enabled(True)
    grid_pointing.main(explain, METHODS)
