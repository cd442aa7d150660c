"""Relevance rules: what each operation does with relevance in the backward pass.

A rule is a function of an operation and its inputs. It computes what the operation computes and puts into the graph
another backward: one that carries relevance instead of the gradient, or a changed gradient. A rule set is a table from
the operation's name to its rule; an operation that is not in the table keeps its ordinary gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.lrp.elementwise import (
    absolute_share,
    halves,
    norm_unit,
    normalised,
    positive_unit,
    share,
    shares,
    signed_parts,
    signed_product,
    signed_unit,
    sum_shares,
    sum_shares_absolute,
    sum_shares_normalised,
    unit,
)  # fmt: skip
from vitrail.lrp.elementwise_gradients import activation_share, gamma_gradient, gamma_shares, norm_gradient
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
    with_scaled_gradients,
)
from vitrail.lrp.relevant_rows import on_relevant_rows

EPS_ACTIVATION = 1e-10
EPS_GAMMA = 1e-6
EPS_INPUT = 1e-10

Rule = Callable[..., Tensor]


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
    return with_backward_of_result(op.run, lambda R, x, y: activation_share(R, x, y, EPS_ACTIVATION), x)


def fixed_scale(op: Norm, x: Tensor) -> Tensor:
    """The gradient of a norm whose scale is a constant; its mean is not."""

    def back(R: Tensor, scale: Tensor) -> tuple[Tensor]:
        if op.dims == (-1,):
            return (norm_gradient(R, op.gain, scale, op.centred),)
        G = (R if op.gain is None else R * op.gain) / scale
        return (G - G.mean(op.dims, keepdim=True) if op.centred else G,)

    return with_backward(op.run, back, (op.scale(x.detach()),), x)


def norm_absolute(op: Norm, x: Tensor) -> Tensor:
    """The positive part of x·gain/scale over |y|, brought to a total of 1."""

    def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return norm_unit(R, x, y, op.gain, op.scale(x), op.samples)

    return with_backward_of_result(op.run, back, x)


def mean_positive(op: Mean, x: Tensor) -> Tensor:
    """The mean over tokens: each gets the share of its positive part, entry by entry."""
    return with_backward(op.run, lambda R, x: (_spread(op, R, x),), (x,), x)


def mean_absolute(op: Mean, x: Tensor) -> Tensor:
    """The same, brought to a total of 1."""
    return with_backward(op.run, lambda R, x: (unit(_spread(op, R, x), op.samples),), (x,), x)


def _spread(op: Mean, R: Tensor, x: Tensor) -> Tensor:
    positive = x.clamp_min(0)
    if not op.keepdim:
        for dim in sorted(d % x.dim() for d in op.dims):
            R = R.unsqueeze(dim)
    return safe_divide(positive, positive.sum(op.dims, keepdim=True).expand_as(x)) * R


# -- linear maps -------------------------------------------------------------------------------------------------


def _positive_sums(op: Linear, x: Tensor, y: Tensor) -> Tensor:
    """Sums of the products that are not negative, x⁺W⁺ + x⁻W⁻.

    Half of |x||W|, the sum of all sizes, and of xW, the sum of all products, which is known: one matrix product, not
    two. What rounding leaves below zero is cut off.
    """
    total = op.apply(x.abs(), op.weight.abs()).add_(y)
    if op.bias is not None:
        total.sub_(op.bias)
    return total.mul_(0.5).clamp_min_(0)


def _both_adjoints(op: Linear, S: Tensor, parts: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """SW⁺ᵀ, which positive inputs are multiplied with, and SW⁻ᵀ, for negative ones."""
    if isinstance(parts, Tensor):
        return _two(op.adjoint(S, parts), -1)
    return op.adjoint(S, parts[0]), op.adjoint(S, parts[1])


def _two(t: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The two tensors that are joined along an axis."""
    first, second = t.chunk(2, axis)
    return first, second


