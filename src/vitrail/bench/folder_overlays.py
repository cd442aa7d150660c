"""Overlays and thumbnails of the maps of a folder, drawn part by part with the engines of the benchmark.

Files in the output folder, with the path of an image below the explained folder::

    overlays/PATH.METHOD-K.jpg            overlay of the map of target K, at the size of the model's input
    overlays/PATH.METHOD-K.original.jpg   the same at the size of the image file, if requested
    overlays/PATH.thumbnail.jpg           the image itself, small
    overlays/part-00000.json              written last: key of the run, and whether originals were drawn
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.bench.engines import BenchTask, TaskCallback
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.folder import folder_settings, open_listed, read_manifest, read_map
from vitrail.bench.folder_chunk import open_folder_context
from vitrail.bench.image_contents import CONTENTS
from vitrail.bench.parts import read_footer, write_error, write_file
from vitrail.capture.layout import Area
from vitrail.data.source import Source, SourceItem
from vitrail.errors import VitrailError, require
from vitrail.methods import find
from vitrail.methods.postprocess import normalise, place, upsample
from vitrail.models.preprocess import Preprocess, open_image
from vitrail.pipeline.saved_files import JPEG_QUALITY, slug
from vitrail.viz.colormap import overlay, to_image
from vitrail.viz.original_overlay import original_overlay

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "overlays"
#: Longest side of a thumbnail, in pixels.
THUMBNAIL = 224

Row = Mapping[str, Any]


@dataclass(frozen=True)
class OverlayChunk:
    """Overlays of one finished part.

    Attributes:
        source: The source of the images, without its list.
        items: The images of the part, by id.
        folder: Folder of the results, which also holds the maps.
        key: Key of the run and of the part's images.
        name: Name of the part.
        preprocess: Preprocessing of the model.
        area: Part of the model's input that the patch grid covers, if it is not all of it.
        original: Whether to draw over the image files too.
        signed: Methods whose maps have a sign.
    """

    source: Source
    items: Mapping[str, SourceItem] = field(repr=False)
    folder: str
    key: str
    name: str
    preprocess: Preprocess
    area: Area | None
    original: bool
    signed: frozenset[str]

    @property
    def maps(self) -> int:
        """Number of rows of the part, for progress."""
        pq: Any = require("pyarrow.parquet", "bench", "read tables")
        return int(pq.read_metadata(self._part_path).num_rows)

    @property
    def path(self) -> Path:
        """File that is written last."""
        return Path(self.folder) / FOLDER / f"{self.name}.json"

    @property
    def done(self) -> bool:
        """Whether all its overlays exist."""
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(record.get("key") == self.key and (record.get("original") or not self.original))

    @property
    def _part_path(self) -> Path:
        return Path(self.folder) / "parts" / f"{self.name}.parquet"

    def prepare(self, device: str) -> None:
        """Nothing is read ahead: images are drawn one by one."""

    def compute(self, device: str) -> Callable[[], Path]:
        """Draw the overlays of all maps of the part; return the function that notes that they are drawn."""
        del device
        pq: Any = require("pyarrow.parquet", "bench", "read tables")
        rows = [row for row in pq.read_table(self._part_path).to_pylist() if row["offset"] >= 0]
        rows.sort(key=lambda row: row["image"])  # stable: the order of the targets remains
        for name, image_rows in groupby(rows, key=lambda row: row["image"]):
            self._draw(name, list(image_rows))
        content = json.dumps({"key": self.key, "original": self.original})
        return partial(write_file, self.path, lambda file: file.write(f"{content}\n".encode()))

    def _draw(self, name: str, rows: list[Row]) -> None:
        out = Path(self.folder)
        try:
            image = open_image(name, self.source.open(self.items[name]))
        except VitrailError:  # deleted since it was explained: its maps remain
            return
        pixels = self.preprocess.denormalise(self.preprocess(image)[None])[0]
        geometry = self.preprocess.geometry(image.height, image.width)
        for row, path in zip(rows, overlay_names(rows), strict=True):
            signed = row["method"] in self.signed
            relevance = self._relevance(row, signed)
            _save(to_image(overlay(pixels, relevance, signed)), out / path)
            if self.original:
                drawn = original_overlay(image, relevance, geometry, signed)
                _save(drawn, out / original_name(path))
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        _save(image, out / thumbnail_name(name))

    def _relevance(self, row: Row, signed: bool) -> np.ndarray[Any, Any]:
        """A map at the size of the model's input, as `vitrail.explain` returns it."""
        grid = read_map(self.folder, dict(row)).float()
        size = (grid.shape[-2], grid.shape[-1])
        if self.area is None or size[0] > self.preprocess.size[0]:
            return normalise(upsample(grid, self.preprocess.size), signed).numpy()
        covered = normalise(upsample(grid, self.area.size), signed)
        return place(covered, self.preprocess.size, self.area.start).numpy()


