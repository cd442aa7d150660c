"""Forward passes without gradients that were recorded as CUDA graphs: of the inputs, and of perturbed images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.forward import ForwardPass, forward_only, forward_pass
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs, logits_of
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import class_logits, output_count
from vitrail.capture.trace import Needs
from vitrail.fast import recordings
from vitrail.fast.split_products import split_products

#: Numbers in the residual stream of a batch up to which launching a pass takes a good part of its time: by whether the
#: model is in half precision, in which a GPU computes several times as fast.
MOST_NUMBERS = {False: 2**22, True: 2**24}
#: Batches are filled up to a multiple of this size, so that a few recordings serve all.
MULTIPLE = 8


def pays(structure: ModelStructure, batch: int, dtype: torch.dtype) -> bool:
    """Whether a pass over this many inputs is worth a recording."""
    tokens = max((layer.size[1] for layer in structure.layers), default=0)
    return batch * tokens * structure.width <= MOST_NUMBERS[dtype in (torch.bfloat16, torch.float16)]


def recorded_scores(model: nn.Module, structure: ModelStructure, images: Tensor) -> Tensor | None:
    """What the model says of images, shape (N, C), without gradients; None where the pass is not to be recorded.

    Args:
        model: A model that takes images alone.
        structure: Its structure.
        images: Images on its device, shape (N, channels, height, width).
    """
    if structure.kind != "plain":  # convolutions are computed in other ways for other batch sizes
        return None
    count = len(images)
    filled = -(-count // MULTIPLE) * MULTIPLE
    if not count or not pays(structure, filled, images.dtype):
        return None
    if not recordings.recordable(model, [images]):
        return None

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], ModelStructure]:
        with frozen(model), torch.no_grad(), split_products(given[0].device):
            scores = logits_of(model(given[0]))
        assert scores is not None
        return [scores], structure  # kept with the recording, lest another structure come to have its id

    padded = torch.cat([images, images[-1:].expand(filled - count, -1, -1, -1)]) if filled > count else images
    (scores,), _ = recordings.run(model, ("scores", id(structure)), [padded.contiguous()], compute)
    return scores[:count]


def recorded_pass(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, needs: Sequence[Needs]
) -> ForwardPass | None:
    """A forward pass of which class scores and some tensors are read; None where it is not to be recorded.

    The class scores are all that is left of the model's output.

    Args:
        model: The model.
        model_inputs: Inputs on its device.
        structure: Its structure.
        needs: What each method needs; no gradients.
    """
    image = model_inputs.image
    if image is None or not model_inputs.only_image or output_count(model) is None or structure.kind != "plain":
        return None
    if not pays(structure, len(image), image.dtype):
        return None
    if not recordings.recordable(model, [image]):
        return None

    def compute(given: Sequence[Tensor]) -> tuple[list[Tensor], tuple[ForwardPass, list[tuple[int, str]]]]:
        own = model_inputs.swap(image, given[0])
        if any(needs):
            with forward_pass(model, own, structure, needs) as one, torch.no_grad():
                return _tensors_of(one)
        return _tensors_of(forward_only(model, own, structure))

    asked = tuple(tuple((kind, where.start, where.stop) for kind, where in need.items()) for need in needs)
    (scores, *kept), (one, places) = recordings.run(model, ("pass", id(structure), asked), [image], compute)
    tensors: dict[int, dict[str, Any]] = {}
    for (index, name), tensor in zip(places, kept, strict=True):
        tensors.setdefault(index, {})[name] = tensor
    blocks = tuple(block.having(**tensors.get(i, {})) for i, block in enumerate(one.blocks))
    return replace(one, output=scores, logits=class_logits(model, scores), blocks=blocks)


def _tensors_of(one: ForwardPass) -> tuple[list[Tensor], tuple[ForwardPass, list[tuple[int, str]]]]:
    """Class scores and all tensors of the blocks; and the pass, with the block and name of each tensor."""
    scores = logits_of(one.output)
    assert scores is not None
    held = [
        (i, name, t) for i, block in enumerate(one.blocks) for name, t in vars(block).items() if isinstance(t, Tensor)
    ]
    return [scores.detach(), *(t.detach() for *_, t in held)], (one, [(i, name) for i, name, _ in held])
