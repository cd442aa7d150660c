"""Figures of GradToken: method comparisons, propagation schemes, heads and depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.inputs.targets import Target
from vitrail.methods.postprocess import upsample
from vitrail.methods.registry import choose
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.scores.segmentation import SegmentationScores, score_segmentation
from vitrail.tools.figures.canvas import (
    BAR_WIDTH,
    CELL,
    CHART_COLOURS,
    GAP,
    INK,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    QUIET,
    SMALL,
    Canvas,
    CanvasGrid,
    empty_map_note,
    overlay_map,
)
from vitrail.tools.figures.method_columns import draw_comparison
from vitrail.tools.figures.prepare import (
    check_integer,
    explain_images,
    explain_with_intermediates,
    input_image,
    resolve_targets,
    select_methods,
    to_grid,
)
from vitrail.tools.figures.registry import Progress, register_figure
from vitrail.tools.figures.scene_inputs import scenes_with_masks, trained_on_scenes
from vitrail.viz.colormap import Array, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "cheng2025gradtoken"
#: Methods of the first figure, and of the comparisons.
INTRODUCED = ("gradcam", "lrp", "raw_attention", "rollout", "gradtoken")
COMPARED = ("gradcam", "raw_attention", "rollout", "transformer_attribution", "vit_cx", "agcam", "gradtoken")
SCHEMES = {
    "gradtoken:0": "0: not propagated",
    "gradtoken:1": "1: product,\nrow",
    "gradtoken:2": "2: product,\nmatrix",
    "gradtoken:3": "3: average,\nrow",
    "gradtoken:4": "4: average,\nmatrix",
}
#: Default number of scenes to score, and maps per line in the figure of depth.
SCENES, MAX_COLUMNS = 64, 7
#: By threshold that binarises maps: key of the score, and its name.
SCORES = {
    "best": {"best_pixel_accuracy": "pixel accuracy", "map": "mAP", "best_miou": "mIoU"},
    "mean": {"pixel_accuracy": "pixel accuracy", "map": "mAP", "miou": "mIoU"},
}


@register_figure(
    "gradtoken-1", "GradToken and four earlier methods, two classes of the same image", CITE, pairs=True, scenes=1
)
def draw_introduction(
    about: LoadedModel,
    images: Tensor,
    targets: Target = "top2",
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps of Grad-CAM, LRP, raw attention, rollout and GradToken for two classes of each image.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: Two classes per image, as for ``explain``; ``[[a, b]]`` for the same classes of all images.
        methods: Methods to compare; by default those of the paper that apply to the model.
        quick: Use the options that make slow methods quick.
        progress: Progress callbacks.
    """
    rows = resolve_targets(about, images, targets, 2)
    chosen = select_methods(about, images, methods, INTRODUCED, quick)
    return draw_comparison(explain_images(about, images, rows, chosen, progress or Progress()))


