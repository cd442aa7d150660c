"""The figures of VTranM: attention and transformation apart, and methods compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.explanation import Explanation
from vitrail.figures.canvas import (
    BAR,
    GAP,
    HEADING,
    LINE,
    MARGIN,
    SIDE,
    SMALL,
    Canvas,
    CanvasGrid,
    overlaid,
    painted,
    remark_on,
)
from vitrail.figures.compare import comparison
from vitrail.figures.prepare import applicable, asked, explained, explained_by, label_of, on_grid, picture_of
from vitrail.figures.registry import Progress, figure
from vitrail.methods.registry import within
from vitrail.models import LoadedModel
from vitrail.targets import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CITE = "wu2024token"
COMPARED = (
    "raw_attention",
    "rollout",
    "gradcam",
    "lrp",
    "partial_lrp",
    "transformer_attribution",
    "attcat",
    "transformer_mm",
    "vtranm",
)
#: What is noted block by block, and what to call it.
STRIPS = {
    "attention": "attention",
    "transformation": "transforma-\ntion",
    "transformation_mlp": "transforma-\ntion, MLP",
}
#: Most blocks in a line of a strip, width of the four large pictures, and of the words beside a strip.
MOST, LARGE, LABEL = 12, 1.5, 0.55


@figure("vtranm-1", "attention weights, transformation weights, and the map made of both", CITE)
def weights(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    block: int | str = -1,
    strip: bool = True,
    progress: Progress | None = None,
) -> Figure:
    """Input, attention weights and transformation weights of a block, and VTranM's map; below, every block in small.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        block: The block whose weights are shown, counted from 0 or from the end, or "mean" for the mean of all.
        strip: Whether to add the small maps of every block.
        progress: Is told how far the work is.
    """
    found = explained_by(about, images, asked(about, images, targets), "vtranm", progress or Progress())
    layers = len(found[0].parts["attention"][0])
    if block != "mean":
        if not isinstance(block, int):
            raise OptionError(f'block={block!r} is neither a number nor "mean"')
        within("block", block, layers, "blocks")
    rows = [(e, k) for e in found for k in range(e.maps.shape[1])]
    tall = LARGE * images.shape[2] / images.shape[3]
    lines = ceil(layers / MOST)
    columns = ceil(layers / lines)
    wide = 4 * LARGE + 3 * GAP
    small = min(0.7, (wide - LABEL - (columns - 1) * 0.03) / columns)
    low = small * images.shape[2] / images.shape[3]
    kinds = [name for name in STRIPS if name in found[0].parts] if strip else []
    each = lines * (low + 0.03) + 0.05
    below = LINE + 0.1 + len(kinds) * each if kinds else 0.0
    head = MARGIN + 2 * LINE + 0.04
    step = tall + below + 0.14
    left = MARGIN + SIDE
    sheet = Canvas(left + wide + BAR + MARGIN, head + len(rows) * step - 0.14 + MARGIN)
    for i, (e, k) in enumerate(rows):
        grid = CanvasGrid(left, head + i * step, 1, 4, LARGE, tall)
        sheet.beside(grid[0, 0], label_of(e, k))
        shown = [None, *(_chosen(e, name, k, block) for name in ("attention", "transformation")), e.grid[0, k]]
        for box, grid_map in zip(grid, shown, strict=True):
            picture = picture_of(e)
            pixels = picture if grid_map is None else overlaid(picture, grid_map)
            sheet.picture(box, pixels, "" if grid_map is None else remark_on(grid_map))
        if kinds:
            first = CanvasGrid(left + LABEL, grid.bottom + LINE + 0.1, lines, columns, small, low, 0.03, 0.03)
            _strips(sheet, e, k, kinds, first)
    which = "mean of the blocks" if block == "mean" else f"block {range(layers)[int(block)] + 1}"
    titles = ("Input", f"Attention weights\n{which}", f"Transformation weights\n{which}", "VTranM")
    for box, title in zip(CanvasGrid(left, head, 1, 4, LARGE, tall), titles, strict=True):
        sheet.over(box, title, HEADING)
    sheet.bars(left + wide, head, tall, [False])
    return sheet.figure


def _chosen(e: Explanation, name: str, k: int, block: int | str) -> Tensor:
    """The weights of a block, or their mean over blocks, as a grid."""
    notes = e.parts[name][k]
    patches = torch.stack(list(notes)).mean(0) if block == "mean" else notes[int(block)]
    return on_grid(e, patches[0])


def _strips(sheet: Canvas, e: Explanation, k: int, kinds: Sequence[str], grid: CanvasGrid) -> None:
    """Small maps of every block, a strip for each kind of weights."""
    each = grid.rows * (grid.tall + grid.down) + 0.05
    for row, name in enumerate(kinds):
        own = replace(grid, top=grid.top + row * each)
        middle = (own.top + own.bottom) / 2
        sheet.words(own.left - 0.05, middle, STRIPS[name], SMALL - 1, ha="right")
        for index, (box, patches) in enumerate(zip(own, e.parts[name][k], strict=False)):
            sheet.picture(box, painted(on_grid(e, patches[0])))
            if row == 0 and index < grid.columns:
                sheet.over(box, f"{index + 1}", SMALL - 1)


@figure("vtranm-4", "VTranM beside other methods", CITE)
def compared(
    about: LoadedModel,
    images: Tensor,
    targets: Target = None,
    *,
    methods: Sequence[str] | str | None = None,
    quick: bool = False,
    progress: Progress | None = None,
) -> Figure:
    """Maps of several methods for the same images and classes.

    Args:
        about: The model.
        images: As the model takes them, shape (b, 3, height, width).
        targets: As for ``explain``.
        methods: Which methods; by default those of the paper that apply to the model.
        quick: With the options that make slow methods quick.
        progress: Is told how far the work is.
    """
    rows = asked(about, images, targets)
    chosen = applicable(about, images, methods, COMPARED, quick)
    return comparison(explained(about, images, rows, chosen, progress or Progress()))
