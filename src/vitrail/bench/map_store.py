"""Maps as data: one index of all maps of a data set, and files of maps in half precision that are read row by row.

`vitrail explain FOLDER` and runs with ``keep_maps = true`` write the same files::

    manifest.json                 key: hash of model, weights, options and versions; model, methods, patch grid
    index.parquet                 one row for each map, sorted by id; its metadata holds the manifest
    parts/part-….safetensors      maps: for each method (and target) a tensor (maps, grid rows, grid columns), float16

Columns of the index: ``image`` (id, or path below the explained folder), ``model``, ``dataset`` and ``target`` (null
for folders), ``method``, ``class`` (index, −1 without a map), ``name`` (of the class, if known), ``probability``,
``flat`` (whether the map is constant), ``part`` (file name), ``offset`` (row of the tensor in that file, −1 without a
map), ``error`` (why there is no map, else null).
"""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.bench.parts import FOOTER_KEY, require_pyarrow, write_file
from vitrail.errors import DataError, InputError, OptionError, require
from vitrail.methods import find
from vitrail.methods.postprocess import normalise
from vitrail.viz.colormap import colourise, to_image

#: File name of the index.
INDEX = "index.parquet"
#: Columns by which rows are sorted.
_ORDER = ("image", "model", "dataset", "method", "target")
#: Columns with few different values, read as codes.
_REPEATED = ["model", "dataset", "method", "target", "name", "part", "error"]
#: Files of maps that are kept open.
_MAX_OPEN = 256
#: Maps that a notebook shows.
SHOWN_IN_NOTEBOOK = 12


