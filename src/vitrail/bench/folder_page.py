"""HTML index of an explained folder: every image beside its overlays, with class and probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitrail.bench.folder import read_manifest
from vitrail.bench.folder_overlays import original_name, overlay_names, thumbnail_name
from vitrail.bench.parts import write_file
from vitrail.errors import require
from vitrail.viz.templating import render

#: Images on one page.
PAGE_SIZE = 200


@dataclass(frozen=True)
class FolderSummary:
    """What became of the images of a folder.

    Attributes:
        page: The first page of the index, or the table where there are no pages.
        images: Number of images.
        failures: For each image without a map by some method, the reason.
    """

    page: Path
    images: int
    failures: Mapping[str, str]


def summarise_folder(out: str | Path) -> FolderSummary:
    """Count the images of an explained folder and name those that failed; its ``page`` is the table of all maps."""
    path = Path(out).resolve() / "index.parquet"
    pc: Any = require("pyarrow.compute", "bench", "read tables")
    table = require("pyarrow.parquet", "bench", "read tables").read_table(path, columns=["image", "error"])
    failed = table.filter(pc.is_valid(table["error"])).to_pylist()
    count = int(pc.count_distinct(table["image"]).as_py())
    return FolderSummary(path, count, {row["image"]: row["error"] for row in reversed(failed)})


def write_folder_page(out: str | Path, notes: tuple[str, ...] = ()) -> FolderSummary:
    """Write ``index.html``, and ``index-2.html`` and so on for each further 200 images.

    The pages refer to the files in ``overlays`` by relative paths and load nothing else.

    Args:
        out: Folder of the results, after `explain_folder` and `draw_folder`.
        notes: Sentences below the heading.
    """
    out = Path(out).resolve()
    manifest = read_manifest(out)
    pq: Any = require("pyarrow.parquet", "bench", "read tables")
    rows = sorted(pq.read_table(out / "index.parquet").to_pylist(), key=lambda row: row["image"])
    images = [_entry(out, name, list(image_rows)) for name, image_rows in groupby(rows, key=lambda row: row["image"])]
    failures = {image["name"]: image["error"] for image in images if image["error"]}
    count = max(1, ceil(len(images) / PAGE_SIZE))
    for number in range(1, count + 1):
        page = render(
            "folder.html", images=images[(number - 1) * PAGE_SIZE : number * PAGE_SIZE], manifest=manifest,
            failures=failures, total=len(images), number=number, count=count, notes=notes,
            pages=[_page_name(i) for i in range(1, count + 1)],
        )  # fmt: skip
        write_file(out / _page_name(number), lambda file, page=page: file.write(page.encode()))  # type: ignore[misc]
    return FolderSummary(out / _page_name(1), len(images), failures)


def _page_name(number: int) -> str:
    return "index.html" if number == 1 else f"index-{number}.html"


def _entry(out: Path, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One image for the template: its thumbnail, its overlays and its error."""
    with_maps = [row for row in rows if row["offset"] >= 0]
    overlays = []
    for row, path in zip(with_maps, overlay_names(with_maps), strict=True):
        full = original_name(path)
        href = quote(full if (out / full).is_file() else path)
        label = (row["name"] or f"class {row['class']}").split(",")[0]
        overlays.append({
            "src": quote(path) if (out / path).is_file() else None, "href": href, "method": row["method"],
            "label": label, "probability": row["probability"], "flat": row["flat"],
        })  # fmt: skip
    thumbnail = thumbnail_name(name)
    return {
        "name": name, "thumbnail": quote(thumbnail) if (out / thumbnail).is_file() else None, "overlays": overlays,
        "error": next((row["error"] for row in rows if row["error"]), None),
    }  # fmt: skip
