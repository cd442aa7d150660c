"""What rules that carry gradients compute entry by entry: the gamma rule, activations and norms.

In half precision, matrix products take operands in bfloat16, the precision of the weights, and add up in single
precision. The residual stream, norms and softmax stay in single precision, and so does what is computed here. On CUDA
that is done by kernels, which write no intermediate results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail import fast


def _wide(t: Tensor) -> Tensor:
    """A tensor in single precision or more."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


@fast.faster("gamma_shares")
def gamma_shares(
    R: Tensor, y: Tensor, size: Tensor, bias: Tensor | None, gamma: float, eps: float
) -> tuple[Tensor, Tensor]:
    """What the generalised gamma rule hands down from a linear map, for its weights and for their absolute values.

    With P the sum of the absolute products, those of y's sign add up to (y + sign(y)·P)/2, so that y over the raised
    sum z is |y| / ((1 + gamma/2)·|y| + gamma/2·P), in which nothing cancels.

    Args:
        R: Gradient at the result, shape (…, outputs).
        y: The result.
        size: P without the bias.
        bias: Bias in a shape that broadcasts to y, or None.
        gamma: How much more products of the result's sign count.
        eps: Added to the divisor.

    Returns:
        R·y/z and R·|y|/z, in y's precision.
    """
    total = _wide(size) if bias is None else size + _wide(bias.abs())
    wide = _wide(y)
    length = wide.abs()
    # Not by add's alpha or addcmul's value, which refuse a gamma beyond float32; it gives a map that is not finite.
    share = R / length.mul(1 + gamma / 2).add_(total.mul(gamma / 2)).add_(eps)
    return length.mul_(share).to(y.dtype), share.mul_(wide).to(y.dtype)


@fast.faster("gamma_gradient")
def gamma_gradient(x: Tensor, G: Tensor, H: Tensor, gamma: float, eps: float) -> Tensor:
    """The gradient at the input of a linear map, from the two products with what `gamma_shares` returns.

    Args:
        x: The input.
        G: The first share times the weights, in the shape of x.
        H: The second share times the absolute weights.
        gamma: As there.
        eps: Added to the size of x, by which the result is divided after it was multiplied by it.

    Example:
        >>> x, G, H = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 3.0, 3.0])
        >>> gamma_gradient(x, G, H, 0.5, 0.0).nan_to_num()
        tensor([2.0000, 0.5000, 0.0000])
    """
    wide = _wide(x)
    total = (_wide(G) * (1 + gamma / 2)).add_((wide.sign() * _wide(H)).mul_(gamma / 2))
    size = wide.abs()
    return total.mul_(size / (size + eps)).to(x.dtype)


@fast.faster("activation_share")
def activation_share(R: Tensor, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """R·y/x, for an activation from x to y."""
    return (_wide(R) * y).div_(_wide(x) + eps).to(x.dtype)


@fast.faster("norm_gradient")
def norm_gradient(R: Tensor, gain: Tensor | None, scale: Tensor, centred: bool) -> Tensor:
    """The gradient at the input of a norm over the last axis whose scale is held fixed, in single precision or more.

    Args:
        R: Gradient at the result, shape (…, d).
        gain: Shape (d,), or None.
        scale: Shape (…, 1).
        centred: Whether the norm takes the mean away.
    """
    G = (_wide(R) if gain is None else R * gain) / scale
    return G - G.mean(-1, keepdim=True) if centred else G
