"""Comparison figure: a column for each method, a row for each class of each image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vitrail.pipeline.explanation import Explanation
from vitrail.tools.figures.prepare import explain_images, input_image, select_methods
from vitrail.tools.figures.registry import DrawFunction, FigureInputs
from vitrail.viz.panels import (
    BAR_WIDTH,
    CELL,
    GAP,
    HEADING,
    LABEL_WIDTH,
    LINE,
    MARGIN,
    QUIET,
    SMALL,
    add_axes,
    add_grid,
    colour_bar,
    method_heading,
    new_figure,
    show,
    show_map,
    wrap_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: From image index, target index and method to the text below a map.
Caption = Callable[[int, int, str], str]
#: Width of the images on a printed page, and the smallest width of one.
PAGE_WIDTH, MIN_CELL = 7.2, 0.75


def comparison(defaults: Sequence[str], count: int | None = None) -> DrawFunction:
    """A drawing function that compares the methods of a paper, for ``count`` classes of each image, or any number."""

    def draw_methods(given: FigureInputs, *, methods: Sequence[str] | str | None = None, quick: bool = False) -> Figure:
        """Draw maps of several methods for the same images and classes, a row for each class.

        Args:
            given: The model, images and targets.
            methods: Methods to compare; by default those of the paper that apply to the model.
            quick: Use the options that make slow methods quick.
        """
        chosen = select_methods(given.loaded, given.images, methods, defaults, quick)
        return draw_comparison(explain_images(given, chosen, count))

    return draw_methods


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
    cell = max(1.1 if caption else MIN_CELL, min(CELL, PAGE_WIDTH / (1 + len(names))))
    aspect = first.maps.shape[2] / first.maps.shape[3]
    titles = ["Input", *((headings or {}).get(name) or method_heading(explanations[0][name]) for name in names)]
    titles = [wrap_text(title, cell, HEADING, 3) for title in titles]
    top = MARGIN + LINE * (1 + max(title.count("\n") for title in titles))
    line, rows = LINE if caption else 0.0, sum(counts)
    left = MARGIN + cell + LABEL_WIDTH
    width = left + len(names) * (cell + GAP) + BAR_WIDTH
    figure = new_figure(width, top + rows * (cell * aspect + GAP + line) + MARGIN + (LINE if note else 0))
    size, gaps = (cell, cell * aspect), (GAP, GAP + line)
    inputs = add_grid(figure, rows, 1, size, MARGIN, top, gaps)
    axes = add_axes(add_grid(figure, rows, len(names), size, left, top, gaps))
    row = 0
    for i, (group, count) in enumerate(zip(explanations, counts, strict=True)):
        image = input_image(group[names[0]])
        show(figure.add_subplot(inputs[row : row + count, 0]), image)
        for k in range(count):
            for one, (name, e) in zip(axes[row + k], group.items(), strict=True):
                show_map(one, image, e.maps[0, k], signed=e.signed, caption=caption(i, k, name) if caption else "")
            axes[row + k, 0].set_ylabel(wrap_text(group[names[0]].label(0, k), size[1], lines=3))
        row += count
    add_axes(inputs)[0, 0].set_title(titles[0], fontsize=HEADING, pad=2.5)
    for one, title in zip(axes[0], titles[1:], strict=True):
        one.set_title(title, fontsize=HEADING)
    signed = {e.signed for e in explanations[0].values()}
    for kind in signed:
        colour_bar(axes[0, -1], kind, half=len(signed) > 1)
    if note:
        figure.text(MARGIN / width, 0.01, note, fontsize=SMALL - 0.5, color=QUIET)
    return figure
