"""Relevance rules: what each operation does with relevance in the backward pass.

A rule is a function of an operation and its inputs. It computes what the operation computes and puts into the graph
another backward: one that carries relevance instead of the gradient, or a changed gradient. A rule set is a table from
the operation's name to its rule; an operation that is not in the table keeps its ordinary gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from vitrail.lrp.half import HALF, activation_share, gamma_gradient, gamma_shares, norm_gradient
from vitrail.lrp.ops import (
    EPS,
    Linear,
    Mean,
    Norm,
    Plain,
    Product,
    Samples,
    Sum,
    safe_divide,
    stabilised,
    with_backward,
    with_backward_of_result,
)

EPS_ACTIVATION = 1e-10
EPS_GAMMA = 1e-6
EPS_INPUT = 1e-10

Rule = Callable[..., Tensor]


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
        half: Whether the rules are safe in half precision: nothing they divide by can cancel, so the ranks of a map
            stay where matrix products take operands in bfloat16 (`benchmarks/precision.py` measures it).
    """

    name: str
    rules: Mapping[str, Rule]
    gradient: bool = False
    fused: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    half: bool = False


# -- one input ---------------------------------------------------------------------------------------------------


def identity(op: Plain | Norm, x: Tensor) -> Tensor:
    """Relevance passes as it is."""
    shape, dtype = x.shape, x.dtype
    return with_backward(op.run, lambda R: (R.sum_to_size(shape).to(dtype),), (), x)


def constant(op: Plain, x: Tensor) -> Tensor:
    """Nothing passes."""
    return op.run(x).detach()


def output_over_input(op: Plain, x: Tensor) -> Tensor:
    """An activation f as the factor f(x)/x instead of its derivative."""
    if x.dtype in HALF:
        return with_backward_of_result(op.run, lambda R, x, y: activation_share(R, x, y, EPS_ACTIVATION), x)
    return with_backward(op.run, lambda R, x: (R * op.run(x) / (x + EPS_ACTIVATION),), (x,), x)


def fixed_scale(op: Norm, x: Tensor) -> Tensor:
    """The gradient of a norm whose scale is a constant; its mean is not."""

    def back(R: Tensor, scale: Tensor) -> tuple[Tensor]:
        if op.half and op.dims == (-1,):
            return (norm_gradient(R, op.gain, scale, op.centred),)
        G = (R if op.gain is None else R * op.gain) / scale
        return (G - G.mean(op.dims, keepdim=True) if op.centred else G,)

    return with_backward(op.run, back, (op.scale(x.detach()),), x)


def norm_absolute(op: Norm, x: Tensor) -> Tensor:
    """The positive part of x·gain/scale over |y|, brought to a total of 1."""

    def back(R: Tensor, x: Tensor) -> tuple[Tensor]:
        share = (x if op.gain is None else x * op.gain) / op.scale(x)
        return (op.samples.unit(share.clamp_min(0) / (op.run(x).abs() + EPS) * R),)

    return with_backward(op.run, back, (x,), x)


def mean_positive(op: Mean, x: Tensor) -> Tensor:
    """The mean over tokens: each gets the share of its positive part, entry by entry."""
    return with_backward(op.run, lambda R, x: (_spread(op, R, x),), (x,), x)


def mean_absolute(op: Mean, x: Tensor) -> Tensor:
    """The same, brought to a total of 1."""
    return with_backward(op.run, lambda R, x: (op.samples.unit(_spread(op, R, x)),), (x,), x)


def _spread(op: Mean, R: Tensor, x: Tensor) -> Tensor:
    positive = x.clamp_min(0)
    if not op.keepdim:
        for dim in sorted(d % x.dim() for d in op.dims):
            R = R.unsqueeze(dim)
    return safe_divide(positive, positive.sum(op.dims, keepdim=True).expand_as(x)) * R


# -- linear maps -------------------------------------------------------------------------------------------------


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clamp_min(0), x.clamp_max(0)


def linear_joint(op: Linear, x: Tensor) -> Tensor:
    """Relevance to products that are not negative, normalised by all of them together: totals stay."""

    def back(R: Tensor, x: Tensor) -> tuple[Tensor]:
        (xp, xn), (wp, wn) = _halves(x), _halves(op.weight)
        # Where the sum is 0 all its products are, and whatever S is there meets none of them: no need to be safe.
        S = R / op.apply(xp, wp).add_(op.apply(xn, wn)).add_(EPS)
        return (xp.mul_(op.adjoint(S, wp)).addcmul_(xn, op.adjoint(S, wn)),)

    return with_backward(op.run, back, (x,), x)


