"""Raw attention: how much the readout token attends to each patch in the last block."""

import torch
from torch import Tensor

from .vit import Classes, Pass


def head_mean(A: Tensor) -> Tensor:
    """Average attention maps over heads, one head after the other.

    Args:
        A: Attention of one image, shape H, n, n.

    Returns:
        The averaged map, shape n, n.
    """
    total = torch.zeros_like(A[0])
    for h in range(A.shape[0]):
        total = total + A[h]
    return total / A.shape[0]


def replica(pass_: Pass, classes: Classes | None = None) -> Tensor:
    """Head mean of the last attention map, read at the readout rows.

    Args:
        pass_: The recorded forward pass.
        classes: Not used (the method does not look at a class); taken so that all replicas are called alike.

    Returns:
        Patch relevance, shape b, S.
    """
    last = pass_.blocks[-1].A.detach()
    return torch.stack([pass_.read(head_mean(A)) for A in last])
