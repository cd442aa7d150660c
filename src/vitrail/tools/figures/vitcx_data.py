"""Data of the ViT-CX figures: masks, feature maps, attention maps, deletion and insertion scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.capture.forward import forward_pass
from vitrail.errors import NotApplicableError, OptionError
from vitrail.methods.postprocess import normalise
from vitrail.methods.registry import choose, find, within
from vitrail.models import LoadedModel
from vitrail.models.preprocess import to_bytes
from vitrail.pipeline.explanation import Explanation
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import PRESETS, LevelGrid
from vitrail.tools.figures.prepare import check_integer, explain_with_intermediates, probe_without_target
from vitrail.tools.figures.registry import FigureInputs
from vitrail.viz.colormap import Array

#: Maps in each row of the figure of masks.
MAPS_PER_ROW = 5
#: Images that insertion starts from: the blurred image, or its mean colour.
INSERTION_STARTS = ("blur", "mean")


def to_pixels(e: Explanation, image: Tensor) -> Array:
    """A changed model input, shape (3, height, width), as the pixels the model is given, with its normalisation undone.

    Zero, the value of a masked pixel, is the mean colour of the model's training images.
    """
    assert e.images is not None
    if e.preprocess is not None:
        known: Array = e.preprocess.denormalise(image[None])[0]
        return known
    low, high = (float(value) for value in e.images[0].float().aminmax())
    rescaled: Array = to_bytes(((image.float() - low) / max(high - low, 1e-12))[None])[0]
    return rescaled


def masked_with_noise(e: Explanation, image: Tensor, index: int) -> Tensor:
    """Input of the debiased impact of a mask: the masked image, with noise on what the mask hides.

    The noise is the first that ViT-CX drew for this mask: one for each mask, or a common one with mode="paper".
    """
    mask: Tensor = e.intermediates["masks"][0][0][index].to(image)
    home = image.device if image.device.type == "cuda" else torch.device("cpu")
    generator = torch.Generator(home).manual_seed(e.options["seed"])
    noise = torch.empty(0)
    common = (e.options.get("noise") or ("shared" if e.options["mode"] == "paper" else "per_mask")) == "shared"
    for _ in range(1 if common else index + 1):
        noise = torch.randn(image.shape, generator=generator, device=home, dtype=torch.float32)
    sigma = float(e.options["sigma"])
    return image * mask + (1 - mask) * (noise * sigma).to(image)


def explain_vit_cx(given: FigureInputs, count: int | None, method: str) -> list[Explanation]:
    """Explain each image with ViT-CX and keep its masks and impacts."""
    spec, entry, options = find(method)
    if entry.name != "vit_cx":
        raise OptionError(f"this figure shows intermediate results of ViT-CX, got method={method!r}: use vit_cx")
    if options["masks"] == "random":
        raise OptionError("this figure shows masks made from features, but masks=random: use another variant of vit_cx")
    explanations = explain_with_intermediates(given, spec, count)
    if any(e.intermediates["masks"][0][0] is None for e in explanations):
        raise NotApplicableError("ViT-CX has no masks for an image: all its feature maps are constant")
    return explanations


def feature_kind(mode: str, features: str | None = None) -> str:
    """Name of the features that ViT-CX makes masks from, in the terms of ``Probe.features``."""
    choose("mode", mode, ("released", "paper"))
    kinds = {"norm1": "Y", "attention": "branch", "skip": "X_mid", "block": "out"}
    return kinds[features or ("attention" if mode == "paper" else "norm1")]


def attention_maps(loaded: LoadedModel, image: Tensor) -> list[tuple[str, Tensor]]:
    """Attention of the readout in the heads of the last blocks: at most five names and grids, last block first."""
    probe = probe_without_target(loaded, image)
    grid = probe.structure.layout.grid
    if probe.structure.kind != "plain" or grid is None:
        return []
    maps: list[tuple[str, Tensor]] = []
    with (
        forward_pass(probe.model, probe.model_inputs, probe.structure, [{"A": slice(-MAPS_PER_ROW, None)}]) as one,
        torch.no_grad(),
    ):
        trace = one.trace()
        for number in range(len(trace.blocks), max(0, len(trace.blocks) - MAPS_PER_ROW), -1):
            A = trace.blocks[number - 1].A
            rows = trace.patches(trace.reading(*A.shape[-2:]) @ A)[0].float().cpu()
            maps += [(f"block {number}, head {h + 1}", row.reshape(grid)) for h, row in enumerate(rows)]
            if len(maps) >= MAPS_PER_ROW:
                break
    return maps[:MAPS_PER_ROW]


def most_similar_feature(features: Tensor, mask: Tensor) -> int:
    """Index of the feature map most similar to a mask: cosine on the feature grid, each map scaled to [0, 1]."""
    size = (int(features.shape[1]), int(features.shape[2]))
    small = torch.nn.functional.adaptive_avg_pool2d(mask[None].float().cpu(), size)
    return int(torch.cosine_similarity(normalise(features).flatten(1), small.flatten(1)).argmax())


def mask_index(mask: object, e: Explanation) -> int:
    """Check the index of a mask, which may count from the end, and return it counted from 0."""
    count = len(e.intermediates["masks"][0][0])
    within("masks", check_integer("masks", mask), count, "masks")
    return range(count)[check_integer("masks", mask)]


def select_masks(e: Explanation) -> list[int]:
    """Select masks to show: largest difference between plain and debiased impact, either way, then extremes.

    The extremes are the highest and the lowest debiased impact among the remaining masks.
    """
    plain, debiased = (e.intermediates[name][0][0][0].cpu() for name in ("impact_plain", "impact"))
    orders = [(plain - debiased).argsort(descending=True), (debiased - plain).argsort(descending=True),
              debiased.argsort(descending=True), debiased.argsort()]  # fmt: skip
    selected: list[int] = []
    for order in orders:
        rest = [int(m) for m in order if int(m) not in selected]
        selected += rest[:1]
    return selected


def deletion_insertion(
    loaded: LoadedModel,
    image: Tensor,
    explanations: Mapping[str, Explanation],
    k: int,
    *,
    step: int = 1792,
    canvas: str = "blur",
    batch: int = 32,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, tuple[float, float]]:
    """Areas under the deletion and the insertion curve of each method's map of one image and one class.

    Args:
        loaded: The model.
        image: Model input, shape (1, 3, height, width).
        explanations: The methods' explanations of it; their targets are classes.
        k: Index of the target.
        step: Pixels deleted or inserted at a time in an image of 224×224; the same share in images of other sizes.
        canvas: Image that pixels are inserted into: the image under a "blur", or its "mean" colour.
        batch: Largest number of images in a forward pass.
        advance: Called with the number of images that the model has evaluated since the last call.
    """
    if canvas not in INSERTION_STARTS:
        raise OptionError(f"canvas={canvas!r} is not one of {', '.join(map(repr, INSERTION_STARTS))}")
    whole = PRESETS["vitcx"]
    curves = [c for c in whole.curves if c.name == "deletion" or c.fill == canvas]
    preset = replace(whole, curves=tuple(replace(c, grid=LevelGrid(step=step)) for c in curves))
    targets = next(iter(explanations.values())).targets
    assert targets is not None
    evaluate = Evaluator(loaded, [preset], batch=batch, advance=advance)
    maps = {name: e.maps[:, k] for name, e in explanations.items()}
    with torch.no_grad():
        records = evaluate(image, maps, predicted=targets[:, k])
    scores = {name: records.scores(preset, name) for name in maps}
    return {name: (float(s["deletion(mean)"][0]), float(s[f"insertion({canvas})"][0])) for name, s in scores.items()}
