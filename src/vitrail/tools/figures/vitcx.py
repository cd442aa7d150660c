"""Figures of ViT-CX: deletion and insertion scores, masks and their features, impacts and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import OptionError, TargetError
from vitrail.inputs.targets import Target
from vitrail.methods.registry import choose, within
from vitrail.models import LoadedModel
from vitrail.tools.figures.canvas import (
    BAR_WIDTH,
    CELL,
    CHART_COLOURS,
    GAP,
    HEADING,
    INK,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    QUIET,
    SMALL,
    Canvas,
    CanvasGrid,
    colour_map,
    empty_map_note,
    overlay_map,
)
from vitrail.tools.figures.mask_similarity import convert_images, feature_maps, load_compared, pairwise_cosines
from vitrail.tools.figures.method_columns import draw_comparison
from vitrail.tools.figures.prepare import (
    check_integer,
    explain_images,
    input_image,
    probe_without_target,
    resolve_targets,
    select_methods,
)
from vitrail.tools.figures.registry import Progress, register_figure
from vitrail.tools.figures.vitcx_data import (
    INSERTION_STARTS,
    MAPS_PER_ROW,
    attention_maps,
    deletion_insertion,
    explain_vit_cx,
    feature_kind,
    mask_index,
    masked_with_noise,
    most_similar_feature,
    select_masks,
    to_pixels,
)
from vitrail.viz.colormap import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "xie2023vitcx"
COMPARED = ("transformer_attribution", "transformer_mm", "tam", "scorecam", "vit_cx")


@register_figure("vitcx-1", "ViT-CX and other methods, with deletion and insertion scores", CITE)
def draw_methods(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    step: int = 1792,
    canvas: str = "blur",
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps of several methods with the areas under their deletion and insertion curves; the best are marked.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: Classes, as for ``explain``.
        methods: Methods to compare; by default those of the paper that apply to the model.
        step: Pixels deleted or inserted at a time in an image of 224×224; the same share in images of other sizes.
        canvas: Image that pixels are inserted into: the image under a "blur", or its "mean" colour.
        quick: Use the options that make slow methods quick.
        progress: Progress callbacks.
    """
    progress = progress or Progress()
    check_integer("step", step, 1)
    choose("canvas", canvas, INSERTION_STARTS)
    if callable(targets):
        raise TargetError("deletion and insertion need classes as targets, got a function")
    rows = resolve_targets(about, images, targets)
    chosen = select_methods(about, images, methods, COMPARED, quick)
    explanations = explain_images(about, images, rows, chosen, progress)
    scores: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}
    progress.begin("Deletion and insertion", sum(e[next(iter(e))].maps.shape[1] for e in explanations))
    for i, group in enumerate(explanations):
        for k in range(next(iter(group.values())).maps.shape[1]):
            settings: dict[str, Any] = {"step": step, "canvas": canvas, "advance": progress.evaluated}
            scores[i, k] = deletion_insertion(about, images[i : i + 1], group, k, **settings)
            progress.step()

    def caption(i: int, k: int, name: str) -> str:
        # Ties are decided on rounded values, as printed.
        shown = {other: (f"{d:.2f}", f"{n:.2f}") for other, (d, n) in scores[i, k].items()}
        deletion, insertion = shown[name]
        lowest = "↓" if float(deletion) == min(float(s[0]) for s in shown.values()) else ""
        highest = "↑" if float(insertion) == max(float(s[1]) for s in shown.values()) else ""
        return f"Del {deletion}{lowest}  Ins {insertion}{highest}"

    start = "the blurred image" if canvas == "blur" else "the mean colour"
    note = f"Del: deletion AUC, mean colour (↓ lowest). Ins: insertion AUC into {start} (↑ highest)."
    return draw_comparison(explanations, caption, note)


