"""Gradients along the straight path from zero to the image."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import LAST
from vitrail.errors import OptionError
from vitrail.methods.probe import Probe


def path_gradient(probe: Probe, steps: int) -> Tensor:
    """Gradient at the last attention, averaged over images α·x for even α from 0 to 1, both ends included.

    For a text, x are the vectors of its tokens; positions do not change.

    Returns:
        The mean gradient, shape (b, H, m, n).
    """
    if steps < 1:
        raise OptionError(f"steps={steps} must be at least 1")
    images = probe.inputs
    alphas = torch.linspace(0, 1, steps, dtype=images.dtype, device=images.device)
    total: Tensor | None = None
    # The path is evaluated in pieces over (step, image), so that memory does not grow with the number of steps.
    for piece in probe.pieces(steps * len(images)):
        index = torch.arange(piece.start, piece.stop, device=images.device)
        step, owner = index // len(images), index % len(images)
        scaled = images[owner] * alphas[step].view(-1, *[1] * (images.dim() - 1))
        dA = probe.trace(scaled, {"dA": LAST}, owner).blocks[-1].dA
        if total is None:
            total = dA.new_zeros(len(images), *dA.shape[1:])
        total.index_add_(0, owner, dA)
    assert total is not None
    return total / steps
