"""Figures of VTranM: attention and transformation weights, and a method comparison."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.registry import within
from vitrail.pipeline.explanation import Explanation
from vitrail.tools.figures.method_columns import comparison
from vitrail.tools.figures.prepare import explain_with_intermediates, input_image, to_grid
from vitrail.tools.figures.registry import FigureInputs, register_figure
from vitrail.viz.panels import (
    BAR_WIDTH,
    GAP,
    HEADING,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    SMALL,
    add_axes,
    add_grid,
    colour_bar,
    colour_map,
    new_figure,
    show,
    show_map,
    wrap_text,
)

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
    given: FigureInputs,
    *,
    block: int | str = -1,
    strip: bool = True,
) -> Figure:
    """Draw the input, the attention and transformation weights of a block, and VTranM's map; below, every block.

    Args:
        given: The model, images and targets.
        block: Block whose weights are shown, counted from 0 or from the end, or "mean" for the mean over blocks.
        strip: Whether to add small maps of every block.
    """
    explanations = explain_with_intermediates(given, "vtranm")
    layers = len(explanations[0].intermediates["attention"][0])
    if block != "mean":
        if not isinstance(block, int):
            raise OptionError(f'block={block!r} must be an integer or "mean"')
        within("block", block, layers, "blocks")
    rows = [(e, k) for e in explanations for k in range(e.maps.shape[1])]
    aspect, lines = given.aspect, ceil(layers / MAX_COLUMNS)
    columns = ceil(layers / lines)
    kinds = [name for name in STRIPS if name in explanations[0].intermediates] if strip else []
    wide = 4 * (LARGE + GAP) - GAP
    small = min(0.7, (wide - LABEL) / columns - 0.03)
    below = LINE + 0.1 + len(kinds) * lines * (small * aspect + 0.04) if kinds else 0.0
    head, step, left = MARGIN + 2 * LINE, LARGE * aspect + below + 0.14, MARGIN + LABEL_WIDTH
    figure = new_figure(left + wide + BAR_WIDTH + MARGIN, head + len(rows) * step)
    for i, (e, k) in enumerate(rows):
        top, image = head + i * step, input_image(e)
        axes = add_axes(add_grid(figure, 1, 4, (LARGE, LARGE * aspect), left, top))[0]
        show(axes[0], image, label=wrap_text(e.label(0, k), LARGE * aspect, lines=3))
        shown = [*(_block_weights(e, name, k, block) for name in ("attention", "transformation")), e.grid[0, k]]
        for one, relevance in zip(axes[1:], shown, strict=True):
            show_map(one, image, relevance)
        if i == 0:
            which = "mean of the blocks" if block == "mean" else f"block {range(layers)[int(block)] + 1}"
            titles = ("Input", f"Attention weights\n{which}", f"Transformation weights\n{which}", "VTranM")
            for one, title in zip(axes, titles, strict=True):
                one.set_title(title, fontsize=HEADING)
            colour_bar(axes[-1], False)
        if kinds:
            size, start = (small, small * aspect), top + LARGE * aspect + LINE + 0.1
            grid = add_grid(figure, lines * len(kinds), columns, size, left + LABEL, start, (0.03, 0.04))
            _draw_strips(add_axes(grid), e, k, kinds)
    return figure


def _block_weights(e: Explanation, name: str, k: int, block: int | str) -> Tensor:
    """Weights of a block, or their mean over blocks, as a grid."""
    weights = e.intermediates[name][k]
    patches = torch.stack(list(weights)).mean(0) if block == "mean" else weights[int(block)]
    return to_grid(e, patches[0])


def _draw_strips(axes: Any, e: Explanation, k: int, kinds: Sequence[str]) -> None:
    """Draw small maps of every block, a strip for each kind of weights."""
    lines = len(axes) // len(kinds)
    for row, name in enumerate(kinds):
        strip = axes[row * lines : (row + 1) * lines]
        for index, (one, patches) in enumerate(zip(strip.flat, e.intermediates[name][k], strict=False)):
            title = f"{index + 1}" if row == 0 else ""
            show(one, colour_map(to_grid(e, patches[0])), title)
        strip[0, 0].text(-0.08, 0.5, STRIPS[name], fontsize=SMALL - 1, ha="right", va="center",
                         transform=strip[0, 0].transAxes)  # fmt: skip


register_figure("vtranm-4", "VTranM and other methods", CITE)(comparison(COMPARED))
register_figure("vtranm-5", "VTranM and other methods, more images", CITE, scenes=6)(comparison(COMPARED))
