"""Grad-CAM on the last attention map: heads take the part of channels, their mean gradient weighs them."""

import torch
from torch import Tensor

from .gradcam_features import first_component, mean_of_scaled
from .vit import Classes, Pass, grads


def replica(
    pass_: Pass,
    classes: Classes,
    weights: str = "row",
    score: str | None = None,
    blocks: tuple[int, ...] = (-1,),
    eigen: bool = False,
) -> Tensor:
    """Weigh each head's readout row by the mean of its gradient, average over heads, keep the positive part.

    With r the readout vector and P prefix tokens, head h gives ``a_h = (r A_h)[P:]`` and the weight
    ``w_h = mean((r dA_h)[P:])``. For a class token r picks row 0; with two readout tokens it averages two rows; with
    mean pooling it averages the patch rows, so that w_h is the mean of dA_h over patch rows and patch columns.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        weights: "row" as above; "matrix" averages dA_h over all its entries, prefix rows and columns included.
        score: What is differentiated; by default what the pass says.
        blocks: Which blocks; of several, the mean of their maps, each divided by its maximum.
        eigen: Take the first principal component of the weighed heads instead of their mean.

    Returns:
        Patch relevance, shape b, S.
    """
    gradients = grads(pass_, classes, score)[0]
    maps = []
    for image in range(gradients[-1].shape[0]):
        cams = []
        for block in blocks:
            A, dA = pass_.blocks[block].A.detach()[image], gradients[block][image]
            columns = []
            for h in range(A.shape[0]):
                if weights == "row":
                    w = pass_.read(dA[h]).mean()
                elif weights == "matrix":
                    w = dA[h].mean()
                else:
                    raise ValueError(f"unknown weights {weights!r}")
                columns.append(w * pass_.read(A[h]))
            # The clamp comes after the head mean: heads with opposite signs cancel first.
            cams.append((first_component(columns) if eigen else sum(columns) / len(columns)).clamp(min=0.0))
        maps.append(cams[0] if len(cams) == 1 else mean_of_scaled(cams))
    return torch.stack(maps)
