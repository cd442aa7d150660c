"""Candidate forms of leadlight, computed from one shared pass.

A form has a source of relevance, a way to spread it over the patches, and a share of the spread part. Affinity between
patches is the positive part of a cosine to some power, with rows scaled to sum one. The cosine is between vectors of
the patches: keys, or keys, queries and values, of the upper half of the blocks, each scaled to unit length; or queries
of one block, the fourth from the end of twelve. "attention" is the first form of the method: mean attention between
patches. "keys × attention" multiplies both entry by entry, "keys + attention" adds up what both spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.capture.outputs import class_logits
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL, Trace
from vitrail.inputs.targets import resolve_target
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.methods._propagate import rows
from vitrail.methods.postprocess import upsample
from vitrail.methods.registry import METHODS
from vitrail.models import LoadedModel

#: Methods whose maps, each scaled to a maximum of one, are added up as the source. "last" is the last block's map.
SOURCES = {
    "vtranm": ("vtranm",),
    "last": ("last",),
    "vtranm+last": ("vtranm", "last"),
    "transformer_mm+last": ("transformer_mm", "last"),
    "vtranm+last+gradsam": ("vtranm", "last", "gradsam"),
}
OPTIONS: dict[str, dict[str, Any]] = {"vtranm": {"variant": "af+l"}, "transformer_mm": {"start": 0}, "gradsam": {}}
#: Kinds of vectors an affinity is made of, and how much each counts as an ingredient.
VECTORS = {
    "keys": ("K",), "keys+queries+values": ("K", "Q", "V"), "queries of one block": ("Q",),
    "keys + attention": ("K", "A"), "keys × attention": ("K", "A"),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A form of leadlight.

    Attributes:
        source: A key of ``SOURCES``.
        spread: A key of ``VECTORS``, "attention" for the first form, or "none".
        power: Exponent of the positive cosine.
        mix: Share of the spread part.
        rounds: How often the affinity is applied.
        gate: Whether the spread part is multiplied by the positive class evidence of each patch's value: the gradient
            at the last block's attention, which is the value projected on the direction of the class.
        score: "logit" or "prob", the quantity that is differentiated.
    """

    source: str = "vtranm+last"
    spread: str = "keys"
    power: int = 2
    mix: float = 0.75
    rounds: int = 1
    gate: bool = False
    score: str = "prob"

    @property
    def ingredients(self) -> int:
        """Number of things the form is made of: maps of the source, kinds of vectors, further rounds, a gate."""
        vectors = len(VECTORS.get(self.spread, ()))
        return len(SOURCES[self.source]) + vectors + (self.rounds - 1) + self.gate

    def __str__(self) -> str:
        words = [self.source, self.score, self.spread]
        words += [f"power {self.power}"] * (self.spread in VECTORS) + [f"mix {self.mix:g}"] * (self.spread != "none")
        return ", ".join(words + ["two rounds"] * (self.rounds > 1) + ["gate"] * self.gate)


FIRST_FORM = Form("vtranm", "attention")
#: Forms for comparison, which cannot be chosen: the first form, its fast variant, and sources that are not spread.
FORMER = (
    FIRST_FORM,
    Form("last", "attention", score="logit"),
    *(Form(source, "none", mix=0.0, score=s) for source in ("vtranm", "vtranm+last") for s in ("logit", "prob")),
)


def candidates() -> list[Form]:
    """Forms to choose from: each idea with both scores and several powers."""
    found = [Form(spread=spread, power=p) for spread, p in product([*VECTORS][:3], (2, 4, 8))]
    found += [Form(source=source, power=p) for source, p in product(("vtranm", "last"), (2, 4, 8))]
    found += [Form(source=source, power=p) for source, p in product([*SOURCES][3:], (2, 4))]
    found += [Form(mix=mix, power=p) for mix, p in product((0.5, 1.0), (2, 4, 8))]
    found += [Form(rounds=2, power=p) for p in (4, 8)]
    found += [Form(gate=True, power=p) for p in (2, 4)]
    first = [Form(**{**vars(form), "score": score}) for form in found for score in ("logit", "prob")]
    return [*first, *second_candidates()]


def second_candidates() -> list[Form]:
    """Forms added after the first round, where only those of the probability with VTranM alone as source passed."""
    found = [Form(spread="keys+queries+values", power=p) for p in (2, 3, 4)]
    found += [Form(power=3), Form(power=4, mix=1.0), Form(power=4, rounds=2), Form(power=6, rounds=2)]
    found += [Form(spread="keys + attention", power=p) for p in (2, 4, 8)]
    found += [Form(spread="keys × attention", power=p) for p in (1, 2, 4)]
    return [Form(**{**vars(form), "source": "vtranm"}) for form in found]