def linear_split(op: Linear, x: Tensor) -> Tensor:
    """Positive and negative inputs are normalised each on their own: totals double."""

    def back(R: Tensor, x: Tensor) -> tuple[Tensor]:
        (xp, xn), (wp, wn) = _halves(x), _halves(op.weight)
        plus = op.adjoint(safe_divide(R, op.apply(xp, wp)), wp)
        return (xp.mul_(plus).addcmul_(xn, op.adjoint(safe_divide(R, op.apply(xn, wn)), wn)),)

    return with_backward(op.run, back, (x,), x)


def linear_absolute(op: Linear, x: Tensor) -> Tensor:
    """Relevance to positive products over |y|, bias included, brought to a total of 1."""

    def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
        (xp, xn), (wp, wn) = _halves(x), _halves(op.weight)
        S = R / y.abs().add_(EPS)
        return op.samples.unit(xp.mul_(op.adjoint(S, wp)).addcmul_(xn, op.adjoint(S, wn)))

    return with_backward_of_result(op.run, back, x)


def pixels_bounded(op: Linear, x: Tensor) -> Tensor:
    """The zᴮ rule for pixels between the smallest and the largest number of their image; the bias is left out."""

    def back(R: Tensor, x: Tensor) -> tuple[Tensor]:
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        wp, wn = _halves(op.weight)
        ones = torch.ones_like(x[:1])
        Z = op.apply(x, op.weight) - low * op.apply(ones, wp) - high * op.apply(ones, wn)
        S = R / (Z + EPS)
        return (x * op.adjoint(S, op.weight) - low * op.adjoint(S, wp) - high * op.adjoint(S, wn),)

    return with_backward(op.run, back, (x,), x)


def gamma_rule(gamma: float) -> Rule:
    """Positive weights count 1 + gamma times; written as a gradient, so it is multiplied by y and divided by x."""

    def rule(op: Linear, x: Tensor) -> Tensor:
        if gamma == 0:
            return op.run(x)
        weight = op.weight

        def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
            wp = weight.clamp_min(0)
            z = y + gamma * op.apply(x, wp)
            if op.bias is not None:
                z = z + gamma * op.bias.clamp_min(0)
            return x * op.adjoint(R * y / stabilised(z), weight + gamma * wp) / stabilised(x)

        return with_backward_of_result(op.run, back, x)

    return rule


def gamma_generalised(gamma: float) -> Rule:
    """Products of the output's own sign count 1 + gamma times, so no divisor is smaller than its output."""

    def rule(op: Linear, x: Tensor) -> Tensor:
        if gamma == 0:
            return op.run(x)

        def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
            if x.dtype in HALF:
                size = op.weight.abs()
                one, two = gamma_shares(R, y, op.apply(x.abs(), size), op.bias, gamma, EPS_GAMMA)
                return gamma_gradient(x, op.adjoint(one, op.weight), op.adjoint(two, size), gamma, EPS_INPUT)
            # Sums of the products of either sign, from the sum of all and that of their sizes: raised is the positive
            # ones, y - raised the negative ones, and only the larger of the two is ever used, in which nothing cancels.
            size = op.weight.abs()
            raised = op.apply(x.abs(), size).add_(y)
            if op.bias is not None:
                raised += op.bias.abs()
            raised *= 0.5
            z = torch.where(y > 0, raised, y - raised).mul_(gamma).add_(y)
            S = R * y / stabilised(z, EPS_GAMMA)
            G = op.adjoint(S, op.weight)
            same = op.adjoint(S * y.sign(), size).add_(G).mul_(0.5)
            G = torch.where(x > 0, same, G - same).mul_(gamma).add_(G)
            return x * G / stabilised(x, EPS_INPUT)

        return with_backward_of_result(op.run, back, x)

    return rule


def unchanged(op: Linear, x: Tensor) -> Tensor:
    """The ordinary gradient, where a table must say so."""
    return op.run(x)


# -- two inputs --------------------------------------------------------------------------------------------------


def _over_sums(R: Tensor, z: Tensor, samples: Samples, epsilon: float) -> Tensor:
    """R over sums of both signs, which are moved away from zero by a share of their root mean square."""
    if epsilon == 0:
        return safe_divide(R, z)
    return R / stabilised(z, (epsilon * samples.root_mean_square(z)).clamp_min_(EPS))


