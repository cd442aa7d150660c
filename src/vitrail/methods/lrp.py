"""Relevance propagation methods: each is a rule set of `vitrail.lrp` and a way to read the result."""

from __future__ import annotations

import warnings

from torch import Tensor

from vitrail.capture.trace import Block, Needs
from vitrail.errors import MapWarning, OptionError
from vitrail.lrp import rule_sets
from vitrail.lrp.elementwise import positive_rows
from vitrail.lrp.rule_sets import ABSLRP, ORIG, OURS, RuleSet, conservative
from vitrail.methods._propagate import flow, row, rows
from vitrail.methods.cost import lrp_pass
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import Applies, choose, register, within

#: Share of the root mean square by which the stable variants move sums away from zero.
EPSILON = 0.001
#: How much more products of the output's sign count in linear maps by AttnLRP, as its authors set it.
GAMMA_LINEAR = {"text": 0.0, "other": 0.05}


def _stable(table: RuleSet, epsilon: float) -> RuleSet:
    if not 0 <= epsilon < 1:
        raise OptionError(f"epsilon={epsilon} must be at least 0 and below 1: it is a share of a root mean square")
    return rule_sets.stable(table, float(epsilon))


def _lrp_rules(epsilon: float, **_: object) -> RuleSet:
    return _stable(ORIG, epsilon)


@register(
    "lrp",
    "LRP",
    "relevance",
    cite="bach2015lrp",
    variants={"stable": {"epsilon": EPSILON}},
    rules=lambda where, epsilon, **_: _lrp_rules(epsilon) if where == "pixels" else None,
    cost=lrp_pass,
)
def lrp(trace: ProbedTrace, *, where: str = "pixels", epsilon: float = 0.0) -> Tensor:
    """Relevance that starts as 1 at the class and is shared among the inputs of each operation, down to the pixels.

    Args:
        trace: The pass.
        where: "pixels", or "tokens" for the tokens that enter the first block; a text has tokens only.
        epsilon: Sums of both signs are moved away from zero by this share of their root mean square before relevance
            is divided by them; 0 as in the published code, whose maps depend on rounding in single precision.

    Returns:
        Relevance of pixels, shape (b, height, width), or of patches, shape (b, S).
    """
    choose("where", where, ["pixels", "tokens"])
    if trace.probe.model_inputs.image is None:
        where = "tokens"
    return trace.probe.relevances(_lrp_rules(epsilon), frozenset({where})).map(trace)


@register("partial_lrp", "Partial LRP", "relevance", cite="voita2019analyzing", cost=lrp_pass)
def partial_lrp(trace: ProbedTrace) -> Tensor:
    """What LRP finds at the last block's attention: positive parts, mean over heads, the readout's row.

    Args:
        trace: The pass.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    R = trace.probe.relevances(ORIG, frozenset({"A:last"})).A[-1].clamp_min(0)
    return trace.patches(rows(trace.readout.expand(len(R), -1), R).mean(1))


def _attribution_needs(start: int, **_: object) -> Needs:
    return {"dA": slice(start, None)}


@register(
    "transformer_attribution",
    "Transformer Attribution",
    "relevance",
    cite="chefer2021transformer",
    needs=_attribution_needs,
    score="logit",
    variants={
        "script": {"start": 1},
        "bert": {"start": -1, "normalise": True},
        "stable": {"epsilon": EPSILON},
    },
    cost=lrp_pass,
)
def transformer_attribution(
    trace: ProbedTrace, *, start: int = 0, normalise: bool = False, epsilon: float = 0.0
) -> Tensor:
    """Rollout of I + the mean over heads of (dA ⊙ R_A)⁺, with R_A the relevance of attention by rules that conserve it.

    Args:
        trace: The pass, with gradients at attention.
        start: First block; negative from the end.
        normalise: Scale each row of I + (dA ⊙ R_A)⁺ to sum one, as the released code for text models does.
        epsilon: As for `lrp`.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    within("start", start, len(trace.blocks), "blocks")
    relevances = trace.probe.relevances(_stable(OURS, epsilon), frozenset({"A"})).A
    found = {id(block): R for block, R in zip(trace.blocks, relevances, strict=True)}

    def step(v: Tensor, block: Block) -> Tensor:
        return positive_rows(v, block.dA, found[id(block)]).mean(1)

    if not normalise:
        return trace.patches(flow(trace, step, trace.blocks[start:]))
    v = trace.readout.expand(trace.probe.batch, -1)
    for block in reversed(trace.blocks[start:]):
        M = (block.dA * found[id(block)]).clamp_min_(0).mean(1)
        skip = 0.0 if block.pool else 1.0
        u = v / (M.sum(-1) + skip)
        v = row(u, M) if block.pool else row(u, M) + u
    return trace.patches(v)


