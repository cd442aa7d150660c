"""Methods side by side: a column for each, a row for each class of each image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vitrail.explanation import Explanation
from vitrail.figures.canvas import (
    BAR,
    CELL,
    GAP,
    HEADING,
    LEAST,
    LINE,
    MARGIN,
    PAGE,
    QUIET,
    SIDE,
    SMALL,
    Canvas,
    CanvasGrid,
    fit,
)
from vitrail.figures.prepare import label_of, picture_of
from vitrail.viz.colormap import overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: From the image, the target and the method to a few words below the map.
Remark = Callable[[int, int, str], str]


def comparison(
    found: Sequence[Mapping[str, Explanation]],
    remarks: Remark | None = None,
    note: str = "",
    heads: Mapping[str, str] | None = None,
) -> Figure:
    """Input, then a map by each method; the rows of one image belong together and share its input.

    Args:
        found: For each image, its explanations by method.
        remarks: Words below each map.
        note: A line at the foot of the page.
        heads: Headings by method; by default the methods' titles, with variants.
    """
    names = list(found[0])
    first = found[0][names[0]]
    counts = [group[names[0]].maps.shape[1] for group in found]
    cell = (PAGE - SIDE - BAR - 2 * MARGIN) / (1 + len(names)) - GAP
    cell = max(1.1 if remarks else LEAST, min(CELL, cell))
    tall = cell * first.maps.shape[2] / first.maps.shape[3]
    titles = ["Input", *((heads or {}).get(name) or _heading(found[0][name]) for name in names)]
    top = MARGIN + 0.04 + LINE * max(fit(t, cell, HEADING, 3).count("\n") + 1 for t in titles)
    line = LINE + 0.04 if remarks else 0.0
    left = MARGIN + cell + SIDE + GAP
    grid = CanvasGrid(left, top, sum(counts), len(names), cell, tall, down=GAP + line)
    foot = MARGIN + (LINE + 0.04 if note else 0)
    kinds = [e.signed for e in found[0].values()]
    sheet = Canvas(grid.right + BAR + MARGIN, grid.bottom + line + foot)
    row = 0
    for i, (group, count) in enumerate(zip(found, counts, strict=True)):
        picture = picture_of(group[names[0]])
        middle = (grid[row, 0][1] + grid[row + count - 1, 0][1]) / 2
        sheet.picture((MARGIN, middle, cell, tall), picture)
        for k in range(count):
            sheet.beside(grid[row + k, 0], label_of(group[names[0]], k))
            for column, name in enumerate(names):
                e, box = group[name], grid[row + k, column]
                laid = overlay(picture, e.maps[0, k].float().cpu().numpy(), e.signed)
                sheet.picture(box, laid, "no relevance" if bool(e.flat[0, k]) else "")
                if remarks:
                    sheet.under(box, remarks(i, k, name))
        row += count
    for title, box in zip(titles, [(MARGIN, top, cell, tall), *(grid[0, c] for c in range(len(names)))], strict=True):
        sheet.over(box, title, HEADING, 3)
    sheet.bars(grid.right, top, tall, kinds)
    if note:
        room = sheet.width - 2 * MARGIN
        sheet.words(MARGIN, sheet.height - MARGIN, fit(note, room, SMALL - 0.5, 1), SMALL - 0.5, ha="left", va="bottom",
                    color=QUIET)  # fmt: skip
    return sheet.figure


def _heading(explanation: Explanation) -> str:
    variant = explanation.method.partition(":")[2]
    return f"{explanation.title}\n{variant}" if variant else explanation.title
