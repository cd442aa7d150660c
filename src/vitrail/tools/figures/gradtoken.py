"""Figures of GradToken: method comparisons, propagation schemes, heads and depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.methods.postprocess import upsample
from vitrail.methods.registry import choose
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.scores.segmentation import SegmentationScores, score_segmentation
from vitrail.tools.figures.method_columns import comparison, draw_comparison
from vitrail.tools.figures.prepare import (
    check_integer,
    explain_images,
    explain_with_intermediates,
    input_image,
    select_methods,
    to_grid,
)
from vitrail.tools.figures.registry import FigureInputs, Progress, register_figure
from vitrail.tools.figures.scene_inputs import scenes_with_masks, trained_on_scenes
from vitrail.viz.colormap import overlay
from vitrail.viz.panels import (
    CHART_COLOURS,
    INK,
    QUIET,
    SMALL,
    add_axes,
    add_grid,
    annotate,
    colour_bar,
    image_grid,
    show,
    show_map,
    style_chart,
    wrap_text,
)

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


register_figure(
    "gradtoken-1", "GradToken and four earlier methods, two classes of the same image", CITE, pairs=True, scenes=1
)(comparison(INTRODUCED, 2))
register_figure("gradtoken-7", "GradToken and other methods, one class per image", CITE)(comparison(COMPARED, 1))
register_figure("gradtoken-8", "GradToken and other methods, two classes of the same image", CITE, pairs=True)(
    comparison(COMPARED, 2)
)


@register_figure("gradtoken-9", "the five schemes of attention aggregation and propagation", CITE)
def draw_schemes(given: FigureInputs) -> Figure:
    """Draw GradToken maps of its five schemes of aggregation and propagation."""
    chosen = select_methods(given.loaded, given.images, tuple(SCHEMES), ())
    return draw_comparison(explain_images(given, chosen), headings=SCHEMES)


@register_figure("gradtoken-10", "the signed map of each head, and two means over heads", CITE, scenes=1)
def draw_heads(
    given: FigureInputs,
    *,
    propagated: bool = True,
    scale: str = "own",
) -> Figure:
    """Draw the map of every head (right), the input, and two means over heads (left).

    The means are of signed maps (i) and of their positive parts (ii).

    Args:
        given: The model, images and targets.
        propagated: Show heads after propagation by attention, as they are averaged; otherwise before it.
        scale: "own": each head has its own colour scale, whose maximum is written above it; "common": one for all.
    """
    choose("scale", scale, ("common", "own"))
    both = explain_images(given, {"gradtoken:i": {}, "gradtoken:ii": {}}, keep=True)
    count = both[0]["gradtoken:i"].intermediates["heads"][0][0].shape[1]
    columns, aspect = ceil(count / 3), given.aspect
    shown = [(pair, k) for pair in both for k in range(pair["gradtoken:i"].maps.shape[1])]
    figure, axes = image_grid(3 * len(shown), 1 + columns, aspect)
    for i, (pair, k) in enumerate(shown):
        rows_of_input = axes[3 * i : 3 * i + 3]
        e, clamped = pair["gradtoken:i"], pair["gradtoken:ii"]
        image = input_image(e)
        show(rows_of_input[0, 0], image, "Input", label=wrap_text(e.label(0, k), 1.2 * aspect, lines=3))
        show_map(rows_of_input[1, 0], image, e.grid[0, k], "i: mean", signed=True)
        show_map(rows_of_input[2, 0], image, clamped.grid[0, k], "ii: mean of positive parts")
        maps = to_grid(e, e.intermediates["heads_spread" if propagated else "heads"][k][0][0]).float().cpu()
        for index, (one, relevance) in enumerate(zip(rows_of_input[:, 1:].flat, maps, strict=False)):
            maximum = float((maps if scale == "common" else relevance).abs().max())
            pixels = overlay(image, (upsample(relevance, image.shape[:2]) / (maximum or 1)).numpy(), True)
            note = "" if float(relevance.abs().max()) else "no relevance"
            show(one, pixels, f"head {index + 1} (±{maximum:.2g})", note=note)
        colour_bar(rows_of_input[0, -1], True, ("−max", "0", "+max"))
        colour_bar(rows_of_input[2, -1], False, ("ii: low", "high"))
    return figure


@register_figure(
    "gradtoken-11", "depth of propagation: maps, and segmentation scores where masks are known", CITE, scenes=2
)
def draw_depth(
    given: FigureInputs,
    *,
    scenes: int | None = None,
    threshold: str = "best",
    truth: Iterable[tuple[Tensor, Tensor, Tensor]] | None = None,
) -> Figure:
    """Draw maps by the first block of the propagation, and, where masks are known, segmentation scores by it.

    Args:
        given: The model, images and targets.
        scenes: Number of embedded scenes to score; by default 64 if the model was trained on them, else 0.
        threshold: Threshold that binarises maps: the "best" of ten for each depth, or the map's "mean".
        truth: Other images to score, in batches: images, their classes, shape (b,), and masks of the object, shape
            (b, height, width).
    """
    choose("threshold", threshold, tuple(SCORES))
    loaded, aspect = given.loaded, given.aspect
    explanations = explain_with_intermediates(given, "gradtoken")
    if scenes is None:
        scenes = SCENES if trained_on_scenes(loaded) else 0
    check_integer("scenes", scenes, 0)
    if truth is None and scenes > 0:
        truth = scenes_with_masks(loaded, scenes)
    curves = None if truth is None else _score_depths(loaded, truth, given.progress, scenes)
    total = len(explanations[0].intermediates["depth"][0])
    lines = ceil(total / MAX_COLUMNS)
    columns = ceil(total / lines)
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    figure, axes = image_grid(lines * len(rows), 1 + columns, aspect, cell=0.95, below=1.9 if curves else 0.0)
    for i, (e, k) in enumerate(rows):
        rows_of_input = axes[i * lines : (i + 1) * lines]
        label = wrap_text(e.label(0, k), 0.95 * aspect, lines=3)
        show(rows_of_input[0, 0], input_image(e), "Input", label=label)
        for index, patches in enumerate(reversed(e.intermediates["depth"][k])):
            title = _block_range(total - index, total)
            show_map(rows_of_input[:, 1:].flat[index], input_image(e), to_grid(e, patches[0]), title)
    colour_bar(axes[0, -1], False)
    if curves:
        _draw_curves(figure, curves, threshold, total)
    return figure


def _block_range(first: int, total: int) -> str:
    """Name the blocks of the propagation, from ``first`` to the last but one."""
    if first == total:
        return "not propagated"
    return f"block {first}" if first == total - 1 else f"blocks {first}–{total - 1}"


def _score_depths(
    loaded: LoadedModel, truth: Iterable[tuple[Tensor, Tensor, Tensor]], progress: Progress, count: int
) -> list[SegmentationScores]:
    """Segmentation scores of each depth, from no propagation to all blocks."""
    by_depth: list[SegmentationScores] = []
    progress.begin("Scoring", max(1, ceil(count / 16)))
    for number, (images, classes, masks) in enumerate(truth):
        e: Explanation = explain(loaded, images, "gradtoken", target=classes.tolist(), keep=True)
        maps = list(reversed(e.intermediates["depth"][0]))
        by_depth = by_depth or [SegmentationScores() for _ in maps]
        for scores, patches in zip(by_depth, maps, strict=True):
            upsampled = upsample(to_grid(e, patches), (int(masks.shape[1]), int(masks.shape[2])))
            ids = [f"{number}-{i}" for i in range(len(images))]
            scores.add(ids, score_segmentation(upsampled.cpu(), masks.long().cpu()))
        progress.step()
    return by_depth


def _draw_curves(figure: Figure, curves: Sequence[SegmentationScores], threshold: str, total: int) -> None:
    """Draw three scores against depth, the best of each marked."""
    summaries = [scores.summary() for scores in curves]
    shown = [d for d in range(total, 0, -1) if total <= 12 or d % 3 == 0 or d in (1, total)]
    room = figure.get_figwidth() / 3
    grid = add_grid(figure, 1, 3, (room - 0.5, 1.1), 0.4, figure.get_figheight() - 1.65, (0.5, 0))
    panels = zip(add_axes(grid)[0], SCORES[threshold].items(), CHART_COLOURS, strict=True)
    for axes, (key, name), colour in panels:
        values = [100 * float(s[key]) for s in summaries]
        style_chart(axes, f"{name} (%)", "first block of the propagation")
        axes.plot(range(total), values, color=colour, linewidth=1.2, marker="o", markersize=2.5)
        best = int(torch.tensor(values).argmax())
        axes.plot(best, values[best], "o", ms=5, mfc="none", mec=INK, mew=0.7)
        annotate(axes, best, values[best], f"{values[best]:.1f}", points=5)
        axes.margins(x=0.08, y=0.25)
        axes.set_xticks([total - d for d in shown], [str(d) for d in shown])
    rule = "the best of ten thresholds" if threshold == "best" else "their mean as threshold"
    note = f"{len(curves[0])} images with known masks; maps binarised with {rule}; {total}: not propagated"
    figure.text(0.01, 0.01, note, fontsize=SMALL - 0.5, color=QUIET)
