"""Pages that show the maps of a store, as HTML without scripts."""

from __future__ import annotations

from html import escape
from typing import Annotated, Any, Protocol
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from vitrail.errors import VitrailError
from vitrail.web.help_page import document, not_found_page

#: Address of the pages.
MAPS_PATH = "/maps"
Text = Annotated[str, Query(max_length=300)]


class Gallery(Protocol):
    """A store of maps that can be browsed; see `vitrail.bench.map_gallery.MapGallery`."""

    title: str

    def values(self, column: str) -> list[str]:
        """Values of a column that rows can be chosen by."""

    def rows(self, method: str, name: str, image: str, page: int) -> Any:
        """Rows of a page, with their numbers, and how many there are."""

    def picture(self, number: int) -> bytes:
        """The map of a row as a JPEG file."""


def maps_router(gallery: Gallery) -> APIRouter:
    """Create the routes of a store.

    Args:
        gallery: The maps.
    """
    router = APIRouter(include_in_schema=False)

    @router.get(MAPS_PATH, response_class=HTMLResponse)
    def maps(method: Text = "", name: Text = "", image: Text = "", page: int = 1) -> Response:
        chosen = {"method": method, "name": name, "image": image}
        return HTMLResponse(_page(gallery, chosen, gallery.rows(method, name, image, page)))

    @router.get(MAPS_PATH + "/{number}.jpg", response_class=Response)
    def picture(number: int) -> Response:
        try:
            return Response(gallery.picture(number), media_type="image/jpeg")
        except VitrailError:
            return HTMLResponse(not_found_page(f"{MAPS_PATH}/{number}.jpg"), 404)

    return router


def _page(gallery: Gallery, chosen: dict[str, str], found: Any) -> str:
    options = "".join(
        f"<option{' selected' if one == chosen['method'] else ''}>{escape(one)}</option>"
        for one in gallery.values("method")
    )
    names = "".join(f"<option value='{escape(one)}'>" for one in gallery.values("name"))
    form = (
        f"<form action='{MAPS_PATH}'><label>Method <select name='method'><option value=''>all</option>{options}"
        f"</select></label><label>Class <input name='name' list='names' value='{escape(chosen['name'])}'></label>"
        f"<datalist id='names'>{names}</datalist><label>Image <input name='image' value='{escape(chosen['image'])}'>"
        "</label><button>Show</button></form>"
    )
    tiles = "".join(_tile(number, row) for number, row in found.rows.items())
    count = f"{found.total:,} maps, page {found.page:,} of {found.pages:,}" if found.total else "No map fits."
    links = "".join(
        f"<a href='{MAPS_PATH}?{escape(urlencode(chosen | {'page': page}))}'>{text}</a> "
        for text, page in (("Previous", found.page - 1), ("Next", found.page + 1))
        if 1 <= page <= found.pages
    )
    return document(gallery.title, f"{form}<p>{count}</p><div class='tiles'>{tiles}</div><nav>{links}</nav>", wide=True)


def _tile(number: int, row: dict[str, Any]) -> str:
    """One map with its image's id, class and method, or the reason why there is none."""
    label = escape((row["name"] or f"class {row['class']}").split(",")[0])
    if row["probability"] is not None:
        label += f" ({100 * row['probability']:.1f} %)"
    if row["offset"] < 0:
        return f"<figure><figcaption>{escape(row['image'])}<br>{escape(row['error'] or '')}</figcaption></figure>"
    alt = f"{escape(row['method'])} map for {label}"
    return (
        f"<figure><img src='{MAPS_PATH}/{number}.jpg' alt='{alt}' loading='lazy' width='180' height='180'>"
        f"<figcaption>{label}<br>{escape(row['method'])}{', constant' if row['flat'] else ''}<br>"
        f"{escape(row['image'])}</figcaption></figure>"
    )
