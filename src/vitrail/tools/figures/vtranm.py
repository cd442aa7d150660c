"""Figures of VTranM: attention and transformation weights, and a method comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.inputs.targets import Target
from vitrail.methods.registry import within
from vitrail.models import LoadedModel
from vitrail.pipeline.explanation import Explanation
from vitrail.tools.figures.canvas import (
    BAR_WIDTH,
    GAP,
    HEADING,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    SMALL,
    Canvas,
    CanvasGrid,
    colour_map,
    empty_map_note,
    overlay_map,
)
from vitrail.tools.figures.method_columns import draw_comparison
from vitrail.tools.figures.prepare import (
    explain_images,
    explain_with_intermediates,
    input_image,
    resolve_targets,
    select_methods,
    to_grid,
)
from vitrail.tools.figures.registry import Progress, register_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "wu2024token"
#: The method and its eight baselines, Section 4.1.1 of the paper.
COMPARED = (
    "raw_attention",
    "rollout",
    "gradcam",
    "lrp",
    "conservative_lrp",
    "transformer_attribution",
    "attcat",
    "transformer_mm",
    "vtranm",
)
#: Weights kept for each block, and their names.
STRIPS = {
    "attention": "attention",
    "transformation": "transforma-\ntion",
    "transformation_mlp": "transforma-\ntion, MLP",
}
#: Most blocks per line of a strip, width of the four large images, and of the label of a strip.
MAX_COLUMNS, LARGE, LABEL = 12, 1.5, 0.55


@register_figure("vtranm-1", "attention weights, transformation weights, and the resulting map", CITE)
def draw_weights(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    block: int | str = -1,
    strip: bool = True,
    progress: Progress | None = None,
) -> Figure:
    """Draw the input, the attention and transformation weights of a block, and VTranM's map; below, every block.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        block: Block whose weights are shown, counted from 0 or from the end, or "mean" for the mean over blocks.
        strip: Whether to add small maps of every block.
        progress: Progress callbacks.
    """
    explanations = explain_with_intermediates(
        about, images, resolve_targets(about, images, targets), "vtranm", progress or Progress()
    )
    layers = len(explanations[0].intermediates["attention"][0])
    if block != "mean":
        if not isinstance(block, int):
            raise OptionError(f'block={block!r} must be an integer or "mean"')
        within("block", block, layers, "blocks")
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    tall = LARGE * images.shape[2] / images.shape[3]
    lines = ceil(layers / MAX_COLUMNS)
    columns = ceil(layers / lines)
    wide = 4 * LARGE + 3 * GAP
    small = min(0.7, (wide - LABEL - (columns - 1) * 0.03) / columns)
    low = small * images.shape[2] / images.shape[3]
    kinds = [name for name in STRIPS if name in explanations[0].intermediates] if strip else []
    each = lines * (low + 0.03) + 0.05
    below = LINE + 0.1 + len(kinds) * each if kinds else 0.0
    head = MARGIN + 2 * LINE + 0.04
    step = tall + below + 0.14
    left = MARGIN + LABEL_WIDTH
    canvas = Canvas(left + wide + BAR_WIDTH + MARGIN, head + len(rows) * step - 0.14 + MARGIN)
    for i, (e, k) in enumerate(rows):
        grid = CanvasGrid(left, head + i * step, 1, 4, LARGE, tall)
        canvas.row_label(grid[0, 0], e.label(0, k))
        shown = [None, *(_block_weights(e, name, k, block) for name in ("attention", "transformation")), e.grid[0, k]]
        for box, grid_map in zip(grid, shown, strict=True):
            image = input_image(e)
            pixels = image if grid_map is None else overlay_map(image, grid_map)
            canvas.image(box, pixels, "" if grid_map is None else empty_map_note(grid_map))
        if kinds:
            first = CanvasGrid(left + LABEL, grid.bottom + LINE + 0.1, lines, columns, small, low, 0.03, 0.03)
            _draw_strips(canvas, e, k, kinds, first)
    which = "mean of the blocks" if block == "mean" else f"block {range(layers)[int(block)] + 1}"
    titles = ("Input", f"Attention weights\n{which}", f"Transformation weights\n{which}", "VTranM")
    for box, title in zip(CanvasGrid(left, head, 1, 4, LARGE, tall), titles, strict=True):
        canvas.text_above(box, title, HEADING)
    canvas.colour_bars(left + wide, head, tall, [False])
    return canvas.figure


def _block_weights(e: Explanation, name: str, k: int, block: int | str) -> Tensor:
    """Weights of a block, or their mean over blocks, as a grid."""
    weights = e.intermediates[name][k]
    patches = torch.stack(list(weights)).mean(0) if block == "mean" else weights[int(block)]
    return to_grid(e, patches[0])


def _draw_strips(canvas: Canvas, e: Explanation, k: int, kinds: Sequence[str], grid: CanvasGrid) -> None:
    """Draw small maps of every block, a strip for each kind of weights."""
    each = grid.rows * (grid.tall + grid.row_gap) + 0.05
    for row, name in enumerate(kinds):
        own = replace(grid, top=grid.top + row * each)
        middle = (own.top + own.bottom) / 2
        canvas.text(own.left - 0.05, middle, STRIPS[name], SMALL - 1, ha="right")
        for index, (box, patches) in enumerate(zip(own, e.intermediates[name][k], strict=False)):
            canvas.image(box, colour_map(to_grid(e, patches[0])))
            if row == 0 and index < grid.columns:
                canvas.text_above(box, f"{index + 1}", SMALL - 1)


@register_figure("vtranm-5", "VTranM and other methods, more images", CITE, scenes=6)
@register_figure("vtranm-4", "VTranM and other methods", CITE)
def draw_methods(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Draw maps of several methods for the same images and classes.

    Args:
        about: The model.
        images: Model input, shape (b, 3, height, width).
        targets: As for ``explain``.
        methods: Methods to compare; by default those of the paper that apply to the model.
        quick: Use the options that make slow methods quick.
        progress: Progress callbacks.
    """
    rows = resolve_targets(about, images, targets)
    chosen = select_methods(about, images, methods, COMPARED, quick)
    return draw_comparison(explain_images(about, images, rows, chosen, progress or Progress()))
