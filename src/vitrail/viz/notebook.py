"""Display of explanations in notebooks: images beside their maps, or coloured words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitrail.viz.colormap import to_image
from vitrail.viz.templating import png_uri, render
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from PIL.Image import Image

#: Most rows (targets of images) that are shown; the heading states the total.
MAX_ROWS = 6


def explanations_html(explanations: Mapping[str, ExplanationLike]) -> str:
    """Render explanations of the same images as HTML with embedded images: one row per target."""
    first = next(iter(explanations.values()))
    if first.rgb_images is None and (first.signal is None or first.maps.dim() != first.signal.dim()):
        shape = "×".join(map(str, first.maps.shape))
        return render("notebook.html", headings=[], rows=[], more=0, caption=f"{', '.join(explanations)}: maps {shape}")
    places = [(b, k) for b in range(first.maps.shape[0]) for k in range(first.maps.shape[1])]
    rows = [
        {
            "label": first.label(b, k),
            "image": png_uri(_bare(first, b, k)),
            "maps": [_cell(explanation, b, k) for explanation in explanations.values()],
        }
        for b, k in places[:MAX_ROWS]
    ]
    headings = [explanation.method for explanation in explanations.values()]
    return render("notebook.html", headings=headings, rows=rows, more=len(places) - len(rows), caption=first.model)


def _bare(explanation: ExplanationLike, image: int, k: int) -> Image:
    """The input without its map."""
    if explanation.rgb_images is None:
        return explanation.overlay(image, k, opacity=0.0)
    return to_image(explanation.rgb_images[image])


def _cell(explanation: ExplanationLike, image: int, k: int) -> dict[str, Any]:
    check = explanation.checks.get((image, k))
    verdict = "no relevance" if bool(explanation.constant[image, k]) else "" if check is None else check.verdict
    return {"uri": png_uri(explanation.overlay(image, k)), "verdict": verdict}
