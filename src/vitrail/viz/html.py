"""HTML page with the maps of several images and methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitrail.errors import InputError
from vitrail.viz.colormap import to_image
from vitrail.viz.templating import png_uri, render
from vitrail.viz.types import ExplanationLike


@dataclass(frozen=True)
class ImageSection:
    """One image of an `explanation_page`.

    Attributes:
        title: What the image shows.
        explanations: Explanations of the image by method name.
        remarks: For (method, target) a line below the map, such as a score; may be empty.
    """

    title: str
    explanations: Mapping[str, ExplanationLike]
    remarks: Mapping[tuple[str, int], str]


def explanation_page(
    title: str, introduction: str, sections: Sequence[ImageSection], table: Sequence[Sequence[str]] = ()
) -> str:
    """Render explanations as one HTML page that contains its images and loads nothing.

    Args:
        title: Heading.
        introduction: A paragraph of plain text; `words` between backquotes become code.
        sections: One for each image.
        table: Rows of text for a table at the end, the first one its header; empty for none.
    """
    rows = [
        {"title": f"{section.title}: maps for {_first(section).label(0, k)}", "images": _images(section, k)}
        for section in sections
        for k in range(_first(section).maps.shape[1])
    ]
    return render("explanations.html", title=title, introduction=introduction, rows=rows, table=table)


def _first(section: ImageSection) -> ExplanationLike:
    return next(iter(section.explanations.values()))


def _images(section: ImageSection, k: int) -> list[dict[str, str]]:
    """The input image and the map of each method for one target."""
    first = _first(section)
    if first.rgb_images is None:
        raise InputError("these are explanations of texts: render them with vitrail.text.rendering.html")
    images = [{"data": png_uri(to_image(first.rgb_images[0])), "title": "Input", "remark": first.model, "alt": "input"}]
    for name, explanation in section.explanations.items():
        remark = "no relevance" if bool(explanation.constant[0, k]) else section.remarks.get((name, k), "")
        alt = f"{explanation.title} map for {explanation.label(0, k)}"
        data = png_uri(explanation.overlay(0, k))
        images.append({"data": data, "title": explanation.title, "remark": remark, "alt": alt})
    return images
