"""Class scores of perturbed images by forward passes that were recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.capture import cuda_graphs
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import logits_of
from vitrail.capture.model_structure import ModelStructure

#: Numbers in the residual stream of a batch up to which launching a forward pass takes longer than computing it.
MOST_NUMBERS = 2**22
#: Batches are filled up to a multiple of this size, so that a few recordings serve all.
MULTIPLE = 8


def recorded_scores(model: nn.Module, structure: ModelStructure, images: Tensor) -> Tensor | None:
    """What the model says of images, shape (N, C), without gradients; None where the pass is not to be recorded.

    Args:
        model: A model that takes images alone.
        structure: Its structure.
        images: Images on its device, shape (N, channels, height, width).
    """
    count = len(images)
    filled = -(-count // MULTIPLE) * MULTIPLE
    tokens = max((layer.size[1] for layer in structure.layers), default=0)
    if not count or not 0 < filled * tokens * structure.width <= MOST_NUMBERS:
        return None
    if not cuda_graphs.recordable(model, [images]):
        return None

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], ModelStructure]:
        with frozen(model), torch.no_grad():
            scores = logits_of(model(given[0]))
        assert scores is not None
        return [scores], structure  # kept with the recording, lest another structure come to have its id

    padded = torch.cat([images, images[-1:].expand(filled - count, -1, -1, -1)]) if filled > count else images
    (scores,), _ = cuda_graphs.run(model, ("scores", id(structure)), [padded.contiguous()], compute)
    return scores[:count]
