"""Many methods on a few pictures: a row for each method, a column for each class asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, require
from vitrail.viz.colormap import overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.explanation import Explanation

LABEL, HEAD = 1.15, 0.2


def gallery(
    explanations: Mapping[str, Explanation] | Sequence[Mapping[str, Explanation]],
    *,
    strips: int | None = None,
    cell: float = 0.95,
    opacity: float = 0.75,
) -> Figure:
    """All methods on one sheet: strips of rows, a row for each method, a column for each target of each picture.

    Args:
        explanations: Explanations of the same inputs, by method; or several of these, by the same methods.
        strips: How many strips the methods are spread over; by default as many as make the sheet about as wide as high.
        cell: Width of a picture in inches.
        opacity: How much colour covers the picture where relevance is greatest.

    Returns:
        A matplotlib figure, to be saved with ``savefig``.
    """
    require("matplotlib", "plot", "draw figures")
    from matplotlib.figure import Figure as Canvas

    groups = [explanations] if isinstance(explanations, Mapping) else list(explanations)
    firsts = [next(iter(group.values())) for group in groups]
    if any(first.images is None for first in firsts):
        raise InputError("a text has no pictures: print its token scores instead")
    names = list(groups[0])
    columns = [
        (group, b, k)
        for group, first in zip(groups, firsts, strict=True)
        for b in range(first.maps.shape[0])
        for k in range(first.maps.shape[1])
    ]
    tall = cell * firsts[0].maps.shape[2] / firsts[0].maps.shape[3]
    width = LABEL + len(columns) * cell
    if strips is None:
        strips = min(range(1, len(names) + 1), key=lambda s: abs(s * width - ceil(len(names) / s) * tall))
    rows = 1 + ceil(len(names) / strips)
    size = (strips * width + 0.1, rows * tall + HEAD + 0.1)
    drawing = Canvas(figsize=size, dpi=150)

    def spot(strip: int, row: int, column: int) -> Any:
        left = strip * width + LABEL + column * cell
        bottom = size[1] - HEAD - (row + 1) * tall
        axes = drawing.add_axes((left / size[0], bottom / size[1], 0.96 * cell / size[0], 0.96 * tall / size[1]))
        axes.set_axis_off()
        return axes

    for strip in range(strips):
        for column, (group, b, k) in enumerate(columns):
            first = next(iter(group.values()))
            assert first.pictures is not None
            axes = spot(strip, 0, column)
            axes.imshow(first.pictures[b], interpolation="nearest")
            axes.set_title(first.label(b, k).partition(" (")[0], fontsize=6.5, pad=2)
        part = names[strip * (rows - 1) : (strip + 1) * (rows - 1)]
        for row, name in enumerate(part, start=1):
            middle = size[1] - HEAD - (row + 0.5) * tall
            text = _title(groups[0][name])
            drawing.text((strip * width + 0.06) / size[0], middle / size[1], text, fontsize=7, va="center")
            for column, (group, b, k) in enumerate(columns):
                _draw(spot(strip, row, column), group[name], b, k, opacity)
    return drawing


def _draw(axes: Any, explanation: Explanation, image: int, k: int, opacity: float) -> None:
    pictures = explanation.pictures
    assert pictures is not None
    relevance = explanation.maps[image, k].float().cpu().numpy()
    axes.imshow(overlay(pictures[image], relevance, explanation.signed, opacity), interpolation="nearest")
    if bool(explanation.flat[image, k]):
        axes.text(0.5, 0.5, "no relevance", fontsize=5, color="white", transform=axes.transAxes, ha="center")


def _title(explanation: Explanation) -> str:
    variant = explanation.method.partition(":")[2]
    words = f"{explanation.title} {variant}".split()
    lines = [""]
    for word in words:  # a label is as wide as about sixteen letters
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < 16 else [lines[-1], word]
    return "\n".join(line for line in lines if line)
