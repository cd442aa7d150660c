"""What relevance rules compute entry by entry.

Each function is one step of a rule, written in torch. On CUDA, in single and half precision, a kernel computes the same
and reads and writes every tensor once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail import fast
from vitrail.lrp.ops import EPS, Samples, safe_divide


@fast.faster("halves")
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The positive and the negative part of x.

    Example:
        >>> halves(torch.tensor([2.0, -1.0]))
        (tensor([2., 0.]), tensor([ 0., -1.]))
    """
    return x.clamp_min(0), x.clamp_max(0)


@fast.faster("signed_parts")
def signed_parts(x: Tensor, axis: int = -1) -> Tensor:
    """The positive and the negative part of x joined along an axis.

    Args:
        x: Shape (…, m, K), or (…, K) for the last axis.
        axis: -1 for the last axis, whose length doubles, or -2 for the one before.

    Example:
        >>> signed_parts(torch.tensor([[2.0, -1.0]]))
        tensor([[ 2.,  0.,  0., -1.]])
        >>> signed_parts(torch.tensor([[2.0, -1.0]]), -2)
        tensor([[ 2.,  0.],
                [ 0., -1.]])
    """
    if axis == -2 and x.mT.is_contiguous():
        return signed_parts(x.mT).mT
    x = x.detach().contiguous()
    shape, width = list(x.shape), x.shape[axis]
    shape[axis] *= 2
    out = x.new_empty(shape)
    torch.clamp_min(x, 0, out=out.narrow(axis, 0, width))
    torch.clamp_max(x, 0, out=out.narrow(axis, width, width))
    return out


@fast.faster("signed_product")
def signed_product(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The positive part of x times one tensor plus the negative part times another.

    Example:
        >>> signed_product(torch.tensor([2.0, -1.0]), torch.tensor([3.0, 3.0]), torch.tensor([5.0, 5.0]))
        tensor([ 6., -5.])
    """
    return x.clamp_min(0).mul_(positive).addcmul_(x.clamp_max(0), negative)


@fast.faster("share", eps=EPS)
def share(R: Tensor, z: Tensor, factor: float = 1.0, safe: bool = True) -> Tensor:
    """Relevance over the sum it is shared by, and 0 where that is exactly 0, times a factor.

    Args:
        R: Relevance.
        z: The sum, in its shape.
        factor: A power of two.
        safe: False where it does not matter what the result is at 0, and z may be overwritten.
    """
    found = safe_divide(R, z) if safe else R / z.add_(EPS)
    return found if factor == 1 else found.mul_(factor)


@fast.faster("absolute_share", eps=EPS)
def absolute_share(R: Tensor, z: Tensor) -> Tensor:
    """Relevance over the size of the sum it is shared by.

    Example:
        >>> absolute_share(torch.tensor([1.0, 1.0]), torch.tensor([2.0, -4.0]))
        tensor([0.5000, 0.2500])
    """
    return R / z.abs().add_(EPS)


@fast.faster("shares", eps=EPS)
def shares(R: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """`share` of the same relevance by each of two sums."""
    return safe_divide(R, first), safe_divide(R, second)


@fast.faster("sum_shares", eps=EPS)
def sum_shares(R: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a sum, shared by its terms in proportion to them.

    Returns:
        Relevance of each term, in the shape of the sum.
    """
    S = safe_divide(R, u + v)
    return u * S, v * S


def normalised(a: Tensor, b: Tensor, R: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """Relevance of two terms scaled, in place, so that the total of R is split in the ratio of their totals."""
    sum_a, sum_b, total = (samples.total(t) for t in (a, b, R))
    both = sum_a.abs() + sum_b.abs()
    a *= safe_divide(safe_divide(sum_a.abs(), both) * total, sum_a)
    b *= safe_divide(safe_divide(sum_b.abs(), both) * total, sum_b)
    return a, b


@fast.faster("sum_shares_normalised", eps=EPS)
def sum_shares_normalised(R: Tensor, u: Tensor, v: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """`sum_shares`, then `normalised`."""
    return normalised(*sum_shares(R, u, v), R, samples)


@fast.faster("sum_shares_absolute", eps=EPS)
def sum_shares_absolute(R: Tensor, u: Tensor, v: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """The positive part of each term over the size of their sum, times relevance, brought to a total of 1 each.

    Args:
        R: Relevance of u + v.
        u: First term.
        v: Second term; both broadcast to the sum.
        samples: Where the batch lies.

    Returns:
        Relevance of each term, in its own shape.
    """
    S = absolute_share(R, u + v)
    return unit((u.clamp_min(0) * S).sum_to_size(u.shape), samples), unit(
        (v.clamp_min(0) * S).sum_to_size(v.shape), samples
    )


@fast.faster("unit")
def unit(t: Tensor, samples: Samples) -> Tensor:
    """Each input divided by its sum of absolute values, in place; zeros stay zeros."""
    return samples.unit(t)


@fast.faster("signed_unit")
def signed_unit(x: Tensor, positive: Tensor, negative: Tensor, samples: Samples) -> Tensor:
    """`signed_product`, brought to a total of 1."""
    return unit(signed_product(x, positive, negative), samples)


@fast.faster("positive_unit")
def positive_unit(x: Tensor, factor: Tensor, samples: Samples) -> Tensor:
    """The positive part of x times a factor, brought to a total of 1."""
    return unit(x.clamp_min(0) * factor, samples)


@fast.faster("norm_unit", eps=EPS)
def norm_unit(R: Tensor, x: Tensor, y: Tensor, gain: Tensor | None, scale: Tensor, samples: Samples) -> Tensor:
    """The positive part of x·gain/scale over the size of y, times relevance, brought to a total of 1.

    Args:
        R: Relevance of y.
        x: Input of a norm, shape (…, d).
        y: Its result.
        gain: Its gain, or None.
        scale: What it divides by, in a shape that broadcasts to x.
        samples: Where the batch lies.
    """
    part = (x if gain is None else x * gain) / scale
    return unit(part.clamp_min(0) / (y.abs() + EPS) * R, samples)


@fast.faster("positive_rows")
def positive_rows(v: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """A row vector times the positive part of the product, entry by entry, of two matrices for each head.

    Args:
        v: Shape (b, m).
        one: Shape (b, H, m, n).
        two: The same.

    Returns:
        Shape (b, H, n).

    Example:
        >>> v, one = torch.tensor([[1.0, 2.0]]), torch.tensor([[[[1.0, -1.0], [1.0, 1.0]]]])
        >>> positive_rows(v, one, torch.ones(1, 1, 2, 2))
        tensor([[[3., 2.]]])
    """
    return (v[:, None, None, :] @ (one * two).clamp_min_(0)).squeeze(-2)