def maps_of_forms(loaded: LoadedModel, images: Tensor, forms: Sequence[Form], target: Any = None) -> list[Tensor]:
    """Maps of all forms from one forward pass, and one backward pass for each target and score.

    Args:
        loaded: The model.
        images: Shape (b, channels, height, width).
        forms: The forms.
        target: As `vitrail.explain` takes it.

    Returns:
        A tensor for each form, shape (b, K, height, width).
    """
    module = loaded.module
    inputs = to_model_inputs(images, loaded)
    structure = read_structure(module, inputs)
    needs = [dict.fromkeys(("A", "dA", "A_mean", "Q", "K", "V", "stream"), ALL)]
    needs += [dict(METHODS[name].needed({**METHODS[name].options, **given})) for name, given in OPTIONS.items()]
    grid = structure.layout.grid
    assert grid is not None
    found: dict[tuple[int, Form], Tensor] = {}
    with forward_pass(module, inputs, structure, needs) as one:
        aimed = resolve_target(target, one.output, len(images), loaded.classes, class_logits(module, one.output))
        for k, score in product(range(aimed.count), dict.fromkeys(form.score for form in forms)):
            trace = one.trace(aimed.scalar(k, score), keep_graph=True)
            own = [form for form in forms if form.score == score]
            found |= {(k, form): r for form, r in zip(own, _relevance(trace, own), strict=True)}
    stacked = [torch.stack([found[k, form] for k in range(aimed.count)], 1) for form in forms]
    return [upsample(r.unflatten(-1, grid), tuple(images.shape[2:])) for r in stacked]  # type: ignore[arg-type]


def _relevance(trace: Trace, forms: Sequence[Form]) -> list[Tensor]:
    last = trace.blocks[-1]
    r = trace.readout.expand(len(last.A), -1)
    parts = {name: METHODS[name].apply(trace, {**METHODS[name].options, **given}) for name, given in OPTIONS.items()}
    parts["last"] = trace.patches(rows(r, (last.dA * last.A).clamp_min(0)).mean(1))
    parts = {name: scaled(part) for name, part in parts.items()}
    gate = scaled(trace.patches(rows(r, last.dA).clamp_min(0).mean(1)))
    cosines = {spread: _cosine(trace, spread) for spread in {form.spread for form in forms} & VECTORS.keys()}
    below = trace.blocks[max(0, min(len(trace.blocks) // 4, len(trace.blocks) - 2)) : -1]
    attention = torch.stack([block.A_mean for block in below]).mean(0)
    attention = trace.patches(trace.patches(attention, -1), -2)
    affinities: dict[tuple[str, int], Tensor] = {}
    found = []
    for form in forms:
        source = scaled(torch.stack([parts[name] for name in SOURCES[form.source]]).sum(0))
        if form.spread == "none":
            found.append(source)
            continue
        W = attention
        if form.spread != "attention":
            key = form.spread, form.power
            if key not in affinities:
                raised = cosines[form.spread].clamp_min(0) ** form.power
                raised = raised * attention if form.spread == "keys × attention" else raised
                affinities[key] = raised / raised.sum(-1, keepdim=True)
            W = affinities[key]
        spread = source
        for _ in range(form.rounds):
            spread = (W @ spread.unsqueeze(-1)).squeeze(-1)
        if form.spread == "keys + attention":
            spread = scaled(spread) + scaled((attention @ source.unsqueeze(-1)).squeeze(-1))
        if form.gate:
            spread = spread * gate
        found.append((1 - form.mix) * source + form.mix * scaled(spread))
    return found


def _cosine(trace: Trace, spread: str) -> Tensor:
    """Cosine between patches, shape (b, S, S): its mean over blocks and kinds of vectors."""
    total = len(trace.blocks)
    one = total - max(1, total // 3)
    blocks = trace.blocks[one : one + 1] if spread == "queries of one block" else trace.blocks[total // 2 :]
    vectors = []
    for block, kind in product(blocks, [kind for kind in VECTORS[spread] if kind != "A"]):
        heads = trace.patches(getattr(block, kind), -2)
        vectors.append(torch.nn.functional.normalize(heads.transpose(1, 2).flatten(2), dim=-1))
    joined = torch.cat(vectors, -1)
    return joined @ joined.transpose(-2, -1) / len(vectors)


def scaled(relevance: Tensor) -> Tensor:
    """Divide by the maximum, where that is positive."""
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))
