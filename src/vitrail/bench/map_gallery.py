"""Browse a store of maps: the maps of a method, a class or an image page by page, and the picture of each."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from vitrail.bench.audit.images import AuditImages
from vitrail.bench.map_store import map_pixels, open_maps
from vitrail.bench.report.example_images import encode_jpeg
from vitrail.errors import InputError, VitrailError, require

#: Maps on one page.
PAGE_SIZE = 60


class GalleryPage(NamedTuple):
    """Some maps of a store.

    Attributes:
        rows: Rows of the index by their numbers.
        total: Number of all rows that fit.
        page: Number of the page, from 1.
        pages: Number of pages.
    """

    rows: dict[int, dict[str, Any]]
    total: int
    page: int
    pages: int


class MapGallery:
    """The maps of a store, to be browsed.

    Args:
        folder: As `vitrail.open_maps` takes it.

    Attributes:
        store: The store.
        title: Number of maps, and of which model.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = open_maps(folder)
        models = ", ".join(self.store.values("model")) or self.store.manifest.get("model", "")
        self.title = f"{len(self.store):,} maps of {models}"
        self._images, self._lock = AuditImages(self.store), Lock()

    def values(self, column: str) -> list[str]:
        """Values of a column that rows can be chosen by."""
        return self.store.values(column)

    def rows(self, method: str = "", name: str = "", image: str = "", page: int = 1) -> GalleryPage:
        """Rows of a page; where the file of a map cannot be read, the reason is the row's error.

        Args:
            method: Spec of the method; all of them if empty.
            name: Part of the name of the class.
            image: Part of the image's id.
            page: Number of the page, from 1; the last one if there are fewer.
        """
        pa, pc = require("pyarrow", "bench", "read maps"), require("pyarrow.compute", "bench", "read maps")
        index = self.store.index
        fits: Any = pa.array([True] * len(index)) if len(index) else pa.array([], pa.bool_())
        for column, part in (("name", name), ("image", image)):
            if part:
                text = index.column(column).cast(pa.string())
                fits = pc.and_(fits, pc.fill_null(pc.match_substring(text, part, ignore_case=True), False))
        if method:
            fits = pc.and_(fits, pc.equal(index.column("method"), method))
        numbers = pc.indices_nonzero(fits)
        pages = max(1, -(-len(numbers) // PAGE_SIZE))
        page = min(max(page, 1), pages)
        shown = numbers.slice((page - 1) * PAGE_SIZE, PAGE_SIZE)
        rows = dict(zip(shown.to_pylist(), index.take(shown).to_pylist(), strict=True))
        for row in rows.values():
            try:
                with self._lock:
                    self.store.read(row)
            except VitrailError as error:  # a file of maps that is truncated or missing
                row.update(offset=-1, error=row["error"] or str(error))
        return GalleryPage(rows, len(numbers), page, pages)

    def picture(self, number: int) -> bytes:
        """A map over its image as a JPEG file; the map alone where the image cannot be read.

        Args:
            number: Number of the row.

        Raises:
            InputError: There is no such row, or it has no map.
        """
        if not 0 <= number < len(self.store):
            raise InputError(f"there is no map {number}: the store has {len(self.store):,}")
        (row,) = self.store.index.slice(number, 1).to_pylist()
        with self._lock:  # files that are open, and the model, whose preprocessing is loaded with the first image
            relevance = self.store.read(row)
            has_images = bool({"folder", "plan"} & set(self.store.manifest))
            drawn = self._images.thumbnail(row) if has_images else None
        return encode_jpeg(map_pixels(relevance, row["method"]) if drawn is None else drawn)
