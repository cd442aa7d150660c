"""Recognise attention in the order a model computes it: queries times keys, softmax, times values.

Models spell attention in many ways: ``softmax(q @ k.mT) @ v``, ``torch.bmm`` with the heads folded into the batch,
``einsum`` with any labels, values to the left of the attention, ``exp`` divided by its sum. The recogniser follows the
tensors themselves from one function call to the next, so that gradient capture and relevance propagation see the same
attention in the same form: attention (b, H, m, n), values (b, H, n, dh).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.recognised_products import Factors, QueryKeyProduct, Softmax, ValueProduct

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
MATMUL = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}
ADDED_MATMUL = {torch.baddbmm, Tensor.baddbmm}
LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, Tensor.log_softmax}
EXP = {torch.exp, Tensor.exp, Tensor.exp_, torch.exp_}
SUM = {torch.sum, Tensor.sum}
DIV = {torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, Tensor.__truediv__}
# Functions whose result is the attention itself: a copy, another type, dropout that is off.
SAME = {F.dropout, torch.dropout, Tensor.to, Tensor.type_as, Tensor.float, Tensor.contiguous, Tensor.clone}
# Functions that may swap the last two axes, as where features come before tokens and values before attention.
MT: Any = Tensor.mT.__get__  # type: ignore[attr-defined]
TRANSPOSE = {Tensor.transpose, torch.transpose, Tensor.swapaxes, torch.swapaxes}
PERMUTE = {Tensor.permute, torch.permute}
# Functions that may fold the heads into the batch.
FOLD = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten}
# Functions that may mix heads or move entries, after which logits are no product of queries and keys any more.
_NOT_ELEMENTWISE = {F.linear, F.conv2d, torch.conv2d, F.layer_norm, torch.layer_norm, torch.gather, Tensor.gather}
_NOT_ELEMENTWISE |= {torch.roll, Tensor.roll, torch.flip, Tensor.flip, torch.take_along_dim}
CONCATENATE = {torch.cat, torch.concat, torch.concatenate}
#: Functions that may begin a softmax the model writes out.
STARTS = EXP | LOG_SOFTMAX
#: Functions that matter though none of their first two arguments is followed; a list holds what is concatenated.
MAY_START = STARTS | CONCATENATE
UNSQUEEZE = {Tensor.unsqueeze, torch.unsqueeze, Tensor.__getitem__}


class Recogniser:
    """Follow attention through the functions a model calls.

    A mode calls ``values`` before it runs a product, ``softmax`` for each softmax and ``follow`` after every other
    function.

    Attributes:
        unmatched: Number of softmaxes over products of queries and keys that never met values: attention that was
            mixed with something else first.
        followed: Ids of all tensors that are followed. Few functions read one of them as first or second argument, and
            all others but those of ``MAY_START`` need no call of ``follow``.
    """

    def __init__(self) -> None:
        self.unmatched = 0
        #: Products that may turn out to be QKᵀ, oldest first: logits may have terms of positions besides.
        self._products: list[QueryKeyProduct] = []
        self._softmax: Softmax | None = None
        self._exp: dict[int, tuple[Tensor, Tensor]] = {}
        self._sums: dict[int, tuple[Tensor, Tensor, int]] = {}
        self._logs: dict[int, tuple[Tensor, Tensor, int]] = {}
        self.followed: set[int] = set()

    def _changed(self) -> None:
        aliases = () if self._softmax is None else self._softmax.aliases
        results = (id(one.result) for one in self._products)
        self.followed = {*results, *aliases, *self._exp, *self._sums, *self._logs}

    # -- products ------------------------------------------------------------------------------------------------

    def values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ValueProduct | None:
        """The product of attention and values that this call is, or None."""
        softmax = self._softmax
        if softmax is None:
            return None
        if func is torch.einsum:
            found = self._einsum_values(softmax, args)
        else:
            operands = _operands(args, kwargs)
            found = None if operands is None else self._matmul_values(softmax, *operands)
        if found is not None:
            self._softmax = None
            self._products.clear()
            self._exp.clear()
            self._sums.clear()
            self._changed()
        return found

    def _matmul_values(self, softmax: Softmax, left: Tensor, right: Tensor) -> ValueProduct | None:
        if id(left) in softmax.aliases:
            tensor, origin = softmax.aliases[id(left)]
            if origin is None or origin[-1] == softmax.axis:
                return _value_product(softmax, tensor, origin, right, lambda Z: Z)
        if id(right) in softmax.aliases and left.dim() == right.dim():
            tensor, origin = softmax.aliases[id(right)]
            if origin is not None and origin[-2] == softmax.axis:
                flipped = (*origin[:-2], origin[-1], origin[-2])
                return _value_product(softmax, tensor.mT, flipped, left.mT, lambda Z: Z.mT)
        return None

    def _einsum_values(self, softmax: Softmax, args: tuple[Any, ...]) -> ValueProduct | None:
        pair = einsum_pair(args)
        if pair is None:
            return None
        (one, two), (first, second), out = pair
        if id(second) in softmax.aliases:
            one, two, first, second = two, one, second, first
        if id(first) not in softmax.aliases:
            return None
        tensor, origin = softmax.aliases[id(first)]
        if origin is None:
            origin = tuple(range(tensor.dim()))
            axis = tensor.dim() - 1
        else:
            axis = softmax.axis
        keys = one[origin.index(axis)]
        batch = [c for c in one if c in two and c in out]
        queries = [c for c in one if c not in two and c in out]
        width = [c for c in two if c not in one and c in out]
        if keys in out or keys not in two or len(queries) != 1 or len(width) != 1 or len(batch) != len(one) - 2:
            return None
        if len(two) != len(batch) + 2 or len(out) != len(batch) + 2:
            return None
        order = [one.index(c) for c in (*batch, queries[0], keys)]
        V = second.permute([two.index(c) for c in (*batch, keys, width[0])])
        canonical = [*batch, queries[0], width[0]]
        back = [canonical.index(c) for c in out]
        moved = tensor.permute(order)
        return _value_product(
            softmax,
            moved,
            None if softmax.aliases[id(first)][1] is None else tuple(origin[i] for i in order),
            V,
            lambda Z: Z.permute(back),
        )

    def factors(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Factors | None:
        """The factors of a product that may turn out to be QKᵀ, with their axes in one order; None for any other."""
        if func is not torch.einsum:
            operands = _operands(args, kwargs)
            if operands is None or not is_data_product(*operands):
                return None
            return Factors(operands[0], operands[1].mT, tuple(range(max(t.dim() for t in operands))))
        pair = einsum_pair(args)
        if pair is None:
            return None
        (one, two), (first, second), out = pair
        shared = [c for c in one if c in two and c not in out]
        batch = [c for c in one if c in two and c in out]
        rows, columns = [c for c in one if c not in two], [c for c in two if c not in one]
        if len(shared) != 1 or len(rows) != 1 or len(columns) != 1 or len(out) != len(batch) + 2 or not batch:
            return None
        if columns[0] not in out or rows[0] not in out:
            return None
        left = first.permute([one.index(c) for c in (*batch, rows[0], shared[0])])
        right = second.permute([two.index(c) for c in (*batch, columns[0], shared[0])])
        return Factors(left, right, tuple(out.index(c) for c in (*batch, rows[0], columns[0])))

    def product(self, left: Tensor, right: Tensor, order: tuple[int, ...], result: Tensor) -> None:
        """Remember the result of such a product."""
        self._products = [*self._products[-7:], QueryKeyProduct(result, left, right, order)]
        self._changed()

    # -- softmax -------------------------------------------------------------------------------------------------

    def softmax(self, logits: Tensor, axis: int, result: Tensor) -> None:
        """A softmax was computed; its result is attention if it meets values."""
        if self._softmax is not None and self._softmax.product is not None:
            self.unmatched += 1
        product = next((one for one in self._products if one.result is logits), None)
        self._softmax = Softmax(result, logits, axis % logits.dim(), product)
        self._products.clear()
        self._changed()

    def alias(self, result: Tensor) -> None:
        """The mode replaced the last softmax's result by another tensor."""
        if self._softmax is not None:
            self._softmax.aliases[id(result)] = (result, tuple(range(result.dim())))
            self._changed()

    def written_softmax(self, func: Any, args: tuple[Any, ...]) -> tuple[Tensor, int] | None:
        """Logits and axis of the softmax that a division of ``exp`` by its sum is, or None."""
        if func not in DIV or len(args) < 2 or id(args[0]) not in self._exp or id(args[1]) not in self._sums:
            return None
        powers, logits = self._exp[id(args[0])]
        _, summed, axis = self._sums[id(args[1])]
        return (logits, axis) if summed is powers else None

    # -- every other function ------------------------------------------------------------------------------------

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Follow logits, attention, and exponentials through one function call."""
        if not args or not isinstance(result, Tensor) or (func in STARTS and self._start(func, args, kwargs, result)):
            return
        if self._exp:
            self._follow_sums(func, args, kwargs, result)
        if self._softmax is not None and id(args[0]) in self._softmax.aliases:
            self._follow_attention(self._softmax, func, args, kwargs, result)
        elif self._products:
            followed = (self._follow_logits(one, func, args, kwargs, result) for one in self._products)
            self._products = [one for one in followed if one is not None]
        self._changed()

    def _start(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> bool:
        """Note a logarithm of a softmax or an exponential; returns whether it may be part of a softmax."""
        if func in LOG_SOFTMAX and result.dim() >= 3:
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            self._logs = {id(result): (result, args[0], axis)} if isinstance(axis, int) else {}
            self._changed()
            return True
        if func in EXP and id(args[0]) in self._logs:
            _, logits, axis = self._logs.pop(id(args[0]))
            self.softmax(logits, axis, result)
            return True
        if func in EXP and result.dim() >= 3 and isinstance(args[0], Tensor):
            if args[0] is not result:  # in place, the logits are gone
                self._exp = {id(result): (result, args[0])}
                self._sums.clear()
                self._changed()
            return True
        return False

    def _follow_sums(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        if func in SUM and id(args[0]) in self._exp:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, tuple | list) and len(dim) == 1:
                dim = dim[0]
            if isinstance(dim, int):
                self._sums[id(result)] = (result, args[0], dim % args[0].dim())
        elif func in UNSQUEEZE and id(args[0]) in self._sums:
            _, summed, axis = self._sums[id(args[0])]
            self._sums[id(result)] = (result, summed, axis)

    @staticmethod
    def _follow_logits(
        product: QueryKeyProduct, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> QueryKeyProduct | None:
        """A product behind one function call; None where it is none any more.

        Scale, bias and mask keep its shape, other terms are added to it, and a permutation changes the order of its
        axes.
        """
        used = any(a is product.result for a in args[:2])
        moved = permutation(func, args, kwargs)
        if moved is not None and args[0] is product.result:
            order = tuple(moved.index(axis) for axis in product.order)
            return QueryKeyProduct(result, product.left, product.right, order)
        if func in FOLD and args[0] is product.result and result.shape[-2:] == product.result.shape[-2:]:
            # Heads that were folded into the batch come apart, or the other way round.
            straight = tuple(product.order) == tuple(range(len(product.order)))
            order = tuple(range(result.dim()))
            return QueryKeyProduct(result, product.left, product.right, order) if straight else product
        if func in CONCATENATE:
            leads = _leads(args, kwargs, product.result, result)
            return QueryKeyProduct(result, product.left, product.right, product.order) if leads else product
        if func in _NOT_ELEMENTWISE:
            return None if used else product
        if result.shape == product.result.shape and used:
            return QueryKeyProduct(result, product.left, product.right, product.order)
        return product

    @staticmethod
    def _follow_attention(
        softmax: Softmax, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor
    ) -> None:
        tensor, origin = softmax.aliases[id(args[0])]
        moved = permutation(func, args, kwargs)
        if func in SAME and result.shape == tensor.shape:
            softmax.aliases[id(result)] = (result, origin)
        elif moved is not None and origin is not None:
            softmax.aliases[id(result)] = (result, tuple(origin[axis] for axis in moved))
        elif func is Tensor.__getitem__ and origin == tuple(range(tensor.dim())) and _drops_last_keys(tensor, result):
            # Attention to a sink, a logit that belongs to no token, is left out.
            if softmax.axis == tensor.dim() - 1:
                softmax.aliases[id(result)] = (result, origin)
        elif func in FOLD and result.shape[-2:] == tensor.shape[-2:] and (origin is None or origin[-1] == softmax.axis):
            same = result.dim() == tensor.dim()
            softmax.aliases[id(result)] = (result, origin if same else None)


def _leads(args: tuple[Any, ...], kwargs: dict[str, Any], first: Tensor, result: Tensor) -> bool:
    """Whether a tensor comes first among those concatenated along the last axis."""
    given = args[0] if isinstance(args[0], list | tuple) else ()
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    return bool(given) and given[0] is first and isinstance(dim, int) and dim % result.dim() == result.dim() - 1


def _drops_last_keys(tensor: Tensor, result: Tensor) -> bool:
    """Whether a slice keeps all but the last entries of the last axis."""
    return (
        result.shape[:-1] == tensor.shape[:-1]
        and result.shape[-1] < tensor.shape[-1]
        and result.stride() == tensor.stride()
        and result.data_ptr() == tensor.data_ptr()
    )


def _value_product(
    softmax: Softmax, A: Tensor, origin: tuple[int, ...] | None, V: Tensor, restore: Callable[[Tensor], Tensor]
) -> ValueProduct:
    logits = softmax.O
    if origin is not None and logits.dim() == len(origin):
        logits = logits.permute(origin)[..., : A.shape[-1]]
    return ValueProduct(softmax, A, V, logits.reshape(A.shape), restore)


def _operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The two factors of a matrix product, whichever way they are passed."""
    named = (kwargs.get("input"), kwargs.get("other", kwargs.get("mat2")))
    given = [*args, *(n for n in named if n is not None)][:2]
    if len(given) == 2 and all(isinstance(t, Tensor) for t in given):
        return given[0], given[1]
    return None