def product_halved(op: Product, u: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """Each factor gets its share of every product, and half of it."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        S = _over_sums(R, op.run(u, v), op.samples, epsilon).mul_(0.5)
        return u * op.left(S, v), v * op.right(S, u)

    return with_backward(op.run, back, (u, v), u, v)


def product_absolute(op: Product, u: Tensor, v: Tensor) -> Tensor:
    """Each factor gets its share of the positive products over |z|, brought to a total of 1."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        S = R / (op.run(u, v).abs() + EPS)
        (up, un), (vp, vn) = _halves(u), _halves(v)
        shares = op.left(S, vp), op.left(S, vn), op.right(S, up), op.right(S, un)
        to_u = up.mul_(shares[0]).addcmul_(un, shares[1])
        to_v = vp.mul_(shares[2]).addcmul_(vn, shares[3])
        return op.samples.unit(to_u), op.samples.unit(to_v)

    return with_backward(op.run, back, (u, v), u, v)


def gradient_halved(op: Product, u: Tensor, v: Tensor) -> Tensor:
    """The gradient, half of it: input times gradient would count a product once for each factor."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return op.left(R / 2, v), op.right(R / 2, u)

    return with_backward(op.run, back, (u, v), u, v)


def attention_fixed(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention weights are constants: only the values get a gradient."""
    return Q.detach(), K.detach(), V


def attention_halved(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both products of an attention halve the gradient: values get half of it, queries and keys a quarter."""
    return _scaled_gradient(Q, 0.25), _scaled_gradient(K, 0.25), _scaled_gradient(V, 0.5)


def _scaled_gradient(x: Tensor, factor: float) -> Tensor:
    return with_backward(lambda x: x.view_as(x), lambda R: (R * factor,), (), x)


def _shares(op: Sum, R: Tensor, u: Tensor, v: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    S = _over_sums(R, op.run(u, v), op.samples, epsilon)
    if op.constant:  # a masked entry has no relevance, and 0 times infinity is none either
        v = v.masked_fill(v.isinf(), 0.0)
    return u * S, v * S


def add_plain(op: Sum, u: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """Entry by entry in proportion to the terms; large where they cancel."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _shares(op, R, u, v, epsilon)
        return a.sum_to_size(u.shape), b.sum_to_size(v.shape)

    return with_backward(op.run, back, (u, v), u, v)


def add_normalised(op: Sum, u: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """The same, then each side is scaled so that the input's total is split in the ratio of the sides' totals."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _shares(op, R, u, v, epsilon)
        sum_a, sum_b, total = (op.samples.total(t) for t in (a, b, R))
        both = sum_a.abs() + sum_b.abs()
        a *= safe_divide(safe_divide(sum_a.abs(), both) * total, sum_a)
        b *= safe_divide(safe_divide(sum_b.abs(), both) * total, sum_b)
        return a.sum_to_size(u.shape), b.sum_to_size(v.shape)

    return with_backward(op.run, back, (u, v), u, v)


def add_absolute(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """Each term gets its positive part over |z|, brought to a total of 1."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        S = R / (op.run(u, v).abs() + EPS)
        a = op.samples.unit((u.clamp_min(0) * S).sum_to_size(u.shape))
        return a, None if op.constant else op.samples.unit((v.clamp_min(0) * S).sum_to_size(v.shape))

    return with_backward(op.run, back, (u, v), u, v)


def to_both(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """Half to either term: two heads that are averaged."""
    return with_backward(op.run, lambda R: (R / 2, R / 2), (), u, v)


def to_first(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """All to the first term: a rotation, written as what stays plus what is mixed in."""
    return with_backward(op.run, lambda R: (R, None), (), u, v)


# -- tables ------------------------------------------------------------------------------------------------------

_PASSED: dict[str, Rule] = {
    **dict.fromkeys(("norm", "activation", "softmax", "scale", "shift"), identity),
    "sigmoid": constant, "heads": to_both, "turn": to_first,
}  # fmt: skip

_CHEFER: dict[str, Rule] = _PASSED | {
    "conv": linear_split, "pixels": pixels_bounded, "matmul": product_halved, "gate": product_halved,
    "mean": mean_positive,
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
        rules |= {"activation": output_over_input, "sigmoid": constant}
    return RuleSet("conservative", rules, gradient=True, fused=attention_fixed, half=True)


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
        "norm": fixed_scale, "activation": output_over_input, "sigmoid": constant,
    }  # fmt: skip
    within: dict[str, Rule] = {"softmax": constant, "inner": unchanged}
    fixed = attention == "fixed"
    return RuleSet(
        "attnlrp", rules | (within if fixed else {"matmul": gradient_halved}), gradient=True,
        fused=attention_fixed if fixed else attention_halved, half=form == "generalised",
    )  # fmt: skip