class MapStore:
    """The maps of a data set, read from disk one by one.

    Attributes:
        folder: Folder of the index.
        index: The index as a pyarrow table; ``polars.from_arrow`` converts it without a copy.
        manifest: What the maps depend on: ``key``, model, weights, methods.
    """

    def __init__(self, folder: str | Path) -> None:
        require_pyarrow()
        pq: Any = require("pyarrow.parquet", "bench", "read maps")
        self.folder = Path(folder)
        path = self.folder / INDEX
        if not path.is_file():
            advice = "pass the --out folder of `vitrail explain DIR`, or a finished run of a plan with keep_maps = true"
            raise DataError(f"{self.folder} has no index of maps ({INDEX}): {advice}")
        try:
            table = pq.read_table(path, memory_map=True, read_dictionary=_REPEATED)
            self.manifest: dict[str, Any] = json.loads((table.schema.metadata or {})[FOOTER_KEY])
        except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are among these
            raise DataError(
                f"{path} is truncated or not an index of maps: delete it and run the command again"
            ) from error
        self.index = table.replace_schema_metadata(None)
        self._ids = table.column("image").combine_chunks()
        self._files: OrderedDict[str, Any] = OrderedDict()

    def __len__(self) -> int:
        """Number of rows: maps, and images without a map."""
        return int(self.index.num_rows)

    def __repr__(self) -> str:
        models = ", ".join(self.values("model")) or self.manifest.get("model", "")
        return f"MapStore({len(self):,} maps of {models} by {', '.join(self.values('method'))}, key {self.key})"

    def _repr_html_(self) -> str:
        """Some maps, spread over the store, for a notebook."""
        rows = self.select()
        count = min(SHOWN_IN_NOTEBOOK, rows.num_rows)
        shown = rows.take([i * rows.num_rows // count for i in range(count)]).to_pylist() if count else []
        tiles = "".join(
            f'<figure style="margin:0"><img src="{map_address(self.read(row), row["method"])}" alt="" width="96" '
            f'style="image-rendering:pixelated"><figcaption style="width:96px;overflow-wrap:anywhere">'
            f"{escape(row['image'])}<br>{escape((row['name'] or str(row['class'])).split(',')[0])}</figcaption>"
            "</figure>"
            for row in shown
        )
        style = "display:flex;flex-wrap:wrap;gap:8px;font:12px/1.3 system-ui,sans-serif"
        return f'<p>{escape(repr(self))}</p><div style="{style}">{tiles}</div>'

    @property
    def key(self) -> str:
        """Hash of everything that decides the maps: model, weights, options, images and versions."""
        return str(self.manifest["key"])

    @property
    def ids(self) -> list[str]:
        """Ids of all images, each once."""
        return [str(one) for one in self._ids.unique().to_pylist()]

    def values(self, column: str) -> list[str]:
        """Different values of a column of the index, such as "method", in order; without nulls."""
        return sorted(value for value in self.index.column(column).unique().to_pylist() if value is not None)

    def rows(self, image: str, **where: Any) -> list[dict[str, Any]]:
        """Rows of one image, by binary search.

        Args:
            image: Id of the image.
            **where: Values of further columns, such as ``method="gradtoken"``.

        Raises:
            InputError: There is no such image.
        """
        numbers = range(len(self._ids))
        start = bisect_left(numbers, image, key=self._id)
        stop = bisect_right(numbers, image, lo=start, key=self._id)
        if start == stop:
            near = f", for example {self._id(min(start, len(self) - 1))!r}" if len(self) else ""
            raise InputError(f"there is no image {image!r} in {self.folder}: pass an id of its {len(self.ids):,}{near}")
        found = self.index.slice(start, stop - start).to_pylist()
        return [row for row in found if all(row[name] == value for name, value in where.items())]

    def _id(self, number: int) -> str:
        return str(self._ids[number].as_py())

    def read(self, image: str | Mapping[str, Any], **where: Any) -> Tensor:
        """Read one map, shape (grid rows, grid columns), scaled to [0, 1] or [-1, 1], float32.

        Args:
            image: Id of an image, or a row of the index.
            **where: Values of columns that select one of the image's maps, such as ``method="gradtoken"``.

        Raises:
            InputError: No map or several maps fit, or the map could not be computed.
            DataError: The file of the map is missing or truncated.
        """
        row = self._only(image, where) if isinstance(image, str) else image
        if row["offset"] < 0:
            raise InputError(f"{row['image']} has no map by {row['method']}: {row['error']}")
        relevance: Tensor = self._slice(row)[row["offset"]]
        return relevance.float()

    def _only(self, image: str, where: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = self.rows(image, **where)
        if len(rows) == 1:
            return rows[0]
        choices = self.rows(image)
        names = [
            name for name in ("model", "dataset", "method", "target", "class") if len({r[name] for r in choices}) > 1
        ]
        given = "; ".join(", ".join(f"{name}={row[name]!r}" for name in names) for row in choices[:6])
        raise InputError(f"{len(rows)} maps of {image!r} fit, expected one: add {' or '.join(names)}. It has {given}")

    def table(self, **where: Any) -> Any:
        """Rows of the index with the given values, such as ``method="gradtoken"``; a pyarrow table."""
        pc: Any = require("pyarrow.compute", "bench", "read maps")
        rows = self.index
        for name, value in where.items():
            rows = rows.filter(pc.equal(rows.column(name), value))
        return rows

    def select(self, **where: Any) -> Any:
        """Rows as `table` returns them, without those that have no map."""
        pc: Any = require("pyarrow.compute", "bench", "read maps")
        rows = self.table(**where)
        return rows.filter(pc.greater_equal(rows.column("offset"), 0))

    def stack(self, rows: Any) -> Tensor:
        """Read the maps of many rows, shape (rows, grid rows, grid columns), float32.

        Args:
            rows: What `select` returned, or rows as dicts. All maps must have the same patch grid.
        """
        given: Sequence[Mapping[str, Any]] = rows if isinstance(rows, list) else rows.to_pylist()
        found: list[Tensor] = [torch.empty(0)] * len(given)
        for numbers in _by_file(given):  # a file is read once
            first = given[numbers[0]]
            whole = self._slice(first)[:]
            for number in numbers:
                found[number] = whole[given[number]["offset"]].float()
        if len({one.shape for one in found}) > 1:
            raise InputError("the maps have different patch grids: select those of one model")
        return torch.stack(found) if found else torch.empty(0, 0, 0)

    def _slice(self, row: Mapping[str, Any]) -> Any:
        part = row["part"]
        if part not in self._files:
            path = self.folder / "parts" / f"{part}.safetensors"
            opened = open_shard(path)
            key = (opened.metadata() or {}).get("key", self.key)
            if key != self.key:
                raise DataError(
                    f"{path} has maps of another model, other options or other images (key {key}, the index has "
                    f"{self.key}): run the command that wrote {self.folder} again"
                )
            self._files[part] = opened
            while len(self._files) > _MAX_OPEN:
                self._files.popitem(last=False)
        self._files.move_to_end(part)
        return self._files[part].get_slice(tensor_name(row["method"], row["target"]))


def open_maps(path: str | Path) -> MapStore:
    """Open the maps of a data set: what `vitrail explain FOLDER` wrote, or a finished run that kept its maps.

    Only the index is read; maps are read from disk when they are needed.

    Args:
        path: The ``--out`` folder of `vitrail explain`, or the folder of a run whose plan has ``keep_maps = true``.

    Raises:
        DataError: There is no index, or it is damaged.

    Example:
        >>> import tempfile, torch, vitrail
        >>> rows = [{"image": "cat.jpg", "method": "rollout", "class": 281, "part": "part-0", "offset": 0}]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_shard(Path(folder, "parts", "part-0.safetensors"), {"rollout": torch.ones(1, 14, 14)}, {})
        ...     path = write_index(Path(folder), rows, {"key": "0123"})
        ...     vitrail.open_maps(folder).read("cat.jpg", method="rollout").shape
        torch.Size([14, 14])
    """
    return MapStore(path)


def map_pixels(relevance: Tensor, method: str) -> NDArray[np.uint8]:
    """Colours of a map, one pixel for each patch, shape (grid rows, grid columns, 3).

    Args:
        relevance: The map.
        method: Its method; one that is not registered counts as unsigned.
    """
    try:
        _, found, options = find(method)
        signed = found.is_signed(options)
    except OptionError:
        signed = False
    colours = colourise(normalise(relevance, signed).numpy(), signed)
    pixels: NDArray[np.uint8] = (255 * colours).round().astype(np.uint8)
    return pixels


def map_address(relevance: Tensor, method: str) -> str:
    """The colours of a map as the data address of a PNG file, for pages."""
    buffer = BytesIO()
    to_image(map_pixels(relevance, method)).save(buffer, format="PNG")
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"


def tensor_name(method: str, target: str | None) -> str:
    """Name of the tensor that holds the maps of a method, and of a target where a run has several."""
    return method if target is None else f"{method}/{target}"


def index_schema() -> Any:
    """Schema of the index; see the module's description."""
    pa = require_pyarrow()
    types = {"class": pa.int32(), "offset": pa.int32(), "probability": pa.float64(), "flat": pa.bool_()}
    names = (
        "image",
        "model",
        "dataset",
        "method",
        "target",
        "class",
        "name",
        "probability",
        "flat",
        "part",
        "offset",
        "error",
    )
    return pa.schema([(name, types.get(name, pa.string())) for name in names])


def write_shard(path: Path, tensors: Mapping[str, Tensor], footer: Mapping[str, str]) -> Path:
    """Write maps, by `tensor_name` of shape (maps, grid rows, grid columns), and a footer to a file, atomically."""
    from safetensors.torch import save

    data = _in_order(save({name: maps.half().contiguous() for name, maps in tensors.items()}, dict(footer)))
    return write_file(path, lambda file: file.write(data))


def _in_order(data: bytes) -> bytes:
    """The same safetensors file with sorted metadata, whose order is random: equal maps should be equal files."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def open_shard(path: Path) -> Any:
    """Open a file of maps for reading by slices.

    Raises:
        DataError: It is missing or truncated.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        state = "is truncated or damaged" if path.is_file() else "is missing"
        raise DataError(f"{path} {state}: run the command that wrote it again, which computes it anew") from error


def has_maps(part: Path, footer: Mapping[str, str]) -> bool:
    """Whether the file of maps beside a part is complete and was written with the part's footer.

    Other settings may have written it since: a run that is killed between its two files leaves maps without their part.
    """
    try:
        found = open_shard(part.with_suffix(".safetensors")).metadata() or {}
    except DataError:
        return False
    return footer.items() <= found.items()


def write_index(folder: Path, rows: Any, manifest: Mapping[str, Any]) -> Path:
    """Write the index of a folder's maps, atomically.

    Args:
        folder: Folder of the store.
        rows: A pyarrow table with columns of `index_schema`, or rows as dicts; missing columns are null.
        manifest: What the maps depend on, with ``key``.
    """
    pa, pq = require_pyarrow(), require("pyarrow.parquet", "bench", "write tables")
    schema = index_schema()
    if isinstance(rows, list):
        rows = pa.Table.from_pylist([{"offset": -1, "class": -1} | row for row in rows], schema)
    absent = [name for name in schema.names if name not in rows.column_names]
    for name in absent:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    table = rows.select(schema.names).cast(schema).sort_by([(name, "ascending") for name in _ORDER])  # stable
    table = table.replace_schema_metadata({FOOTER_KEY: json.dumps(manifest).encode()})
    return write_file(folder / INDEX, lambda file: pq.write_table(table, file, compression="zstd"))


def _by_file(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[int]]:
    """Numbers of the rows whose maps are in the same tensor of the same file."""
    groups: dict[tuple[str, str, str | None], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row["part"], row["method"], row["target"]), []).append(number)
    yield from groups.values()
