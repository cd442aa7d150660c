"""Read the output projection and the scales of a branch from the function calls that compute it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.operators import DIV, MATMUL
from vitrail.capture.recogniser import einsum_pair


def output_projection(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None] | None:
    """Weight, shape (d, H·dh), and bias of a linear map, in any of the ways models write it; None for other calls.

    Example:
        >>> weight, bias = output_projection(torch.matmul, (torch.zeros(2, 5, 4), torch.ones(4, 3)), {})
        >>> weight.shape, bias is None
        (torch.Size([3, 4]), True)
    """
    if func is F.linear:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return weight, args[2] if len(args) > 2 else kwargs.get("bias")
    if func is torch.addmm:
        return args[2].T, args[0]  # the weight the other way round
    if func in MATMUL and len(args) > 1 and isinstance(args[1], Tensor) and args[1].dim() == 2:
        return args[1].T, None
    if func is torch.einsum:
        heads_weight = _einsum_weight(args)
        if heads_weight is not None:
            return heads_weight, None
    return None


def _einsum_weight(args: tuple[Any, ...]) -> Tensor | None:
    """The output projection, shape (d, H·dh), of an einsum of heads (…, H, dh) with a weight (d, H, dh), or None."""
    pair = einsum_pair(args)
    if pair is None:
        return None
    (heads, weight), (_, W), out = pair
    fits = len(weight) == 3 and heads[-2:] == weight[1:] and out == heads[:-2] + weight[0]
    return W.flatten(1) if fits else None


def scale_factor(func: Any, args: tuple[Any, ...], branch: Tensor) -> Tensor | None:
    """What a branch is multiplied with in a product or quotient; None where the branch is the divisor.

    Args:
        func: The function.
        args: Its arguments; one of the first two is ``branch``.
        branch: Shape (…, width).

    Returns:
        A number is repeated for each channel, shape (width,).
    """
    width = branch.shape[-1]
    factor = args[1] if args[0] is branch else args[0]
    if isinstance(factor, int | float):
        factor = branch.new_full((width,), factor)
    if not isinstance(factor, Tensor) or (func in DIV and args[0] is not branch):
        return None
    factor = factor.reciprocal() if func in DIV else factor
    return factor.reshape(1).expand(width) if factor.numel() == 1 and branch.numel() != width else factor


def rms_norm_scales(
    args: tuple[Any, ...], kwargs: dict[str, Any], width: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None] | None:
    """Factors by which a fused RMS norm multiplies each token, shape (…, 1), and each channel, or no gain.

    Args:
        args: Arguments of the norm.
        kwargs: Its keyword arguments.
        width: Width of the stream; None is returned for norms over other axes.
        dtype: The precision of the first factor.
    """
    source, shape = args[0], args[1] if len(args) > 1 else kwargs["normalized_shape"]
    if len(shape) != 1 or shape[0] != width:
        return None
    gain = kwargs.get("weight", args[2] if len(args) > 2 else None)
    eps = kwargs.get("eps", args[3] if len(args) > 3 else None)
    mean_square = source.detach().to(dtype).square().mean(-1, keepdim=True)
    return (mean_square + (eps or torch.finfo(source.dtype).eps)).rsqrt(), gain
