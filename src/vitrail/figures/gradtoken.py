"""The figures of GradToken: comparisons, schemes, heads, and depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.explain import explain
from vitrail.explanation import Explanation
from vitrail.figures.canvas import (
    BAR,
    CELL,
    FIRST,
    GAP,
    INK,
    LINE,
    MARGIN,
    QUIET,
    SECOND,
    SIDE,
    SMALL,
    THIRD,
    Canvas,
    CanvasGrid,
    overlaid,
    remark_on,
)
from vitrail.figures.compare import comparison
from vitrail.figures.prepare import (
    applicable,
    asked,
    explained,
    explained_by,
    label_of,
    on_grid,
    picture_of,
    whole_number,
)
from vitrail.figures.registry import Progress, figure
from vitrail.figures.scene_inputs import knows_scenes, truth_of
from vitrail.methods.registry import choose
from vitrail.models import LoadedModel
from vitrail.postprocess import upsample
from vitrail.scores.segmentation import SegmentationScores, score_segmentation
from vitrail.targets import Target
from vitrail.viz.colormap import Array, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "cheng2025gradtoken"
COMPARED = ("gradcam", "raw_attention", "rollout", "transformer_attribution", "vit_cx", "agcam", "gradtoken")
SCHEMES = {
    "gradtoken:0": "0: not spread",
    "gradtoken:1": "1: product,\nrow",
    "gradtoken:2": "2: product,\nmatrix",
    "gradtoken:3": "3: average,\nrow",
    "gradtoken:4": "4: average,\nmatrix",
}
#: Scenes to measure on unless told otherwise, and maps in a line by depth.
SCENES, MOST = 64, 7
#: By which threshold masks are cut from maps: key of the score, and its name.
SCORES = {
    "best": {"best_pixel_accuracy": "pixel accuracy", "map": "mAP", "best_miou": "mIoU"},
    "mean": {"pixel_accuracy": "pixel accuracy", "map": "mAP", "miou": "mIoU"},
}


@figure("gradtoken-7", "GradToken beside other methods, one class an image", CITE)
def single(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Maps of several methods for one class of each image.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: One class an image, as for ``explain``.
        methods: Which methods; by default those of the paper that apply to the model.
        quick: With the options that make slow methods quick.
        progress: Is told how far the work is.
    """
    rows = asked(about, images, targets, 1)
    chosen = applicable(about, images, methods, COMPARED, quick)
    return comparison(explained(about, images, rows, chosen, progress or Progress()))


