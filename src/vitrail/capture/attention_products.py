"""Products of vectors with attention matrices, whether the matrices are in memory or not.

Most methods never need an attention matrix as such: they multiply a vector over the queries with it and go on with the
result. Methods that are written with these products work on attention that was kept as a tensor
(`DenseProducts`) and on attention of large inputs, whose queries, keys and values are kept (`RowwiseProducts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class AttentionProducts(ABC):
    """Products of vectors with one attention layer's matrices A, one for each head, and with their gradient dA.

    Shapes: b images, H heads, m queries, n keys. A method that uses these declares ``attention`` (products with A),
    ``attention_mean`` (with the mean over heads only), ``attention_gradient`` (products that involve dA) and
    ``attention_logits`` (products that involve the logits O) among its needs.
    """

    @property
    @abstractmethod
    def size(self) -> tuple[int, int, int]:
        """Number of images, queries and keys: (b, m, n)."""

    @abstractmethod
    def rows(self, v: Tensor) -> Tensor:
        """v·A for each head: shape (b, m) to (b, H, n)."""

    @abstractmethod
    def mean_row(self, v: Tensor) -> Tensor:
        """v·Ā, with Ā the mean of A over heads: shape (b, m) to (b, n)."""

    @abstractmethod
    def mean_columns(self, u: Tensor) -> Tensor:
        """u·Āᵀ, which is Ā times vectors over the keys: shape (b, k, n) to (b, k, m)."""

    @abstractmethod
    def row_sums(self) -> Tensor:
        """Sums of the rows of Ā, shape (b, m); zero where a query sees no key."""

    @abstractmethod
    def gradient_rows(self, v: Tensor) -> Tensor:
        """v·dA for each head: shape (b, m) to (b, H, n)."""

    @abstractmethod
    def opposed(self) -> AttentionProducts:
        """The same attention with the gradient of the negative target."""

    @abstractmethod
    def weighted_rows(self, v: Tensor) -> Tensor:
        """v·(dA ⊙ A)⁺ for each head: shape (b, m) to (b, H, n)."""

    @abstractmethod
    def logit_gradient_rows(self, v: Tensor) -> Tensor:
        """v·dO for each head, with dO = A ⊙ (dA − row sums of A ⊙ dA) at the logits: shape (b, m) to (b, H, n).

        Where queries are tokens, the diagonal is left out: attention of a token to itself moves nothing.
        """

    @abstractmethod
    def sigmoid_rows(self, v: Tensor) -> Tensor:
        """v·(dA⁺ ⊙ sigmoid(O)) for each head, with O the logits: shape (b, m) to (b, H, n)."""


class DenseProducts(AttentionProducts):
    """Products with attention that is in memory.

    Args:
        A: Attention, shape (b, H, m, n), or None where only its mean over heads is needed.
        A_mean: Its mean over heads, shape (b, m, n); computed from A if None.
        dA: Gradient at A, or None.
        O: Logits, or None.

    Example:
        >>> import torch
        >>> products = DenseProducts(torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]]))
        >>> products.mean_row(torch.tensor([[1.0, 2.0]]))
        tensor([[0.5000, 2.5000]])
    """

    def __init__(
        self,
        A: Tensor | None = None,
        A_mean: Tensor | None = None,
        dA: Tensor | None = None,
        O: Tensor | None = None,  # noqa: E741
    ) -> None:
        self._A, self._A_mean, self._dA, self._O = A, A_mean, dA, O

    @property
    def size(self) -> tuple[int, int, int]:  # noqa: D102
        some = next((t for t in (self._A, self._A_mean, self._dA, self._O) if t is not None), None)
        some = _kept(some, "attention")
        return some.shape[0], some.shape[-2], some.shape[-1]

    def rows(self, v: Tensor) -> Tensor:  # noqa: D102
        return _rows(v, _kept(self._A, "attention"))

    def mean_row(self, v: Tensor) -> Tensor:  # noqa: D102
        return (v.unsqueeze(-2) @ self._mean).squeeze(-2)

    def mean_columns(self, u: Tensor) -> Tensor:  # noqa: D102
        return u @ self._mean.transpose(-2, -1)

    def row_sums(self) -> Tensor:  # noqa: D102
        return self._mean.sum(-1)

    def gradient_rows(self, v: Tensor) -> Tensor:  # noqa: D102
        return _rows(v, _kept(self._dA, "attention_gradient"))

    def opposed(self) -> DenseProducts:  # noqa: D102
        return DenseProducts(self._A, self._A_mean, None if self._dA is None else -self._dA, self._O)

    def weighted_rows(self, v: Tensor) -> Tensor:  # noqa: D102
        A, dA = _kept(self._A, "attention"), _kept(self._dA, "attention_gradient")
        return _rows(v, (dA * A).clamp_min_(0))

    def logit_gradient_rows(self, v: Tensor) -> Tensor:  # noqa: D102
        A, dA = _kept(self._A, "attention"), _kept(self._dA, "attention_gradient")
        dO = logit_gradient(A, dA.clone())
        if A.shape[-2] == A.shape[-1]:
            dO.diagonal(dim1=-2, dim2=-1).zero_()
        return _rows(v, dO)

    def sigmoid_rows(self, v: Tensor) -> Tensor:  # noqa: D102
        dA, logits = _kept(self._dA, "attention_gradient"), _kept(self._O, "attention_logits")
        return _rows(v, dA.clamp_min(0) * logits.sigmoid())

    @property
    def _mean(self) -> Tensor:
        return self._A_mean if self._A_mean is not None else _kept(self._A, "attention_mean").mean(1)


def _rows(v: Tensor, matrices: Tensor) -> Tensor:
    return (v[:, None, None, :] @ matrices).squeeze(-2)


def logit_gradient(A: Tensor, dA: Tensor) -> Tensor:
    """The gradient at the logits of a softmax from its result and the gradient there, which is overwritten.

    Example:
        >>> import torch
        >>> logit_gradient(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 3.0]))
        tensor([-0.5000,  0.5000])
    """
    return dA.sub_((A * dA).sum(-1, keepdim=True)).mul_(A)


def _kept(tensor: Tensor | None, kind: str) -> Tensor:
    if tensor is None:
        raise AttributeError(f"{kind} was not kept in this pass: the method must name it in its registry line's needs")
    return tensor


#: For each kind of products, the tensor that is kept where the matrices are in memory.
PRODUCT_KINDS = {"attention": "A", "attention_mean": "A_mean", "attention_gradient": "dA", "attention_logits": "O"}
#: Tensors that hold a matrix of queries by keys.
MATRICES = ("A", "A_mean", "O", "dA")


#: Bytes of one image's matrices of one layer above which no self-check forms them.
CHECKED_UP_TO = 2**27


def attention_bytes(batch: int, heads: int, queries: int, keys: int) -> int:
    """Memory of the matrices of one attention layer in single precision, in bytes.

    Example:
        >>> attention_bytes(8, 16, 1370, 1370) / 2**20
        916.455078125
    """
    return 4 * batch * heads * queries * keys
