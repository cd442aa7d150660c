"""Grad-CAM on the last attention map: heads take the part of channels, their mean gradient weighs them."""

import torch
from torch import Tensor

from .vit import Classes, Pass, grads


def replica(pass_: Pass, classes: Classes, weights: str = "row", score: str | None = None) -> Tensor:
    """Weigh each head's readout row by the mean of its gradient, average over heads, keep the positive part.

    With r the readout vector and P prefix tokens, head h gives ``a_h = (r A_h)[P:]`` and the weight
    ``w_h = mean((r dA_h)[P:])``. For a class token r picks row 0; with two readout tokens it averages two rows; with
    mean pooling it averages the patch rows, so that w_h is the mean of dA_h over patch rows and patch columns.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        weights: "row" as above; "matrix" averages dA_h over all its entries, prefix rows and columns included.
        score: What is differentiated; by default what the pass says.

    Returns:
        Patch relevance, shape b, S.
    """
    dA = grads(pass_, classes, score)[0][-1]
    A = pass_.blocks[-1].A.detach()
    maps = []
    for image in range(A.shape[0]):
        H = A.shape[1]
        cam = torch.zeros(A.shape[-1] - pass_.prefix, dtype=torch.float64)
        for h in range(H):
            if weights == "row":
                w = pass_.read(dA[image, h]).mean()
            elif weights == "matrix":
                w = dA[image, h].mean()
            else:
                raise ValueError(f"unknown weights {weights!r}")
            cam = cam + w * pass_.read(A[image, h])
        # The clamp comes after the head mean: heads with opposite signs cancel first.
        maps.append((cam / H).clamp(min=0.0))
    return torch.stack(maps)
