"""Operations as rules of relevance see them, and how a rule puts a backward of its own into the graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail import fast

EPS = 1e-9
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Samples:
    """Where the inputs of a batch lie in a tensor; nothing is ever summed over two of them.

    Attributes:
        count: Number of inputs.
        second: Whether tensors of three axes have the batch in their second axis.
    """

    count: int
    second: bool = False

    def consecutive(self, t: Tensor) -> bool:
        """Whether the entries of each input lie one after the other once t is contiguous."""
        return self.count == 1 or (not self._second(t) and not self._last(t) and t.shape[0] % self.count == 0)

    def _second(self, t: Tensor) -> bool:
        return self.second and t.dim() == 3 and t.shape[1] == self.count

    def _last(self, t: Tensor) -> bool:
        """Whether t holds one vector of each input as a column, as embeddings that are transposed for a product."""
        return t.dim() == 2 and t.shape[0] != self.count == t.shape[1]

    def total(self, t: Tensor) -> Tensor:
        """The sum for each input, in a shape that broadcasts to t's.

        Example:
            >>> Samples(2).total(torch.ones(2, 3, 4)).flatten()
            tensor([12., 12.])
            >>> Samples(2).total(torch.ones(8, 3, 3)).flatten()  # four heads folded into the batch
            tensor([36., 36., 36., 36., 36., 36., 36., 36.])
            >>> Samples(2).total(torch.ones(6, 2))  # one column an input
            tensor([[6., 6.]])
            >>> Samples(2).total(torch.tensor([1.0, 5.0]))  # one number an input, as a difference of two scores
            tensor([1., 5.])
        """
        return self._each(t, torch.sum)

    def unit(self, t: Tensor) -> Tensor:
        """Each input divided by its sum of absolute values, in place; zeros stay zeros."""
        size = self._each(t, _length)
        return t.div_(size.masked_fill_(size == 0, 1.0))

    def root_mean_square(self, t: Tensor) -> Tensor:
        """The root mean square for each input, in a shape that broadcasts to t's; infinite entries do not count.

        Example:
            >>> Samples(2).root_mean_square(torch.tensor([[3.0, -3.0], [0.0, 2.0]])).flatten()
            tensor([3.0000, 1.4142])
        """
        finite = t.isfinite()
        return (self.total(t.square().masked_fill_(~finite, 0.0)) / self.total(finite.to(t)).clamp_min_(1)).sqrt_()

    def _each(self, t: Tensor, fold: Callable[..., Tensor]) -> Tensor:
        if self.count == 1:
            return fold(t, None)
        if self._second(t):
            return fold(t, (0, 2), keepdim=True)
        if self._last(t):
            return fold(t, (0,), keepdim=True)
        if t.dim() == 1 and t.shape[0] == self.count:  # torch takes no axes for all axes
            return fold(t[:, None], 1)
        if t.shape[0] == self.count:
            return fold(t, tuple(range(1, t.dim())), keepdim=True)
        folded = fold(t.reshape(self.count, -1), 1).repeat_interleave(t.shape[0] // self.count)
        return folded.view(-1, *[1] * (t.dim() - 1))


def _length(t: Tensor, dim: tuple[int, ...] | int | None, keepdim: bool = False) -> Tensor:
    """The sum of absolute values, which are never written out."""
    length: Tensor = torch.linalg.vector_norm(t, 1, dim, keepdim)
    return length


@dataclass(frozen=True)
class Linear:
    """y = xW + b, where only x depends on the input.

    Attributes:
        run: From x to y, as the model computes it.
        apply: From x and W to xW.
        adjoint: From s, in the shape of y, and W to sWᵀ, in the shape of x.
        weight: W.
        bias: b in a shape that broadcasts to y, or None.
        samples: Where the batch lies.
        rows: Whether inputs are the last axis of x and of W, so that two of each can be joined along it.
    """

    run: Callable[[Tensor], Tensor]
    apply: Callable[[Tensor, Tensor], Tensor]
    adjoint: Callable[[Tensor, Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None
    samples: Samples
    rows: bool = False


@dataclass(frozen=True)
class Product:
    """z = uv, linear in each: ``left`` takes s, like z, and v to the shape of u; ``right`` s and u to that of v.

    ``matrices`` says that the last axis of u is summed with the last but one of v, so that two factors can be joined
    along these axes; ``positive`` that u is never negative, as attention weights are.
    """

    run: Callable[[Tensor, Tensor], Tensor]
    left: Callable[[Tensor, Tensor], Tensor]
    right: Callable[[Tensor, Tensor], Tensor]
    samples: Samples
    matrices: bool = False
    positive: bool = False


@dataclass(frozen=True)
class Sum:
    """z = u + v; ``constant`` says that v does not depend on the input, and may be infinite, as masks are."""

    run: Callable[[Tensor, Tensor], Tensor]
    samples: Samples
    constant: bool = False


@dataclass(frozen=True)
class Norm:
    """y = (x − mean)/scale · gain + bias over the axes ``dims``; the mean is left out unless ``centred``.

    ``mixed_precision`` says that the model is in half precision, though what enters and leaves is not.
    """

    run: Callable[[Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]
    gain: Tensor | None
    dims: tuple[int, ...]
    centred: bool
    samples: Samples
    mixed_precision: bool = False


@dataclass(frozen=True)
class Mean:
    """The mean over the axes ``dims``, which ``run`` leaves out unless ``keepdim``."""

    run: Callable[[Tensor], Tensor]
    dims: tuple[int, ...]
    keepdim: bool
    samples: Samples


@dataclass(frozen=True)
class Plain:
    """Any operation of one input whose result has its shape."""

    run: Callable[[Tensor], Tensor]


def _whole(out: Tensor, *inputs: Tensor) -> Tensor:
    """A result as a tensor of its own: autograd forbids writing into a view of another tensor.

    Some builds of torch return a view of what they made where others return that itself. Views of an input stay what
    they are.
    """
    base = out._base  # noqa: SLF001
    if base is None or any(base is t or base is t._base for t in inputs):  # noqa: SLF001
        return out
    return torch.ops.aten._unsafe_view(out, out.shape)  # type: ignore[no-any-return]  # noqa: SLF001


class _Carry(torch.autograd.Function):
    """An operation with a backward of our own; autograd keeps and frees what it needs."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], back: Callable[..., Any], kept: Any, *inputs: Tensor) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(*kept)
        return _whole(run(*inputs), *inputs)

    @staticmethod
    def backward(ctx: Any, *R: Tensor) -> Any:
        return (None, None, None, *ctx.back(*R, *ctx.saved_tensors))