@figure("gradtoken-8", "GradToken beside other methods, two classes of the same image", CITE, pairs=True)
def multiple(
    about: LoadedModel,
    images: Tensor,
    targets: Target = "top2",
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Maps of several methods for two classes of each image, a row for each class.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: Two classes an image, as for ``explain``: ``[[a, b]]`` for the same of every image.
        methods: Which methods; by default those of the paper that apply to the model.
        quick: With the options that make slow methods quick.
        progress: Is told how far the work is.
    """
    rows = asked(about, images, targets, 2)
    chosen = applicable(about, images, methods, COMPARED, quick)
    return comparison(explained(about, images, rows, chosen, progress or Progress()))


@figure("gradtoken-9", "how attention is joined and spreads the relevance: the five schemes", CITE)
def schemes(about: LoadedModel, images: Tensor, targets: Target = None, *, progress: Progress | None = None) -> Figure:
    """GradToken by each of its five schemes of aggregation and propagation.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        progress: Is told how far the work is.
    """
    rows = asked(about, images, targets)
    chosen = applicable(about, images, tuple(SCHEMES), ())
    return comparison(explained(about, images, rows, chosen, progress or Progress()), heads=SCHEMES)


@figure("gradtoken-10", "what each head says, for and against, and two ways to join them", CITE, scenes=1)
def heads(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    spread: bool = True,
    scale: str = "own",
    progress: Progress | None = None,
) -> Figure:
    """Left: input, heads averaged as they are (i), and after their negative part is dropped (ii). Right: every head.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        spread: Show heads after attention has spread their relevance, as they are joined; otherwise before.
        scale: "own": each head has its own scale of colours, whose end stands above it. "common": all have one.
        progress: Is told how far the work is.
    """
    choose("scale", scale, ("common", "own"))
    rows = asked(about, images, targets)
    both = explained(about, images, rows, {"gradtoken:i": {}, "gradtoken:ii": {}}, progress or Progress(), keep=True)
    first = both[0]["gradtoken:i"]
    count = first.parts["heads"][0][0].shape[1]
    tall = CELL * images.shape[2] / images.shape[3]
    line, head = LINE + 0.05, MARGIN + LINE + 0.06
    each = 3 * (tall + line)
    columns = ceil(count / 3)
    shown = [(pair, k) for pair in both for k in range(pair["gradtoken:i"].maps.shape[1])]
    right = MARGIN + SIDE + CELL + 0.24
    width = right + columns * (CELL + GAP) - GAP + BAR + 0.05 + MARGIN
    sheet = Canvas(width, head + len(shown) * (each + 0.08) - 0.08 - LINE + MARGIN)
    for i, (pair, k) in enumerate(shown):
        top = head + i * (each + 0.08)
        left = CanvasGrid(MARGIN + SIDE, top, 3, 1, CELL, tall, down=line)
        e, clamped = pair["gradtoken:i"], pair["gradtoken:ii"]
        picture = picture_of(e)
        sheet.beside((left.left, left.top, CELL, tall), label_of(e, k))
        sheet.picture(left[0, 0], picture)
        sheet.picture(left[1, 0], overlaid(picture, e.grid[0, k], True), remark_on(e.grid[0, k]))
        sheet.picture(left[2, 0], overlaid(picture, clamped.grid[0, k]), remark_on(clamped.grid[0, k]))
        for row, title in enumerate(("Input", "i: average", "ii: positive parts, average")):
            sheet.over(left[row, 0], title, SMALL)
        maps = on_grid(e, e.parts["heads_spread" if spread else "heads"][k][0][0]).float().cpu()
        most = float(maps.abs().max()) if scale == "common" else None
        grid = CanvasGrid(right, top, 3, columns, CELL, tall, down=line)
        for index, one in enumerate(maps):
            box = grid[divmod(index, columns)]
            sheet.picture(box, _signed(picture, one, most), remark_on(one))
            most_here = float(one.abs().max()) if most is None else most
            sheet.over(box, f"head {index + 1} (±{most_here:.2g})", SMALL)
        x = grid.right
        sheet.bar((x + 0.08, grid[0, 0][1], 0.08, tall), True, ("−max", "0", "+max"))
        sheet.bar((x + 0.08, grid[2, 0][1], 0.08, tall), False)
        sheet.words(x + 0.12, grid[2, 0][1] - 0.035, "ii", SMALL, va="bottom")
    return sheet.figure


def _signed(picture: Array, relevance: Tensor, most: float | None) -> Array:
    """A signed map over a picture on a given scale."""
    if most is None:
        return overlaid(picture, relevance, True)
    big = upsample(relevance, (picture.shape[0], picture.shape[1])) / (most or 1)
    return overlay(picture, big.numpy(), True)


@figure("gradtoken-11", "how far down attention is averaged: maps, and scores against known masks", CITE, scenes=2)
def depth(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    scenes: int | None = None,
    threshold: str = "best",
    truth: Iterable[tuple[Tensor, Tensor, Tensor]] | None = None,
    progress: Progress | None = None,
) -> Figure:
    """Maps by the first block that takes part, and, where masks are known, segmentation scores by it.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        scenes: On how many embedded scenes to measure; by default 64 if the model was trained on them, else none.
        threshold: How maps become masks: cut at the "best" of ten thresholds for each depth, or at the map's "mean".
        truth: Other pictures to measure on, in batches: images, their classes, shape (b,), and masks of the object,
            shape (b, height, width).
        progress: Is told how far the work is.
    """
    choose("threshold", threshold, tuple(SCORES))
    progress = progress or Progress()
    found = explained_by(about, images, asked(about, images, targets), "gradtoken", progress)
    if scenes is None:
        scenes = SCENES if knows_scenes(about) else 0
    whole_number("scenes", scenes, 0)
    if truth is None and scenes > 0:
        truth = truth_of(about, scenes)
    curves = None if truth is None else _measured(about, truth, progress, scenes)
    total = len(found[0].parts["depth"][0])
    lines = ceil(total / MOST)
    columns = ceil(total / lines)
    cell = 0.95
    tall = cell * images.shape[2] / images.shape[3]
    step, head = tall + LINE + 0.06, MARGIN + LINE + 0.05
    rows = [(e, k) for e in found for k in range(e.maps.shape[1])]
    left = MARGIN + SIDE + cell + 0.14
    width = left + columns * (cell + GAP) - GAP + BAR + MARGIN
    pictures = head + len(rows) * (lines * step + 0.05) - LINE - 0.1
    sheet = Canvas(width, pictures + (2.0 if curves else 0) + MARGIN)
    for i, (e, k) in enumerate(rows):
        grid = CanvasGrid(left, head + i * (lines * step + 0.05), lines, columns, cell, tall, down=step - tall)
        box = (MARGIN + SIDE, grid.top, cell, tall)
        sheet.beside(box, label_of(e, k))
        sheet.picture(box, picture_of(e))
        sheet.over(box, "Input", SMALL)
        for index, patches in enumerate(reversed(e.parts["depth"][k])):
            one, at = on_grid(e, patches[0]), grid[divmod(index, columns)]
            sheet.picture(at, overlaid(picture_of(e), one), remark_on(one))
            sheet.over(at, _blocks(total - index, total), SMALL)
    sheet.bars(width - BAR - MARGIN, head, tall, [False])
    if curves:
        _charts(sheet, curves, threshold, total, pictures)
    return sheet.figure


def _blocks(first: int, total: int) -> str:
    """Which blocks spread the relevance, if the first is this one and the last is left out."""
    if first == total:
        return "not spread"
    return f"block {first}" if first == total - 1 else f"blocks {first}–{total - 1}"


def _measured(
    about: LoadedModel, truth: Iterable[tuple[Tensor, Tensor, Tensor]], progress: Progress, count: int
) -> list[SegmentationScores]:
    """Segmentation by every depth, from no blocks to all."""
    tallies: list[SegmentationScores] = []
    progress.begin("Measuring", max(1, ceil(count / 16)))
    for number, (images, classes, masks) in enumerate(truth):
        e: Explanation = explain(about, images, "gradtoken", target=classes.tolist(), keep=True)
        maps = list(reversed(e.parts["depth"][0]))
        tallies = tallies or [SegmentationScores() for _ in maps]
        for tally, patches in zip(tallies, maps, strict=True):
            big = upsample(on_grid(e, patches), (int(masks.shape[1]), int(masks.shape[2])))
            ids = [f"{number}-{i}" for i in range(len(images))]
            tally.add(ids, score_segmentation(big.cpu(), masks.long().cpu()))
        progress.step()
    return tallies


def _charts(sheet: Canvas, curves: Sequence[SegmentationScores], threshold: str, total: int, top: float) -> None:
    """Three curves by depth, the best of each marked."""
    summaries = [tally.summary() for tally in curves]
    room = sheet.width - MARGIN - 0.15
    wide = room / 3 - 0.48
    depths = list(range(total, 0, -1))
    for i, ((key, name), colour) in enumerate(zip(SCORES[threshold].items(), (FIRST, SECOND, THIRD), strict=True)):
        values = [100 * float(s[key]) for s in summaries]
        box = (MARGIN + 0.42 + i * (room / 3), top + 0.42, wide, 1.1)
        axes = sheet.chart(box, name, "first block that takes part", "%" if i == 0 else "")
        axes.plot(range(total), values, color=colour, linewidth=1.2, marker="o", markersize=2.5)
        best = int(torch.tensor(values).argmax())
        axes.plot(best, values[best], "o", ms=5, mfc="none", mec=INK, mew=0.7)
        axes.annotate(f"{values[best]:.1f}", (best, values[best]), xytext=(0, 5), textcoords="offset points",
                      ha="center", fontsize=SMALL, color=INK)  # fmt: skip
        axes.margins(x=0.08, y=0.25)
        ticks = [d for d in depths if total <= 12 or d % 3 == 0 or d in (1, total)]
        axes.set_xticks([total - d for d in ticks], [str(d) for d in ticks])
    cut = "cut at the best of ten thresholds" if threshold == "best" else "cut at their mean"
    words = f"{len(curves[0])} pictures with known masks; maps {cut}; {total}: not spread"
    sheet.words(MARGIN, sheet.height - MARGIN, words, SMALL - 0.5, ha="left", va="bottom", color=QUIET)