def _conservative_rules(gelu: str, **_: object) -> RuleSet:
    choose("gelu", gelu, ["plain", "identity"])
    return conservative(gelu)


@register(
    "conservative_lrp",
    "Conservative LRP",
    "relevance",
    cite="ali2022xai",
    signed=True,
    rules=_conservative_rules,
    cost=lrp_pass,
)
def conservative_lrp(trace: ProbedTrace, *, gelu: str = "plain", where: str = "tokens") -> Tensor:
    """Input times gradient of a graph in which attention weights and the scale of norms are constants.

    Args:
        trace: The pass.
        gelu: "plain" for the derivative of activations, "identity" for output over input, which conserves relevance.
        where: "tokens" that enter the first block, or "pixels".

    Returns:
        Relevance of patches, shape (b, S), or of pixels, shape (b, height, width), with a sign.
    """
    choose("where", where, ["tokens", "pixels"])
    return trace.probe.relevances(_conservative_rules(gelu), frozenset({where})).map(trace)


def _attnlrp_rules(
    gamma_conv: float, gamma_linear: float | None, attention: str, gamma_rule: str, text: bool = False, **_: object
) -> RuleSet:
    choose("attention", attention, ["shared", "fixed"])
    choose("gamma_rule", gamma_rule, rule_sets.GAMMA_RULES)
    gamma_linear = GAMMA_LINEAR["text" if text else "other"] if gamma_linear is None else gamma_linear
    for name, gamma in (("gamma_conv", gamma_conv), ("gamma_linear", gamma_linear)):
        if gamma < 0:
            raise OptionError(f"{name}={gamma} is negative: it says how much more some products count")
    if text and gamma_linear and gamma_rule == "plain":
        warnings.warn(
            f"attnlrp with gamma_rule='plain' and gamma_linear={gamma_linear} divides by sums that cancel, because the "
            "inputs of a text model's linear maps have both signs: its relevance grows from block to block and depends "
            "on rounding; use gamma_linear=0, as published for texts, or gamma_rule='generalised'",
            MapWarning,
            stacklevel=2,
        )
    return rule_sets.attnlrp(gamma_conv, gamma_linear, attention, gamma_rule)


@register(
    "attnlrp",
    "AttnLRP",
    "relevance",
    cite="achtibat2024attnlrp",
    signed=True,
    variants={"released": {"attention": "fixed"}, "plain": {"gamma_rule": "plain"}},
    applies=Applies(streams=True),
    rules=_attnlrp_rules,
    cost=lrp_pass,
)
def attnlrp(
    trace: ProbedTrace,
    *,
    gamma_conv: float = 0.25,
    gamma_linear: float | None = None,
    where: str = "pixels",
    attention: str = "shared",
    gamma_rule: str = "generalised",
) -> Tensor:
    """Relevance through attention as well as around it: softmax by its derivative, products halved between factors.

    Args:
        trace: The pass.
        gamma_conv: How much more products of the output's sign count in the patch embedding; 0 is the plain gradient.
        gamma_linear: The same in linear maps; None for the authors' settings, 0 for texts and 0.05 for all else.
        where: "pixels", or "tokens" for the tokens that enter the first block; a text has tokens only.
        attention: "shared" as in the paper, or "fixed": attention weights are constants, and the linear maps
            inside ``nn.MultiheadAttention`` keep their plain gradient.
        gamma_rule: "generalised" for products of the output's sign, whose sum cannot cancel; "plain" for positive
            weights whatever they meet, whose maps depend on rounding where inputs have both signs.

    Returns:
        Relevance of pixels, shape (b, height, width), or of patches, shape (b, S), with a sign.
    """
    choose("where", where, ["pixels", "tokens"])
    if trace.probe.model_inputs.image is None:
        where = "tokens"
    text = trace.probe.model_inputs.words is not None
    table = _attnlrp_rules(gamma_conv, gamma_linear, attention, gamma_rule, text)
    return trace.probe.relevances(table, frozenset({where})).map(trace)


@register(
    "abslrp",
    "absLRP",
    "relevance",
    cite="vukadin2024abslrp",
    signed=True,
    applies=Applies(excluded={"text": "it is defined on pixels, and the tokens lie on no grid of image patches"}),
    rules=lambda **_: ABSLRP,
    cost=lrp_pass,
)
def abslrp(trace: ProbedTrace) -> Tensor:
    """Relevance of the class minus relevance of all other classes alike, each brought to a total of 1 at every step.

    Args:
        trace: The pass.

    Returns:
        Relevance of pixels, shape (b, height, width), with a sign.
    """
    want = frozenset({"pixels"})
    against = trace.probe.relevances(ABSLRP, want, contrast=True)
    return trace.probe.relevances(ABSLRP, want).map(trace) - against.map(trace)
