"""Right gradients of batch normalisation on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NORMALISATIONS = {F.batch_norm, torch.batch_norm, F.instance_norm, torch.instance_norm}


class ContiguousBatchNorm(TorchFunctionMode):
    """Makes what batch normalisation reads, and the gradient that arrives at its result, contiguous.

    Of a tensor with an axis of size 1, such as one image, the strides do not tell whether channels come first or last.
    The backward pass of torch on the CPU then reads it in the wrong order if one of the two tensors is tokens that were
    transposed to channels: the gradients of one image are wrong, and those of a batch are right.

    Example:
        >>> x, gradient = torch.randn(1, 2, 3, 3, requires_grad=True), torch.randn(1, 9, 2)
        >>> with ContiguousBatchNorm():
        ...     y = F.batch_norm(x, torch.zeros(2), torch.ones(2), eps=0)
        >>> y.flatten(2).mT.backward(gradient)
        >>> torch.equal(x.grad.flatten(2).mT, gradient)
        True
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _NORMALISATIONS or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if args:
            result = func(_contiguous(args[0]), *args[1:], **kwargs)
        else:
            result = func(**{**kwargs, "input": _contiguous(kwargs["input"])})
        if result.requires_grad:
            result.register_hook(_contiguous)
        return result


def _contiguous(tensor: Tensor) -> Tensor:
    """The tensor in the order of its axes, where its strides may be read in several ways."""
    return tensor.contiguous() if 1 in tensor.shape else tensor