def overlay_names(rows: Sequence[Row]) -> Iterator[str]:
    """Path of the overlay of each row of one image, below the output folder."""
    counts: dict[str, int] = {}
    for row in rows:
        method = str(row["method"])
        counts[method] = counts.get(method, -1) + 1
        yield f"{FOLDER}/{_below(row['image'])}.{slug(method)}-{counts[method]}.jpg"


def original_name(overlay_path: str) -> str:
    """Path of an overlay at the size of the image file."""
    return f"{overlay_path.removesuffix('.jpg')}.original.jpg"


def thumbnail_name(image: str) -> str:
    """Path of an image's thumbnail, below the output folder."""
    return f"{FOLDER}/{_below(image)}.thumbnail.jpg"


def _below(image: str) -> str:
    """The id of an image as a path that stays below a folder.

    Example:
        >>> _below("cats/a.png"), _below("s3://bucket/../a.png"), _below("/data/a.png")
        ('cats/a.png', 's3:/_/bucket/_/a.png', '_/data/a.png')
    """
    return "/".join("_" if name in ("", ".", "..") else name for name in image.split("/"))


def draw_folder(
    out: str | Path,
    *,
    original: bool = False,
    device: str = "cpu",
    engine: LocalEngine | None = None,
    begin: Callable[[Sequence[BenchTask], int], None] = lambda _, __: None,
    done: TaskCallback = lambda _: None,
) -> Path:
    """Draw overlays of all maps that `explain_folder` wrote; finished parts are skipped.

    Args:
        out: Folder of the results.
        original: Also draw overlays at the size of the image files.
        device: Device of the model, which is loaded for its preprocessing.
        engine: Processes that draw the parts. Default: one worker.
        begin: Called once with the missing parts and the number of finished ones.
        done: Called with every part that is finished.

    Returns:
        Folder of the overlays.
    """
    out = Path(out).resolve()
    manifest = read_manifest(out)
    model = open_folder_context(folder_settings(manifest), device).model(0)
    methods = {spec: find(spec) for spec in manifest["methods"]}
    signed = frozenset(spec for spec, (_, method, options) in methods.items() if method.is_signed(options))
    source = open_listed(manifest, out)
    items = {item.id: item for item in source.items}
    pq: Any = require("pyarrow.parquet", "bench", "read tables")
    index = pq.read_table(out / "index.parquet", columns=["part", "image"]).sort_by("part").to_pylist()
    tasks = []
    for part, rows in groupby(index, key=lambda row: row["part"]):
        footer = read_footer(out / "parts" / f"{part}.parquet")
        if footer is not None and footer.get("key") == manifest["key"]:
            own = {row["image"]: items[row["image"]] for row in rows if row["image"] in items}
            contents = hashlib.sha256(str(footer.get(CONTENTS)).encode()).hexdigest()[:16]
            key = f"{manifest['key']} {footer.get('images')} {contents}"
            tasks.append(
                OverlayChunk(source.emptied(), own, str(out), key, part,
                             model.preprocess, model.structure.layout.area, original, signed)
            )  # fmt: skip
    missing = [task for task in tasks if not task.done]
    begin(missing, len(tasks) - len(missing))
    (engine or LocalEngine(1, device)).run(missing, done)
    return out / FOLDER


def _save(image: Image, path: Path) -> None:
    """Write a JPEG file. The part's last file marks all of them as complete, so none is flushed to disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, format="JPEG", quality=JPEG_QUALITY)
    except OSError as error:
        raise write_error(error, path) from error
