"""The products and the softmax that attention consists of, as the recogniser finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class QueryKeyProduct:
    """A product of two tensors that depend on the input; it may turn out to be QKᵀ.

    Attributes:
        result: Its result, or what elementwise operations made of it.
        left: First operand with the axes (…, rows, contracted).
        right: Second operand with the axes (…, columns, contracted).
        order: Axes of the result for (…, rows, columns).
    """

    result: Tensor
    left: Tensor
    right: Tensor
    order: tuple[int, ...]


class Factors(NamedTuple):
    """Two factors of a product, and the order of its axes.

    Attributes:
        left: Shape (…, rows, contracted).
        right: Shape (…, columns, contracted).
        order: Axes of the model's own result for (…, rows, columns).
    """

    left: Tensor
    right: Tensor
    order: tuple[int, ...]

    def restore(self, result: Tensor) -> Tensor:
        """The product, shape (…, rows, columns), with its axes as the model's own call has them."""
        if self.order == tuple(range(result.dim())):
            return result
        return result.permute([self.order.index(axis) for axis in range(result.dim())])


@dataclass
class Softmax:
    """A softmax whose result is attention if it is multiplied with values.

    Attributes:
        A: Its result.
        O: The logits.
        axis: The axis it normalises, counted from the front.
        product: The product of queries and keys the logits are, or None where they have other terms.
        aliases: Tensors that are the attention with its axes in another order: by id, the tensor and the axis of ``A``
            behind each of its axes; None where the leading axes were folded into one.
    """

    A: Tensor
    O: Tensor  # noqa: E741
    axis: int
    product: QueryKeyProduct | None
    aliases: dict[int, tuple[Tensor, tuple[int, ...] | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aliases[id(self.A)] = (self.A, tuple(range(self.A.dim())))

    def queries_and_keys(self) -> tuple[Tensor, Tensor] | None:
        """Q and K with the axes (…, tokens, width), or None where the logits are not their product."""
        if self.product is None:
            return None
        rows, columns = self.product.order[-2:]
        if self.axis == columns:
            return self.product.left, self.product.right
        return (self.product.right, self.product.left) if self.axis == rows else None


@dataclass(frozen=True)
class ValueProduct:
    """Attention multiplied with values, both with their axes in one order.

    Attributes:
        softmax: The softmax the attention comes from.
        A: Attention with the axes (…, queries, keys); three axes where the heads are folded into the batch.
        V: Values with the axes (…, keys, width).
        O: Logits with the axes of ``A``.
        restore: From A·V, shape (…, queries, width), to what the model's own call returns.
    """

    softmax: Softmax
    A: Tensor
    V: Tensor
    O: Tensor  # noqa: E741
    restore: Callable[[Tensor], Tensor]
