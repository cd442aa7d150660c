"""Attention rollout, and two released programs that compute something else under the same name."""

import torch
from torch import Tensor

from .raw_attention import head_mean
from .vit import Classes, Pass


def with_residual(A: Tensor, normalise: bool) -> Tensor:
    """Add the identity for the skip connection; optionally make every row sum to one.

    Args:
        A: One attention map, shape n, n.
        normalise: Whether to divide each row by its sum.
    """
    mixed = A + torch.eye(A.shape[0], dtype=A.dtype)
    if normalise:
        for i in range(mixed.shape[0]):
            mixed[i] = mixed[i] / mixed[i].sum()
    return mixed


def replica(pass_: Pass, classes: Classes | None = None, start: int = 0, normalise: bool = True) -> Tensor:
    """Product over blocks of the head-averaged attention plus identity, later blocks on the left.

    Args:
        pass_: The recorded forward pass.
        classes: Not used.
        start: First block (from 0) to enter the product.
        normalise: Whether the rows of each factor are made to sum to one.

    Returns:
        Patch relevance, shape b, S.
    """
    maps = []
    for image in range(pass_.logits.shape[0]):
        product = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        for block in pass_.blocks[start:]:
            product = with_residual(head_mean(block.A[image].detach()), normalise) @ product
        maps.append(pass_.read(product))
    return torch.stack(maps)


def per_head(pass_: Pass, classes: Classes | None = None, start: int = 0, normalise: bool = True) -> Tensor:
    """The form of the TAM repository: one product for each head, heads averaged only at the end.

    Arguments and result are those of ``replica``.
    """
    maps = []
    for image in range(pass_.logits.shape[0]):
        products = []
        for h in range(pass_.blocks[0].A.shape[1]):
            product = torch.eye(pass_.r.shape[0], dtype=torch.float64)
            for block in pass_.blocks[start:]:
                product = with_residual(block.A[image, h].detach(), normalise) @ product
            products.append(product)
        maps.append(pass_.read(head_mean(torch.stack(products))))
    return torch.stack(maps)


def vit_explain(
    pass_: Pass,
    classes: Classes | None = None,
    discard: float = 0.9,
    fusion: str = "mean",
    keepdim: bool = False,
    divide_by_max: bool = False,
) -> Tensor:
    """Rollout as the vit-explain program computes it on a single image.

    Args:
        pass_: The recorded forward pass.
        classes: Not used.
        discard: Share of the entries of each fused map, smallest first, that is set to zero. The count is cut down
            to a whole number; entry (0, 0) is counted but never zeroed.
        fusion: How heads are joined: "mean", "max" or "min".
        keepdim: False repeats the fault of the program: its row sums are broadcast along the wrong axis, so that
            entry (i, j) is divided by the sum of row j. True divides by the sum of row i.
        divide_by_max: Whether each map ends divided by its largest entry, as the program does.

    Returns:
        Patch relevance, shape b, S.
    """
    maps = []
    for image in range(pass_.logits.shape[0]):
        n = pass_.r.shape[0]
        product = torch.eye(n, dtype=torch.float64)
        for block in pass_.blocks:
            A = block.A[image].detach()
            if fusion == "mean":
                fused = head_mean(A)
            elif fusion == "max":
                fused = A.amax(dim=0)
            elif fusion == "min":
                fused = A.amin(dim=0)
            else:
                raise ValueError(f"unknown fusion {fusion!r}")
            fused = fused.clone()
            smallest = sorted((float(fused[i, j]), i, j) for i in range(n) for j in range(n))
            for _, i, j in smallest[: int(n * n * discard)]:
                if (i, j) != (0, 0):
                    fused[i, j] = 0.0
            half = (fused + torch.eye(n, dtype=torch.float64)) / 2
            sums = half.sum(dim=1)
            factor = torch.zeros_like(half)
            for i in range(n):
                for j in range(n):
                    factor[i, j] = half[i, j] / (sums[i] if keepdim else sums[j])
            product = factor @ product
        relevance = pass_.read(product)
        maps.append(relevance / relevance.max() if divide_by_max else relevance)
    return torch.stack(maps)
