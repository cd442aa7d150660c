"""Float32 matrix products from float16 products.

The units of a GPU that multiply matrices take float16 numbers many times as fast as float32 ones. A float32 number is
the sum of two float16 numbers, high and low, to 22 of its 24 bits, so a float32 product is high·low + low·high +
high·high, added up in float32. On GPUs made for computing centres this takes less than half the time. The error is 2 to
6 times that of float32, and a fiftieth of that of TF32, which torch itself uses for convolutions.
``VITRAIL_SPLIT_PRODUCTS=0`` switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from vitrail.fast.kernels import run_kernel_or_none, triton_installed
from vitrail.fast.switches import fast_paths_disabled

#: Multiplications of a linear map from which on splitting pays: in float32 they take 0.2 ms on an H200.
FEWEST_PRODUCTS = 2**32
#: Longest rows that are split in one piece.
LONGEST_ROW = 2**14
#: GPUs whose float16 products are more than three times as fast as their float32 ones, by compute capability.
FAST_HALF = {(8, 0), (9, 0), (10, 0), (10, 3)}
#: Environment variable; 0 switches splitting off.
SWITCH = "VITRAIL_SPLIT_PRODUCTS"


def switched_on() -> bool:
    """Whether neither ``VITRAIL_SPLIT_PRODUCTS=0`` nor ``VITRAIL_PLAIN=1`` is set."""
    return os.environ.get(SWITCH, "1") != "0" and not fast_paths_disabled()


def split_products(device: torch.device) -> AbstractContextManager[Any]:
    """Compute large linear maps of float32 models in a block by split products, where that is faster.

    Nothing is changed where TF32 is allowed, which is faster still, or the model runs under autocast. Only gradients at
    inputs flow through such a map, not at weights.
    """
    return _SplitProducts() if _able(device) else nullcontext()


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ, by split products where that is faster; for products in a backward pass, which no mode sees.

    Args:
        x: Shape (…, k); no gradient flows to it where the product is split.
        weight: Shape (n, k), contiguous or not.

    Returns:
        Shape (…, n).

    Example:
        >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[11.]])
    """
    found = _linear(x, weight) if x.is_cuda and _able(x.device) else None
    return F.linear(x, weight) if found is None else found


def _able(device: torch.device) -> bool:
    """Whether products on a device are split at all."""
    return (
        device.type == "cuda"
        and switched_on()
        and triton_installed()
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.is_autocast_enabled("cuda")
        and _has_fast_half(device)
    )


@cache
def _has_fast_half(device: torch.device) -> bool:
    """Whether a GPU multiplies float16 matrices fast, and torch can return the product in float32."""
    made_for = torch.cuda.get_device_capability(device) in FAST_HALF
    return made_for and hasattr(torch.ops.aten.mm, "dtype")


class _SplitProducts(TorchFunctionMode):
    """Replaces linear maps that are large enough."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear:
            result = _linear(*args, **(kwargs or {}))
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:  # noqa: A002
    """A linear map by split products, or None where it is computed as usual."""
    if (
        input.dtype != torch.float32
        or weight.dtype != torch.float32
        or not input.is_cuda
        or weight.dim() != 2
        or input.numel() * weight.shape[0] < FEWEST_PRODUCTS
        or max(weight.shape) > LONGEST_ROW
        or any(t is not None and type(t) not in (Tensor, torch.nn.Parameter) for t in (input, weight, bias))
        or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (weight, bias)))
    ):
        return None
    return run_kernel_or_none("split_linear", split_linear, input, weight, bias)


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + bias by split products.

    Args:
        x: Shape (…, k), float32.
        weight: Shape (n, k), float32, contiguous or not; no gradient flows to it.
        bias: Shape (n,), or None.

    Returns:
        Shape (…, n).
    """
    return _SplitLinear.apply(x, weight.detach(), None if bias is None else bias.detach())  # type: ignore[no-any-return]


class _SplitLinear(torch.autograd.Function):
    """A linear map of constant weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from vitrail.fast import split_kernels

        ctx.save_for_backward(weight)
        left, rows = split_kernels.split_rows(x.reshape(-1, x.shape[-1]))
        right, columns = split_kernels.split_rows(weight, left=False)
        product = split_kernels.scale_product_(_product(left, right.T), rows, columns, bias)
        return product.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # kernels are not in a graph: a second derivative would be zero
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from vitrail.fast import split_kernels

        (weight,), (G,) = ctx.saved_tensors, gradients
        right, scales = split_kernels.split_rows(weight, left=False, stacked=True)
        # A row of weights meets a column of gradients, which takes its scale.
        left, rows = split_kernels.split_rows(G.reshape(-1, G.shape[-1]), scales)
        product = split_kernels.scale_product_(_product(left, right), rows)
        return product.view(*G.shape[:-1], -1), None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two float16 matrices in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # Triton's interpreter runs on the CPU
