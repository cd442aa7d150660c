"""Rule sets: tables from the names of operations to their relevance rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from torch import Tensor

from vitrail.lrp.rules import (
    Rule,
    add_absolute,
    add_normalised,
    add_plain,
    attention_fixed,
    attention_halved,
    constant,
    fixed_scale,
    gamma_generalised,
    gamma_rule,
    gradient_halved,
    identity,
    linear_absolute,
    linear_joint,
    linear_split,
    mean_absolute,
    mean_positive,
    norm_absolute,
    output_over_input,
    pixels_bounded,
    product_absolute,
    product_halved,
    to_both,
    to_first,
    unchanged,
)


@dataclass(frozen=True, eq=False)  # a table is itself alone, and can be a key
class RuleSet:
    """A table of rules.

    Attributes:
        name: What it is called.
        rules: From an operation's name to its rule. Names: "linear", "conv", "pixels" (a convolution of the image),
            "inner" (a linear map inside ``nn.MultiheadAttention``, or values weighed by attention that is held fixed;
            as "linear" where the table does not say), "matmul", "gate" (a product entry by entry), "add", "position"
            (a sum with something that does not depend on the input), "heads" (two heads' scores), "turn" (rotary
            position), "scale", "shift", "norm", "activation", "sigmoid", "softmax", "mean" (over tokens).
        gradient: Whether a changed gradient is carried, so that relevance is input times gradient.
        fused: From queries, keys and values to those with which the ordinary gradient of the fused attention function
            is what the rules give, or None where there are none.
        supports_bfloat16: Whether the rules are safe in half precision: nothing they divide by can cancel, so the ranks
            of a map stay where matrix products take operands in bfloat16 (`benchmarks/run.py precision` measures it).
        reads_weights: Whether the rules need the weights of linear maps; always unless ``gradient``.
    """

    name: str
    rules: Mapping[str, Rule]
    gradient: bool = False
    fused: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    supports_bfloat16: bool = False
    reads_weights: bool = False


_PASSED: dict[str, Rule] = {
    **dict.fromkeys(("norm", "activation", "softmax", "scale", "shift"), identity),
    "sigmoid": identity, "heads": to_both, "turn": to_first,
}  # fmt: skip

_CHEFER: dict[str, Rule] = _PASSED | {
    "conv": linear_split, "pixels": pixels_bounded, "matmul": product_halved, "gate": product_halved,
    "mean": mean_positive, "turn": add_plain,
}  # fmt: skip

#: The rules of Transformer Attribution: totals stay.
OURS = RuleSet("ours", _CHEFER | {"linear": linear_joint, "add": add_normalised, "position": add_normalised})

#: The rules LRP and partial LRP were measured with: totals double at every linear map and grow at sums.
ORIG = RuleSet("orig", _CHEFER | {"linear": linear_split, "add": add_plain, "position": add_plain})

#: The rules of absLRP: every operation brings each of its inputs to a total of 1.
ABSLRP = RuleSet("abslrp", _PASSED | {
    **dict.fromkeys(("linear", "conv", "pixels"), linear_absolute), "matmul": product_absolute,
    "gate": product_absolute, "add": add_absolute, "position": add_absolute, "norm": norm_absolute,
    "mean": mean_absolute,
})  # fmt: skip


@cache  # so that whoever asks for the same rules gets the same table
def stable(rules: RuleSet, epsilon: float) -> RuleSet:
    """The rules with sums of both signs moved away from zero before relevance is divided by them.

    Where such a sum cancels, its inputs get a multiple of its relevance, and rounding decides which. Sums of products
    of one sign do not cancel and stay as they are.

    Args:
        rules: `OURS` or `ORIG`.
        epsilon: How far, as a share of the root mean square of an operation's result for an input; 0 for not at all.
    """
    cancelling = ("matmul", "gate", "add", "position")
    moved = {name: partial(rules.rules[name], epsilon=epsilon) for name in cancelling}
    return rules if epsilon == 0 else RuleSet(f"{rules.name}, epsilon {epsilon}", {**rules.rules, **moved})


@cache
def conservative(gelu: str = "plain") -> RuleSet:
    """Gradients with attention and the scale of norms held fixed.

    Args:
        gelu: "plain" for the derivative of activations, "identity" for output over input.
    """
    rules: dict[str, Rule] = {"softmax": constant, "norm": fixed_scale, "gate": gradient_halved}
    if gelu == "identity":
        rules |= {"activation": output_over_input, "sigmoid": identity}
    return RuleSet("conservative", rules, gradient=True, fused=attention_fixed, supports_bfloat16=True)


#: The forms of the gamma rule.
GAMMA_RULES = {"plain": gamma_rule, "generalised": gamma_generalised}


@cache
def attnlrp(
    gamma_conv: float = 0.25, gamma_linear: float = 0.05, attention: str = "shared", form: str = "generalised"
) -> RuleSet:
    """Gradients with the scale of norms held fixed, activations as factors, and the gamma rule in linear maps.

    Args:
        gamma_conv: How much more the products that the rule raises count in the patch embedding.
        gamma_linear: The same in linear maps.
        attention: "shared" for products shared by their factors, "fixed" for attention weights that are constants and
            the plain gradient inside ``nn.MultiheadAttention``.
        form: A key of ``GAMMA_RULES``.
    """
    gamma = GAMMA_RULES[form]
    convolved = gamma(gamma_conv)
    rules: dict[str, Rule] = {
        "linear": gamma(gamma_linear), "conv": convolved, "pixels": convolved, "gate": gradient_halved,
        "norm": fixed_scale, "activation": output_over_input, "sigmoid": identity,
    }  # fmt: skip
    within: dict[str, Rule] = {"softmax": constant, "inner": unchanged}
    fixed = attention == "fixed"
    return RuleSet(
        "attnlrp", rules | (within if fixed else {"matmul": gradient_halved}), gradient=True,
        fused=attention_fixed if fixed else attention_halved, supports_bfloat16=form == "generalised",
        reads_weights=gamma_linear != 0,
    )  # fmt: skip