def split_heads(tensor: Tensor, batch: int, heads_first: bool = False) -> Tensor:
    """Split a merged axis into batch and heads: (b·H, m, n) to (b, H, m, n); other tensors are returned as they are."""
    if tensor.dim() != 3:
        return tensor
    if heads_first:
        return tensor.reshape(-1, batch, *tensor.shape[1:]).transpose(0, 1)
    return tensor.reshape(batch, -1, *tensor.shape[1:])


def merge_heads(tensor: Tensor, heads_first: bool = False) -> Tensor:
    """The inverse of ``split_heads``."""
    return (tensor.transpose(0, 1) if heads_first else tensor).flatten(0, 1)


def is_data_product(left: Tensor, right: Tensor) -> bool:
    """Whether both factors have a batch axis; otherwise one of them is a weight matrix."""
    return left.dim() >= 3 and right.dim() >= 3


def einsum_pair(args: tuple[Any, ...]) -> tuple[tuple[str, str], tuple[Tensor, Tensor], str] | None:
    """Labels, operands and output labels of an einsum of two tensors; None for any other einsum."""
    equation, operands = args[0], args[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    inner, _, out = equation.replace(" ", "").partition("->")
    one, _, two = inner.partition(",")
    labels_once = len(set(one)) == len(one) and len(set(two)) == len(two)
    if not labels_once or len(one) != operands[0].dim() or len(two) != operands[1].dim():
        return None
    return (one, two), (operands[0], operands[1]), out


def permutation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Where each axis of the result was in the first argument, if the call only reorders axes.

    Example:
        >>> permutation(torch.transpose, (torch.zeros(2, 3, 4), 1, -1), {})
        (0, 2, 1)
        >>> permutation(torch.add, (torch.zeros(2), 1), {}) is None
        True
    """
    if not isinstance(args[0], Tensor):
        return None
    n = args[0].dim()
    axes = list(range(n))
    if func == MT:
        return (*axes[:-2], n - 1, n - 2)
    if func in TRANSPOSE:
        dims = [*args[1:3], *(kwargs[k] for k in ("dim0", "dim1", "axis0", "axis1") if k in kwargs)]
        if len(dims) == 2:
            i, j = (d % n for d in dims)
            axes[i], axes[j] = axes[j], axes[i]
            return tuple(axes)
    if func in PERMUTE:
        given = kwargs.get("dims", args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:])
        return tuple(d % n for d in given)
    return None
