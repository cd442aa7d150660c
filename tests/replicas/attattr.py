"""Self-attention attribution: integrated gradients in which one block's attention maps are faded in from zero."""

import torch
from torch import Tensor

from .raw_attention import head_mean
from .vit import Classes, Pass, gradients_at, run


def attribution(pass_: Pass, classes: Classes, i: int, steps: int, score: str) -> Tensor:
    """Attention of block i times its gradient averaged over a path, per head and signed.

    On the path all heads of block i are scaled by t / steps for t = 1 to steps; blocks before it are as in the
    plain pass, those after it compute their attention anew.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        i: Index of the block, from 0.
        steps: Number of points on the path.
        score: What is differentiated.

    Returns:
        Attribution, shape b, H, n, n.
    """
    A = pass_.blocks[i].A.detach()
    total = torch.zeros_like(A)
    for t in range(1, steps + 1):
        scaled = (A * (t / steps)).requires_grad_(True)
        replaced = run(pass_.model, pass_.images, attention={i: scaled})
        total = total + gradients_at([scaled], replaced, classes, score)[0]
    return A * total / steps


def replica(pass_: Pass, classes: Classes, start: int = -1, steps: int = 20, score: str = "logit") -> Tensor:
    """Read the head-averaged attribution of the last block, or gather the positive parts of several blocks.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        start: First block that takes part; from 0, or from the end if negative. If it is the last block, its
            attribution is read as it is, signed. Otherwise R grows from the identity by R + ReLU(attribution) R.
        steps: Number of points on the path of each block.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    L = len(pass_.blocks)
    start = start + L if start < 0 else start
    found = {i: attribution(pass_, classes, i, steps, score) for i in range(start, L)}
    maps = []
    for image in range(pass_.logits.shape[0]):
        if start == L - 1:
            maps.append(pass_.read(head_mean(found[start][image])))
            continue
        R = torch.eye(pass_.r.shape[0], dtype=torch.float64)
        for i in range(start, L):
            R = R + head_mean(found[i][image]).clamp(min=0.0) @ R
        maps.append(pass_.read(R))
    return torch.stack(maps)