@register_figure("vitcx-2", "attention maps, feature maps, and masks made from feature maps", CITE, scenes=1)
def draw_masks(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """Draw five attention maps of the last heads, five feature maps, and five masks.

    The masks are evenly spaced in the order of impact, from highest to lowest; above each is the most similar feature
    map.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: One class per image, as for ``explain``.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
        progress: Progress callbacks.
    """
    explanations = explain_vit_cx(about, images, targets, progress, 1, method)
    tall = CELL * images.shape[2] / images.shape[3]
    line, head = LINE + 0.05, MARGIN + LINE + 0.05
    left = MARGIN + LABEL_WIDTH + CELL + 0.12 + LABEL_WIDTH
    each = 3 * (tall + line)
    height = head + len(explanations) * (each + 0.1) - 0.1 - LINE + MARGIN
    canvas = Canvas(left + MAPS_PER_ROW * (CELL + GAP) - GAP + BAR_WIDTH + MARGIN, height)
    for i, e in enumerate(explanations):
        grid = CanvasGrid(left, head + i * (each + 0.1), 3, MAPS_PER_ROW, CELL, tall, row_gap=line)
        image = input_image(e)
        box = (MARGIN + LABEL_WIDTH, grid[1, 0][1], CELL, tall)
        canvas.image(box, image)
        canvas.text_above(box, "Input", SMALL)
        canvas.row_label(box, e.label(0, 0))
        for row, name in enumerate(("attention", "feature maps", "masks")):
            canvas.row_label(grid[row, 0], name)
        for column, (title, attention) in enumerate(attention_maps(about, images[i : i + 1])):
            canvas.image(grid[0, column], colour_map(attention))
            canvas.text_above(grid[0, column], title, SMALL)
        masks, impact = e.intermediates["masks"][0][0], e.intermediates["impact"][0][0][0].cpu()
        order = impact.argsort(descending=True)
        picked = order[torch.linspace(0, len(order) - 1, min(MAPS_PER_ROW, len(order))).round().long()].tolist()
        probe = probe_without_target(about, images[i : i + 1])
        features = probe.features(feature_kind(e.options["mode"], e.options.get("features")), stage=-2)[0].float().cpu()
        for column, m in enumerate(picked):
            channel = most_similar_feature(features, masks[m])
            canvas.image(grid[1, column], colour_map(features[channel]))
            canvas.text_above(grid[1, column], f"channel {channel + 1}", SMALL)
            canvas.image(grid[2, column], colour_map(masks[m], scale=1.0))
            canvas.text_above(grid[2, column], f"impact {float(impact[m]):.2f}", SMALL)
        canvas.colour_bars(grid.right, grid.top, tall, [False])
    return canvas.figure


@register_figure("vitcx-4", "similarity of masks before clustering, optionally beside another model", CITE, scenes=16)
def draw_mask_similarity(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,  # noqa: ARG001
    *,
    mode: str = "released",
    image: int = 0,
    compare: str | nn.Module | LoadedModel | None = None,
    compare_weights: str | None = None,
    progress: Progress | None = None,
) -> Figure:
    """Draw a histogram of the cosines between all pairs of masks of one image, and of the means of several images.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: Not used: masks do not depend on a class.
        mode: Mode of ViT-CX, which decides the features that masks are made from.
        image: Index of the image whose pairs are shown.
        compare: A second model, as a name that ``load`` takes or as an object. A model without attention, such as
            "torchvision:resnet50", gives the output of its last layer on a grid.
        compare_weights: File with the weights of ``compare``, if it is a name: safetensors, or a torch file of tensors.
        progress: Progress callbacks.
    """
    progress = progress or Progress()
    within("image", check_integer("image", image), len(images), "images")
    image = range(len(images))[image]
    if compare is None and compare_weights is not None:
        raise OptionError("compare_weights= needs the model: pass compare= too, such as 'torchvision:resnet50'")
    models = [(about, images)]
    if compare is not None:
        other = load_compared(compare, compare_weights)
        other.module.to(images.device)
        models.append((other, convert_images(images, about, other)))
    kind = feature_kind(mode)
    progress.begin("Comparing masks", len(models) * len(images))
    pairs: list[list[Array]] = []
    for model, own in models:
        pairs.append([])
        for one in own:
            features = feature_maps(model, one[None], kind)
            pairs[-1].append(pairwise_cosines(features, (int(own.shape[2]), int(own.shape[3]))))
            progress.step()
    names = [model.name.partition(".")[0] or type(model.module).__name__ for model, _ in models]
    panels = 2 if len(images) > 1 else 1
    wide, tall, left, legend = 2.5, 1.6, 0.5, 0.2 if len(models) > 1 else 0.0
    canvas = Canvas(left + panels * (wide + 0.65) - 0.65 + 0.2, 0.32 + tall + 0.45 + legend)
    title = "pairs of masks" + (f" of image {image + 1}" if panels > 1 else "")
    shown = [(title, "cosine of two masks", "share of pairs (%)", [own[image] for own in pairs])]
    if panels > 1:
        by_image = [np.array([p.mean() for p in own]) for own in pairs]
        shown += [(f"means of {len(images)} images", "mean cosine of an image's masks", "images (%)", by_image)]
    for i, (what, x, y, groups) in enumerate(shown):
        counted = f"{len(groups[0]):,} {what}" if i == 0 and not legend else what
        heading = counted if legend else f"{counted}, mean {groups[0].mean():.2f}"
        axes = canvas.chart((left + i * (wide + 0.65), 0.32, wide, tall), heading, x, y)
        _draw_histograms(axes, groups, names)
    if legend:
        for i, name in enumerate(names):
            means = ", ".join(f"{groups[i].mean():.2f}" for *_, groups in shown)
            across = left + i * (canvas.width - left) / 2
            canvas.text(across, canvas.height - 0.12, f"■ {name}, mean {means}", ha="left", color=CHART_COLOURS[i])
    return canvas.figure


def _draw_histograms(axes: Any, groups: Sequence[Array], names: Sequence[str]) -> None:
    """Draw a histogram for each model, on common bins, with a dashed line at its mean."""
    low = float(np.floor(10 * min(values.min() for values in groups) - 0.5) / 10)
    edges = np.linspace(low, 1, 1 + int(np.clip(max(map(len, groups)), 10, 40)))
    for values, name, colour in zip(groups, names, CHART_COLOURS, strict=False):
        weights = np.full(len(values), 100 / len(values))
        alpha = 1.0 if len(groups) == 1 else 0.6
        axes.hist(values, edges, weights=weights, color=colour, ec=colour, lw=0.3, alpha=alpha, label=name)
        axes.axvline(values.mean(), color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xlim(low, 1)
    axes.locator_params(nbins=5)


@register_figure("vitcx-5", "masked images, with and without noise, and plain and debiased impact", CITE, scenes=1)
def draw_impacts(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    masks: Sequence[int] | int | None = None,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """Draw the masked image, the same with noise on what the mask hides, and both impacts of a few masks.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: One class per image, as for ``explain``.
        masks: Indices of masks, from 0; by default those whose impact debiasing lowers most and raises most, and, of
            the rest, those with the highest and the lowest debiased impact.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
        progress: Progress callbacks.
    """
    explanations = explain_vit_cx(about, images, targets, progress, 1, method)
    if not explanations[0].options["debias"]:
        raise OptionError("debias=False adds no noise: use a variant of vit_cx with debias=True")
    tall = CELL * images.shape[2] / images.shape[3]
    given = masks if masks is None or isinstance(masks, Sequence) else [masks]
    chosen = [select_masks(e) if given is None else [mask_index(m, e) for m in given] for e in explanations]
    columns = 1 + max(map(len, chosen))
    step, head, high = 2 * tall + GAP + LINE + 0.85, MARGIN + LINE + 0.05, 0.62
    left = MARGIN + LABEL_WIDTH
    canvas = Canvas(left + columns * (CELL + GAP) - GAP + 0.15, head + len(explanations) * step + 0.05)
    for i, (e, picked) in enumerate(zip(explanations, chosen, strict=True)):
        grid = CanvasGrid(left, head + i * step, 2, columns, CELL, tall)
        canvas.row_label(grid[0, 0], e.label(0, 0))
        canvas.image(grid[0, 0], input_image(e))
        canvas.text_above(grid[0, 0], "Input", SMALL)
        canvas.text(left + CELL - 0.02, grid[1, 0][1] + tall / 2, "noise on what\nthe mask hides", SMALL, ha="right",
                    color=QUIET)  # fmt: skip
        plain, debiased = (e.intermediates[name][0][0][0].cpu() for name in ("impact_plain", "impact"))
        low = min(0.0, float(plain.min()), float(debiased.min()))
        most = max(float(plain.max()), float(debiased.max()), 1e-6)
        for column, m in enumerate(picked, 1):
            box = grid[0, column]
            mask = e.intermediates["masks"][0][0][m]
            canvas.image(box, to_pixels(e, images[i] * mask.to(images)))
            canvas.image(grid[1, column], to_pixels(e, masked_with_noise(e, images[i], m)))
            canvas.text_above(box, f"mask {m + 1}", SMALL)
            axes = canvas.chart((box[0] + 0.32, grid.bottom + 0.1, CELL - 0.36, high))
            values = [float(plain[m]), float(debiased[m])]
            axes.bar((0, 1), values, width=0.6, color=(QUIET, CHART_COLOURS[1]))
            for x, value in enumerate(values):
                axes.annotate(f"{value:.2f}", (x, max(value, 0)), xytext=(0, 1.5), textcoords="offset points",
                              ha="center", fontsize=SMALL, color=INK)  # fmt: skip
            axes.set_ylim(low * 1.1, most * 1.3)
            axes.set_xlim(-0.6, 1.6)
            axes.set_xticks((0, 1), ("plain", "debiased"))
        middle = grid.bottom + 0.1 + high / 2
        canvas.text(left + CELL - 0.02, middle, "impact on\nthe class", SMALL, ha="right", color=QUIET)
    return canvas.figure


@register_figure("vitcx-6", "coverage of pixels by masks, and the map before and after its correction", CITE, scenes=2)
def draw_coverage(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    method: str = "vit_cx",
    progress: Progress | None = None,
) -> Figure:
    """Draw the coverage of pixels by all masks, the impact-weighted sum of masks, and that sum divided by coverage.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        method: ViT-CX, optionally with options, such as "vit_cx:mode=paper".
        progress: Progress callbacks.
    """
    explanations = explain_vit_cx(about, images, targets, progress, None, method)
    if not explanations[0].options["coverage"]:
        raise OptionError("coverage=False has no corrected map: use a variant of vit_cx with coverage=True")
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    cell = CELL + 0.2
    tall = cell * images.shape[2] / images.shape[3]
    head = MARGIN + LINE + 0.06
    grid = CanvasGrid(MARGIN + LABEL_WIDTH, head, len(rows), 4, cell, tall)
    canvas = Canvas(grid.right + BAR_WIDTH + MARGIN, grid.bottom + MARGIN)
    for row, (e, k) in enumerate(rows):
        image = input_image(e)
        masks, weights = e.intermediates["masks"][0][0], e.intermediates["impact"][0][0][k].cpu()
        uncorrected = (weights[:, None, None] * masks).sum(0)
        canvas.row_label(grid[row, 0], e.label(0, k))
        canvas.image(grid[row, 0], image)
        for column, shown in enumerate((e.intermediates["coverage"][0][0], uncorrected, e.maps[0, k]), 1):
            canvas.image(grid[row, column], overlay_map(image, shown), empty_map_note(shown))
    for box, title in zip(grid, ("Input", "Coverage", "Uncorrected", "Corrected"), strict=False):
        canvas.text_above(box, title, HEADING)
    canvas.colour_bars(grid.right, head, tall, [False])
    return canvas.figure
