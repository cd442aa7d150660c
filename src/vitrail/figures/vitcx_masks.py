"""What the figures of ViT-CX show: its masks, the features they were made of, and attention to set beside them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.errors import NotApplicableError, OptionError
from vitrail.explanation import Explanation
from vitrail.figures.prepare import asked, explained_by, probe, whole_number
from vitrail.figures.registry import Progress
from vitrail.methods.registry import choose, find, within
from vitrail.models import LoadedModel
from vitrail.postprocess import normalise
from vitrail.targets import Target
from vitrail.viz.colormap import Array

#: Pictures in each row of the figure of masks.
FIVE = 5


def masked(picture: Array, mask: Tensor) -> Array:
    """A picture behind a mask: black where the mask is 0."""
    shown: Array = (picture * mask.float().cpu().numpy()[..., None]).round().astype(np.uint8)
    return shown


def masks_of(
    about: LoadedModel, images: Tensor, targets: Target, progress: Progress | None, count: int | None, method: str
) -> list[Explanation]:
    """ViT-CX on every image with what it computed on the way."""
    label, line, options = find(method)
    if line.name != "vit_cx":
        raise OptionError(f"this figure shows what ViT-CX computes on the way, which {line.name} does not")
    if options["masks"] == "random":
        raise OptionError("random masks are not made of features: this figure has nothing to show of them")
    rows = asked(about, images, targets, count)
    found = explained_by(about, images, rows, label, progress or Progress())
    if any(e.parts["masks"][0][0] is None for e in found):
        raise NotApplicableError("an image has no feature map that varies, so ViT-CX has no masks to show")
    return found


def kind_of_features(mode: str) -> str:
    """Which features ViT-CX takes."""
    choose("mode", mode, ("released", "paper"))
    return "branch" if mode == "paper" else "Y"


def attention_maps(about: LoadedModel, image: Tensor) -> list[tuple[str, Tensor]]:
    """What the readout attends to in the last heads, from the last block upwards: names and grids, five at most."""
    looking = probe(about, image)
    grid = looking.structure.layout.grid
    if looking.structure.kind != "plain" or grid is None:
        return []
    shown: list[tuple[str, Tensor]] = []
    with (
        forward_pass(looking.model, looking.model_inputs, looking.structure, [{"A": slice(-FIVE, None)}]) as one,
        torch.no_grad(),
    ):
        trace = one.trace()
        for number in range(len(trace.blocks), max(0, len(trace.blocks) - FIVE), -1):
            A = trace.blocks[number - 1].A
            rows = trace.patches(trace.reading(*A.shape[-2:]) @ A)[0].float().cpu()
            shown += [(f"block {number}, head {h + 1}", row.reshape(grid)) for h, row in enumerate(rows)]
            if len(shown) >= FIVE:
                break
    return shown[:FIVE]


def most_like(features: Tensor, mask: Tensor) -> int:
    """The feature map most like a mask, by the cosine at the size of the grid, each brought to [0, 1] first."""
    size = (int(features.shape[1]), int(features.shape[2]))
    small = torch.nn.functional.adaptive_avg_pool2d(mask[None].float().cpu(), size)
    return int(torch.cosine_similarity(normalise(features).flatten(1), small.flatten(1)).argmax())


def numbered(mask: object, e: Explanation) -> int:
    """A mask's number, counted from 0."""
    count = len(e.parts["masks"][0][0])
    within("masks", whole_number("masks", mask), count, "masks")
    return range(count)[whole_number("masks", mask)]


def telling(e: Explanation) -> list[int]:
    """Masks worth showing: where the two scores differ most, either way, and the extremes of the debiased one."""
    plain, debiased = (e.parts[name][0][0][0].cpu() for name in ("impact_plain", "impact"))
    ranked = [(plain - debiased).argsort(descending=True), (debiased - plain).argsort(descending=True),
              debiased.argsort(descending=True), debiased.argsort()]  # fmt: skip
    chosen: list[int] = []
    for order in ranked:
        rest = [int(m) for m in order if int(m) not in chosen]
        chosen += rest[:1]
    return chosen