def _weight_parts(op: Linear) -> Tensor | tuple[Tensor, Tensor]:
    """W⁺ and W⁻, side by side where one product can take both."""
    return signed_parts(op.weight) if op.rows else halves(op.weight)


def linear_joint(op: Linear, x: Tensor) -> Tensor:
    """Relevance to products that are not negative, normalised by all of them together: totals stay."""

    def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
        # Where the sum is 0 all its products are, and whatever S is there meets none of them: no need to be safe.
        S = share(R, _positive_sums(op, x, y), safe=False)
        return signed_product(x, *_both_adjoints(op, S, _weight_parts(op)))

    return with_backward_of_result(op.run, on_relevant_rows(op, back), x)


def linear_split(op: Linear, x: Tensor) -> Tensor:
    """Positive and negative inputs are normalised each on their own: totals double."""

    def back(R: Tensor, x: Tensor) -> Tensor:
        (xp, xn), (wp, wn) = halves(x), halves(op.weight)
        plus, minus = shares(R, op.apply(xp, wp), op.apply(xn, wn))
        return signed_product(x, op.adjoint(plus, wp), op.adjoint(minus, wn))

    reduced = on_relevant_rows(op, back)
    return with_backward(op.run, lambda R, x: (reduced(R, x),), (x,), x)


def linear_absolute(op: Linear, x: Tensor) -> Tensor:
    """Relevance to positive products over |y|, bias included, brought to a total of 1."""

    def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return signed_unit(x, *_both_adjoints(op, absolute_share(R, y), _weight_parts(op)), op.samples)

    return with_backward_of_result(op.run, back, x)


def pixels_bounded(op: Linear, x: Tensor) -> Tensor:
    """The zᴮ rule for pixels between the smallest and the largest number of their image; the bias is left out."""

    def back(R: Tensor, x: Tensor) -> tuple[Tensor]:
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        wp, wn = halves(op.weight)
        ones = torch.ones_like(x[:1])
        Z = op.apply(x, op.weight) - low * op.apply(ones, wp) - high * op.apply(ones, wn)
        S = R / (Z + EPS)
        return ((x - low).mul_(op.adjoint(S, wp)).addcmul_(x - high, op.adjoint(S, wn)),)

    return with_backward(op.run, back, (x,), x)


def gamma_rule(gamma: float) -> Rule:
    """Positive weights count 1 + gamma times; written as a gradient, so it is multiplied by y and divided by x."""

    def rule(op: Linear, x: Tensor) -> Tensor:
        weight = op.weight

        def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
            wp = weight.clamp_min(0)
            z = y + gamma * op.apply(x, wp)
            if op.bias is not None:
                z = z + gamma * op.bias.clamp_min(0)
            return x * op.adjoint(R * y / stabilised(z), weight + gamma * wp) / stabilised(x)

        return with_backward_of_result(op.run, back, x)

    return unchanged if gamma == 0 else rule


def gamma_generalised(gamma: float) -> Rule:
    """Products of the output's own sign count 1 + gamma times, so no divisor is smaller than its output."""

    def rule(op: Linear, x: Tensor) -> Tensor:
        def back(R: Tensor, x: Tensor, y: Tensor) -> Tensor:
            size = op.weight.abs()
            one, two = gamma_shares(R, y, op.apply(x.abs(), size), op.bias, gamma, EPS_GAMMA)
            return gamma_gradient(x, op.adjoint(one, op.weight), op.adjoint(two, size), gamma, EPS_INPUT)

        return with_backward_of_result(op.run, on_relevant_rows(op, back), x)

    return unchanged if gamma == 0 else rule


def unchanged(op: Linear, x: Tensor) -> Tensor:
    """The ordinary gradient, where a table must say so."""
    return op.run(x)


# -- two inputs --------------------------------------------------------------------------------------------------