class _CarryWithResult(torch.autograd.Function):
    """The same, whose backward also gets the result."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], back: Callable[..., Any], *inputs: Tensor) -> Tensor:
        y = _whole(run(*inputs), *inputs)
        ctx.run, ctx.back = run, back
        ctx.save_for_backward(*inputs)
        # Logits of attention are larger than queries and keys together, and not worth their memory.
        kept = not fast.recomputing() and (len(inputs) == 1 or y.numel() <= sum(t.numel() for t in inputs))
        # Autograd refuses results that were written over, which a model may do; those can be computed again.
        ctx.y, ctx.version = y.detach() if kept else None, y._version  # noqa: SLF001
        return y

    @staticmethod
    def backward(ctx: Any, R: Tensor) -> Any:
        inputs = ctx.saved_tensors
        whole = ctx.y is not None and ctx.y._version == ctx.version  # noqa: SLF001
        found = ctx.back(R, *inputs, ctx.y if whole else ctx.run(*inputs))
        return None, None, *(found if isinstance(found, tuple) else (found,))


class _ScaleGradients(torch.autograd.Function):
    """Tensors as they are, whose gradients are multiplied by factors."""

    @staticmethod
    def forward(ctx: Any, factors: tuple[float, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.factors = factors
        ctx.set_materialize_grads(False)
        return tuple([x.view_as(x) for x in inputs])

    @staticmethod
    def backward(ctx: Any, *R: Tensor | None) -> Any:
        return None, *[None if one is None else one * factor for one, factor in zip(R, ctx.factors, strict=True)]


def with_scaled_gradients(factors: tuple[float, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The inputs, whose gradients are multiplied by one factor each."""
    return _ScaleGradients.apply(factors, *inputs)  # type: ignore[no-any-return]


def with_backward(
    run: Callable[..., Tensor], back: Callable[..., Any], kept: tuple[Tensor, ...], *inputs: Tensor
) -> Tensor:
    """``run(*inputs)``, whose backward is ``back(R, *kept)``, one entry an input."""
    return _Carry.apply(run, back, kept, *inputs)  # type: ignore[no-any-return]


def with_backward_of_result(run: Callable[..., Tensor], back: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """``run(*inputs)``, whose backward is ``back(R, *inputs, y)``, y being the result; one entry an input."""
    return _CarryWithResult.apply(run, back, *inputs)  # type: ignore[no-any-return]


def matmul(u: Tensor, v: Tensor) -> Tensor:
    """The product of two matrices for each head.

    On a CPU, a right factor that lies column by column is copied first: with matrices as small as those of attention,
    the product with it takes up to four times as long as both steps.
    """
    turned = v.device.type == "cpu" and v.dim() > 2 and not v.is_contiguous() and v.mT.is_contiguous()
    product: Tensor = u @ (v.contiguous() if turned else v)
    return product


def standard_deviation(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """The root of the variance plus ``eps`` over some axes, which are kept.

    Example:
        >>> standard_deviation(torch.tensor([[1.0, 3.0]]), (-1,), 0.0).round(decimals=4)
        tensor([[1.]])
    """
    # By the length of what is left without the mean: on a CPU, torch's variance takes ten times as long.
    length = torch.linalg.vector_norm(x - x.mean(dims, keepdim=True), 2, dims, keepdim=True)
    deviation: Tensor = (length.square_() / math.prod(x.shape[d] for d in dims)).add_(eps).sqrt_()
    return deviation


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient a / (b + 1e-9), and 0 where b is exactly 0.

    Example:
        >>> safe_divide(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    # By a factor of 0 or 1: on a CPU, choosing between two tensors takes several times as long as all of this.
    return a * b.sign().abs_() / (b + EPS)


def stabilised(x: Tensor, eps: float | Tensor = EPS) -> Tensor:
    """Entries moved by ``eps`` away from zero; zero itself moves up."""
    return x + torch.where(x >= 0, eps, -eps).to(x.dtype)
