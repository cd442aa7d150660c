"""AttnLRP: input times gradient with products shared by their factors and the gamma rule in linear maps."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.errors import OptionError
from vitrail.lrp import rules
from vitrail.methods.registry import choose, register


@register("attnlrp", "AttnLRP", "relevance", needs={}, class_specific=True, cite="achtibat2024attnlrp",
          signed=True, variants={"released": {"attention": "fixed"}, "plain": {"gamma_rule": "plain"}})  # fmt: skip
def attnlrp(
    trace: Trace,
    probe: Probe,
    *,
    gamma_conv: float = 0.25,
    gamma_linear: float = 0.05,
    where: str = "pixels",
    attention: str = "shared",
    gamma_rule: str = "generalised",
) -> Tensor:
    """Relevance through attention as well as around it: softmax by its derivative, products halved between factors.

    Args:
        trace: The pass.
        probe: The model, to propagate through.
        gamma_conv: How much more products of the output's sign count in the patch embedding; 0 is the plain gradient.
        gamma_linear: The same in linear maps.
        where: "pixels", or "tokens" for the tokens that enter the first block; a text has tokens only.
        attention: "shared" as in the paper, or "fixed": attention weights are constants, and the linear maps
            inside ``nn.MultiheadAttention`` keep their plain gradient.
        gamma_rule: "generalised" for products of the output's sign, whose sum cannot cancel; "plain" for positive
            weights whatever they meet, whose maps depend on rounding where inputs have both signs.

    Returns:
        Relevance of pixels, shape (b, height, width), or of patches, shape (b, S), with a sign.
    """
    choose("where", where, ["pixels", "tokens"])
    choose("attention", attention, ["shared", "fixed"])
    choose("gamma_rule", gamma_rule, rules.GAMMA_RULES)
    for name, gamma in (("gamma_conv", gamma_conv), ("gamma_linear", gamma_linear)):
        if gamma < 0:
            raise OptionError(f"{name}={gamma} is negative: it says how much more some products count")
    if probe.model_inputs.image is None:
        where = "tokens"
    table = rules.attnlrp(gamma_conv, gamma_linear, attention, gamma_rule)
    return probe.relevances(table, frozenset({where})).map(trace)