def _over_sums(R: Tensor, z: Tensor, samples: Samples, epsilon: float, factor: float = 1.0) -> Tensor:
    """R over sums of both signs, which are moved away from zero by a share of their root mean square."""
    if epsilon == 0:
        return share(R, z, factor)
    return (R / stabilised(z, (epsilon * samples.root_mean_square(z)).clamp_min_(EPS))).mul_(factor)


def product_halved(op: Product, u: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """Each factor gets its share of every product, and half of it."""

    def back(R: Tensor, u: Tensor, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        S = _over_sums(R, z, op.samples, epsilon, 0.5)
        return u * op.left(S, v), v * op.right(S, u)

    return with_backward_of_result(op.run, back, u, v)


def product_absolute(op: Product, u: Tensor, v: Tensor) -> Tensor:
    """Each factor gets its share of the positive products over |z|, brought to a total of 1."""

    def back(R: Tensor, u: Tensor, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        S = absolute_share(R, z)
        if op.positive:
            to_u = positive_unit(u, op.left(S, v.clamp_min(0)), op.samples)
            return to_u, positive_unit(v, op.right(S, u), op.samples)
        if op.matrices:
            left, right = op.left(S, signed_parts(v, -2)), op.right(S, signed_parts(u))
            to_u = signed_unit(u, *_two(left, -1), op.samples)
            return to_u, signed_unit(v, *_two(right, -2), op.samples)
        (up, un), (vp, vn) = halves(u), halves(v)
        to_u = signed_unit(u, op.left(S, vp), op.left(S, vn), op.samples)
        return to_u, signed_unit(v, op.right(S, up), op.right(S, un), op.samples)

    return with_backward_of_result(op.run, back, u, v)


def gradient_halved(op: Product, u: Tensor, v: Tensor) -> Tensor:
    """The gradient, half of it: input times gradient would count a product once for each factor."""
    if op.run is torch.mul:
        out = op.run(u, v)
        out.register_hook(_half)  # type: ignore[no-untyped-call]  # takes half of the time of a backward of our own
        return out

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if R.numel() <= u.numel() + v.numel():  # what is smaller is halved
            half = R / 2
            return op.left(half, v), op.right(half, u)
        return op.left(R, v).div_(2), op.right(R, u).div_(2)

    return with_backward(op.run, back, (u, v), u, v)


def _half(R: Tensor) -> Tensor:
    return R / 2


def attention_fixed(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention weights are constants: only the values get a gradient."""
    return Q.detach(), K.detach(), V


def attention_halved(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both products of an attention halve the gradient: values get half of it, queries and keys a quarter."""
    return with_scaled_gradients((0.25, 0.25, 0.5), Q, K, V)  # type: ignore[return-value]


def _shares(op: Sum, R: Tensor, u: Tensor, v: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    if epsilon == 0 and not op.constant:
        return sum_shares(R, u, v)
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
        if epsilon == 0 and not op.constant:
            a, b = sum_shares_normalised(R, u, v, op.samples)
        else:
            a, b = normalised(*_shares(op, R, u, v, epsilon), R, op.samples)
        return a.sum_to_size(u.shape), b.sum_to_size(v.shape)

    return with_backward(op.run, back, (u, v), u, v)


def add_absolute(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """Each term gets its positive part over |z|, brought to a total of 1."""

    def back(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        if not op.constant:
            return sum_shares_absolute(R, u, v, op.samples)
        S = absolute_share(R, op.run(u, v))
        return unit((u.clamp_min(0) * S).sum_to_size(u.shape), op.samples), None

    return with_backward(op.run, back, (u, v), u, v)


def to_both(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """Half to either term: two heads that are averaged."""
    return with_backward(op.run, lambda R: (R / 2, R / 2), (), u, v)


def to_first(op: Sum, u: Tensor, v: Tensor) -> Tensor:
    """All to the first term: a rotation, written as what stays plus what is mixed in."""
    return with_backward(op.run, lambda R: (R, None), (), u, v)