@register_figure("gradtoken-7", "GradToken and other methods, one class per image", CITE)
def draw_one_class(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps of several methods for one class of each image.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: One class per image, as for ``explain``.
        methods: Methods to compare; by default those of the paper that apply to the model.
        quick: Use the options that make slow methods quick.
        progress: Progress callbacks.
    """
    rows = resolve_targets(about, images, targets, 1)
    chosen = select_methods(about, images, methods, COMPARED, quick)
    return draw_comparison(explain_images(about, images, rows, chosen, progress or Progress()))


@register_figure("gradtoken-8", "GradToken and other methods, two classes of the same image", CITE, pairs=True)
def draw_two_classes(
    about: LoadedModel,
    images: Tensor,
    targets: Target = "top2",
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps of several methods for two classes of each image, a row for each class.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: Two classes per image, as for ``explain``; ``[[a, b]]`` for the same classes of all images.
        methods: Methods to compare; by default those of the paper that apply to the model.
        quick: Use the options that make slow methods quick.
        progress: Progress callbacks.
    """
    rows = resolve_targets(about, images, targets, 2)
    chosen = select_methods(about, images, methods, COMPARED, quick)
    return draw_comparison(explain_images(about, images, rows, chosen, progress or Progress()))


@register_figure("gradtoken-9", "the five schemes of attention aggregation and propagation", CITE)
def draw_schemes(
    about: LoadedModel, images: Tensor, targets: Target = None, *, progress: Progress | None = None
) -> Figure:
    """Draw GradToken maps of its five schemes of aggregation and propagation.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        progress: Progress callbacks.
    """
    rows = resolve_targets(about, images, targets)
    chosen = select_methods(about, images, tuple(SCHEMES), ())
    return draw_comparison(explain_images(about, images, rows, chosen, progress or Progress()), headings=SCHEMES)


@register_figure("gradtoken-10", "the signed map of each head, and two means over heads", CITE, scenes=1)
def draw_heads(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    propagated: bool = True,
    scale: str = "own",
    progress: Progress | None = None,
) -> Figure:
    """Draw the map of every head (right), the input, and two means over heads (left).

    The means are of signed maps (i) and of their positive parts (ii).

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        propagated: Show heads after propagation by attention, as they are averaged; otherwise before it.
        scale: "own": each head has its own colour scale, whose maximum is written above it; "common": one for all.
        progress: Progress callbacks.
    """
    choose("scale", scale, ("common", "own"))
    rows = resolve_targets(about, images, targets)
    variants: dict[str, dict[str, Any]] = {"gradtoken:i": {}, "gradtoken:ii": {}}
    both = explain_images(about, images, rows, variants, progress or Progress(), keep=True)
    first = both[0]["gradtoken:i"]
    count = first.intermediates["heads"][0][0].shape[1]
    tall = CELL * images.shape[2] / images.shape[3]
    line, head = LINE + 0.05, MARGIN + LINE + 0.06
    each = 3 * (tall + line)
    columns = ceil(count / 3)
    shown = [(pair, k) for pair in both for k in range(pair["gradtoken:i"].maps.shape[1])]
    right = MARGIN + LABEL_WIDTH + CELL + 0.24
    width = right + columns * (CELL + GAP) - GAP + BAR_WIDTH + 0.05 + MARGIN
    canvas = Canvas(width, head + len(shown) * (each + 0.08) - 0.08 - LINE + MARGIN)
    for i, (pair, k) in enumerate(shown):
        top = head + i * (each + 0.08)
        left = CanvasGrid(MARGIN + LABEL_WIDTH, top, 3, 1, CELL, tall, row_gap=line)
        e, clamped = pair["gradtoken:i"], pair["gradtoken:ii"]
        image = input_image(e)
        canvas.row_label((left.left, left.top, CELL, tall), e.label(0, k))
        canvas.image(left[0, 0], image)
        canvas.image(left[1, 0], overlay_map(image, e.grid[0, k], True), empty_map_note(e.grid[0, k]))
        canvas.image(left[2, 0], overlay_map(image, clamped.grid[0, k]), empty_map_note(clamped.grid[0, k]))
        for row, title in enumerate(("Input", "i: mean", "ii: mean of positive parts")):
            canvas.text_above(left[row, 0], title, SMALL)
        maps = to_grid(e, e.intermediates["heads_spread" if propagated else "heads"][k][0][0]).float().cpu()
        common = float(maps.abs().max()) if scale == "common" else None
        grid = CanvasGrid(right, top, 3, columns, CELL, tall, row_gap=line)
        for index, relevance in enumerate(maps):
            box = grid[divmod(index, columns)]
            canvas.image(box, _overlay_signed(image, relevance, common), empty_map_note(relevance))
            maximum = float(relevance.abs().max()) if common is None else common
            canvas.text_above(box, f"head {index + 1} (±{maximum:.2g})", SMALL)
        x = grid.right
        canvas.colour_bar((x + 0.08, grid[0, 0][1], 0.08, tall), True, ("−max", "0", "+max"))
        canvas.colour_bar((x + 0.08, grid[2, 0][1], 0.08, tall), False)
        canvas.text(x + 0.12, grid[2, 0][1] - 0.035, "ii", SMALL, va="bottom")
    return canvas.figure


def _overlay_signed(image: Array, relevance: Tensor, scale: float | None) -> Array:
    """Overlay a signed map on an image on a given scale; None for the map's own."""
    if scale is None:
        return overlay_map(image, relevance, True)
    upsampled = upsample(relevance, (image.shape[0], image.shape[1])) / (scale or 1)
    return overlay(image, upsampled.numpy(), True)


@register_figure(
    "gradtoken-11", "depth of propagation: maps, and segmentation scores where masks are known", CITE, scenes=2
)
def draw_depth(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    scenes: int | None = None,
    threshold: str = "best",
    truth: Iterable[tuple[Tensor, Tensor, Tensor]] | None = None,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps by the first block of the propagation, and, where masks are known, segmentation scores by it.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        scenes: Number of embedded scenes to score; by default 64 if the model was trained on them, else 0.
        threshold: Threshold that binarises maps: the "best" of ten for each depth, or the map's "mean".
        truth: Other images to score, in batches: images, their classes, shape (b,), and masks of the object, shape
            (b, height, width).
        progress: Progress callbacks.
    """
    choose("threshold", threshold, tuple(SCORES))
    progress = progress or Progress()
    explanations = explain_with_intermediates(
        about, images, resolve_targets(about, images, targets), "gradtoken", progress
    )
    if scenes is None:
        scenes = SCENES if trained_on_scenes(about) else 0
    check_integer("scenes", scenes, 0)
    if truth is None and scenes > 0:
        truth = scenes_with_masks(about, scenes)
    curves = None if truth is None else _score_depths(about, truth, progress, scenes)
    total = len(explanations[0].intermediates["depth"][0])
    lines = ceil(total / MAX_COLUMNS)
    columns = ceil(total / lines)
    cell = 0.95
    tall = cell * images.shape[2] / images.shape[3]
    step, head = tall + LINE + 0.06, MARGIN + LINE + 0.05
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    left = MARGIN + LABEL_WIDTH + cell + 0.14
    width = left + columns * (cell + GAP) - GAP + BAR_WIDTH + MARGIN
    images_bottom = head + len(rows) * (lines * step + 0.05) - LINE - 0.1
    canvas = Canvas(width, images_bottom + (2.0 if curves else 0) + MARGIN)
    for i, (e, k) in enumerate(rows):
        grid = CanvasGrid(left, head + i * (lines * step + 0.05), lines, columns, cell, tall, row_gap=step - tall)
        box = (MARGIN + LABEL_WIDTH, grid.top, cell, tall)
        canvas.row_label(box, e.label(0, k))
        canvas.image(box, input_image(e))
        canvas.text_above(box, "Input", SMALL)
        for index, patches in enumerate(reversed(e.intermediates["depth"][k])):
            relevance, cell_box = to_grid(e, patches[0]), grid[divmod(index, columns)]
            canvas.image(cell_box, overlay_map(input_image(e), relevance), empty_map_note(relevance))
            canvas.text_above(cell_box, _block_range(total - index, total), SMALL)
    canvas.colour_bars(width - BAR_WIDTH - MARGIN, head, tall, [False])
    if curves:
        _draw_curves(canvas, curves, threshold, total, images_bottom)
    return canvas.figure


def _block_range(first: int, total: int) -> str:
    """Name the blocks of the propagation, from ``first`` to the last but one."""
    if first == total:
        return "not propagated"
    return f"block {first}" if first == total - 1 else f"blocks {first}–{total - 1}"


def _score_depths(
    about: LoadedModel, truth: Iterable[tuple[Tensor, Tensor, Tensor]], progress: Progress, count: int
) -> list[SegmentationScores]:
    """Segmentation scores of each depth, from no propagation to all blocks."""
    tallies: list[SegmentationScores] = []
    progress.begin("Scoring", max(1, ceil(count / 16)))
    for number, (images, classes, masks) in enumerate(truth):
        e: Explanation = explain(about, images, "gradtoken", target=classes.tolist(), keep=True)
        maps = list(reversed(e.intermediates["depth"][0]))
        tallies = tallies or [SegmentationScores() for _ in maps]
        for tally, patches in zip(tallies, maps, strict=True):
            upsampled = upsample(to_grid(e, patches), (int(masks.shape[1]), int(masks.shape[2])))
            ids = [f"{number}-{i}" for i in range(len(images))]
            tally.add(ids, score_segmentation(upsampled.cpu(), masks.long().cpu()))
        progress.step()
    return tallies


def _draw_curves(canvas: Canvas, curves: Sequence[SegmentationScores], threshold: str, total: int, top: float) -> None:
    """Draw three scores against depth, the best of each marked."""
    summaries = [tally.summary() for tally in curves]
    room = canvas.width - MARGIN - 0.15
    wide = room / 3 - 0.48
    depths = list(range(total, 0, -1))
    for i, ((key, name), colour) in enumerate(zip(SCORES[threshold].items(), CHART_COLOURS, strict=True)):
        values = [100 * float(s[key]) for s in summaries]
        box = (MARGIN + 0.42 + i * (room / 3), top + 0.42, wide, 1.1)
        axes = canvas.chart(box, name, "first block of the propagation", "%" if i == 0 else "")
        axes.plot(range(total), values, color=colour, linewidth=1.2, marker="o", markersize=2.5)
        best = int(torch.tensor(values).argmax())
        axes.plot(best, values[best], "o", ms=5, mfc="none", mec=INK, mew=0.7)
        axes.annotate(f"{values[best]:.1f}", (best, values[best]), xytext=(0, 5), textcoords="offset points",
                      ha="center", fontsize=SMALL, color=INK)  # fmt: skip
        axes.margins(x=0.08, y=0.25)
        ticks = [d for d in depths if total <= 12 or d % 3 == 0 or d in (1, total)]
        axes.set_xticks([total - d for d in ticks], [str(d) for d in ticks])
    rule = "the best of ten thresholds" if threshold == "best" else "their mean as threshold"
    note = f"{len(curves[0])} images with known masks; maps binarised with {rule}; {total}: not propagated"
    canvas.text(MARGIN, canvas.height - MARGIN, note, SMALL - 0.5, ha="left", va="bottom", color=QUIET)
