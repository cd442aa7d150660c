"""Comparison figure: a column for each method, a row for each class of each image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vitrail.pipeline.explanation import Explanation
from vitrail.tools.figures.canvas import (
    BAR_WIDTH,
    CELL,
    GAP,
    HEADING,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    MIN_CELL,
    PAGE_WIDTH,
    QUIET,
    SMALL,
    Canvas,
    CanvasGrid,
    wrap_text,
)
from vitrail.tools.figures.prepare import input_image
from vitrail.viz.colormap import overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: From image index, target index and method to the text below a map.
Caption = Callable[[int, int, str], str]


def draw_comparison(
    explanations: Sequence[Mapping[str, Explanation]],
    caption: Caption | None = None,
    note: str = "",
    headings: Mapping[str, str] | None = None,
) -> Figure:
    """Draw the input and a map of each method; the rows of one image share its input.

    Args:
        explanations: For each image, its explanations by method.
        caption: Text below each map.
        note: A line at the bottom of the figure.
        headings: Headings by method; by default the methods' titles, with variants.
    """
    names = list(explanations[0])
    first = explanations[0][names[0]]
    counts = [group[names[0]].maps.shape[1] for group in explanations]
    cell = (PAGE_WIDTH - LABEL_WIDTH - BAR_WIDTH - 2 * MARGIN) / (1 + len(names)) - GAP
    cell = max(1.1 if caption else MIN_CELL, min(CELL, cell))
    tall = cell * first.maps.shape[2] / first.maps.shape[3]
    titles = ["Input", *((headings or {}).get(name) or _heading(explanations[0][name]) for name in names)]
    top = MARGIN + 0.04 + LINE * max(wrap_text(t, cell, HEADING, 3).count("\n") + 1 for t in titles)
    line = LINE + 0.04 if caption else 0.0
    left = MARGIN + cell + LABEL_WIDTH + GAP
    grid = CanvasGrid(left, top, sum(counts), len(names), cell, tall, row_gap=GAP + line)
    bottom = MARGIN + (LINE + 0.04 if note else 0)
    signed = [e.signed for e in explanations[0].values()]
    canvas = Canvas(grid.right + BAR_WIDTH + MARGIN, grid.bottom + line + bottom)
    row = 0
    for i, (group, count) in enumerate(zip(explanations, counts, strict=True)):
        image = input_image(group[names[0]])
        middle = (grid[row, 0][1] + grid[row + count - 1, 0][1]) / 2
        canvas.image((MARGIN, middle, cell, tall), image)
        for k in range(count):
            canvas.row_label(grid[row + k, 0], group[names[0]].label(0, k))
            for column, name in enumerate(names):
                e, box = group[name], grid[row + k, column]
                pixels = overlay(image, e.maps[0, k].float().cpu().numpy(), e.signed)
                canvas.image(box, pixels, "no relevance" if bool(e.constant[0, k]) else "")
                if caption:
                    canvas.text_below(box, caption(i, k, name))
        row += count
    for title, box in zip(titles, [(MARGIN, top, cell, tall), *(grid[0, c] for c in range(len(names)))], strict=True):
        canvas.text_above(box, title, HEADING, 3)
    canvas.colour_bars(grid.right, top, tall, signed)
    if note:
        room = canvas.width - 2 * MARGIN
        canvas.text(MARGIN, canvas.height - MARGIN, wrap_text(note, room, SMALL - 0.5, 1), SMALL - 0.5, ha="left",
                    va="bottom", color=QUIET)  # fmt: skip
    return canvas.figure


def _heading(explanation: Explanation) -> str:
    variant = explanation.method.partition(":")[2]
    return f"{explanation.title}\n{variant}" if variant else explanation.title
