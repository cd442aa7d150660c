"""Images in tables: Parquet and Arrow files with the images or with their paths, and CSV lists of paths."""

from __future__ import annotations

import csv
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from vitrail.data.source import FileSource, SourceItem, file_system, keep_list, name_store_errors
from vitrail.errors import DataError, require

__all__ = ["TableSource", "list_rows"]

#: Columns that hold images or their paths, the first that a table has.
IMAGE_COLUMNS = ("image", "jpg", "png", "webp", "img", "bytes", "content", "file", "path", "file_name", "filename")
#: Columns that hold the index of a class.
LABEL_COLUMNS = ("label", "class", "cls", "imagenet_class")
_LOCK = threading.Lock()


@dataclass(frozen=True)
class TableSource(FileSource):
    """Images in the rows of Parquet and Arrow files; rows with a path refer to a file.

    Attributes:
        column: Column of the images; "" for the usual names.
    """

    column: str = ""

    def _read(self, item: SourceItem) -> bytes:
        if not item.place:
            return super()._read(item)
        group, row = item.place
        with _LOCK:  # threads that read rows of one group must not read it several times
            values = _read_group(item.file, group, self.column)
        value = values[row].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        path = value.get("path") if isinstance(value, dict) else None
        if content is None and isinstance(path, str):
            return FileSource().open(SourceItem(item.id, _beside(item.file, path)))
        if not isinstance(content, bytes):
            raise DataError(f"{item.id} holds no image: the value is {content!r}")
        return content


def list_rows(address: str, name: str, column: str = "", label: str = "") -> list[SourceItem]:
    """List the rows of a table.

    Args:
        address: Address of a Parquet, Arrow or CSV file.
        name: What ids of rows begin with; the id of a path is the path.
        column: Column of the images or paths. Default: the first of the usual names.
        label: Column of class indices. Default: the first of the usual names, if there is one.
    """
    _read_group.cache_clear()  # the file may have changed since another source read it
    list_table = _list_csv if address.lower().endswith((".csv", ".tsv")) else _list_groups
    return keep_list(address, name, f"{column}\0{label}", lambda: list_table(address, name, column, label))


def _list_groups(address: str, name: str, column: str, label: str) -> Iterator[SourceItem]:
    number = 0
    with _open_table(address) as table:
        image_column, label_column = _columns(table.names, address, column, label)
        paths = table.has_paths(image_column)
        for group in range(table.groups):
            columns = [label_column] if label_column else []
            values = table.read(group, [image_column, *columns] if paths else columns)
            labels = values[label_column].to_pylist() if label_column else [None] * table.rows(group)
            for row, one in enumerate(labels):
                index = _class_index(one, address, label)
                if paths:
                    yield _path_item(address, name, number, values[image_column][row].as_py(), index)
                else:
                    yield SourceItem(f"{name}/{number}", address, (group, row), index)
                number += 1


def _list_csv(address: str, name: str, column: str, label: str) -> Iterator[SourceItem]:
    system, path = file_system(address)
    with system.open(path, "r", encoding="utf-8-sig", newline="") as stream:  # spreadsheets begin with a mark
        reader = csv.DictReader(stream, delimiter="\t" if address.lower().endswith(".tsv") else ",")
        image_column, label_column = _columns(reader.fieldnames or [], address, column, label)
        for number, row in enumerate(reader):
            index = _class_index(row[label_column], address, label) if label_column else None
            yield _path_item(address, name, number, row[image_column], index)


def _path_item(address: str, name: str, number: int, path: str | None, label: int | None) -> SourceItem:
    """The item of a row that holds a path; a row without one is an item with the reason."""
    if not path:
        reason = f"row {number} of {address} names no image: its path is empty"
        return SourceItem(f"{name}/{number}", address, (), None, reason)
    return SourceItem(path, _beside(address, path), (), label)


def _class_index(value: Any, address: str, column: str) -> int | None:
    """The index of a class in a column of labels. Where no column was asked for, names of classes are no labels."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        index = int(value)
        if index == float(value):
            return index
    except (TypeError, ValueError):
        pass
    if column:
        raise DataError(f"{address} has {value!r} in the column {column}, expected indices of the model's classes")
    return None


def _columns(names: Sequence[str], address: str, column: str, label: str) -> tuple[str, str]:
    """Names of the columns of images and of labels ("" if there are none)."""
    chosen = [[column] if column else IMAGE_COLUMNS, [label] if label else LABEL_COLUMNS]
    image_column, label_column = (next((name for name in wanted if name in names), "") for wanted in chosen)
    if not image_column or (label and not label_column):
        missing = (label if image_column else column) or f"of images ({', '.join(IMAGE_COLUMNS)})"
        raise DataError(f"{address} has no column {missing}: it has {', '.join(names)}; choose one with --column")
    return image_column, label_column


def _beside(address: str, path: str) -> str:
    """Address of a file that a table names: absolute, or relative to the table's folder."""
    return path if "://" in path or path.startswith("/") else f"{address.rpartition('/')[0]}/{path}"


@lru_cache(maxsize=2)
def _read_group(address: str, group: int, column: str) -> Any:
    """Images of one group of rows; the groups read last are kept, because rows are read in order."""
    with name_store_errors(address), _open_table(address) as table:
        image_column, _ = _columns(table.names, address, column, "")
        return table.read(group, [image_column])[image_column].combine_chunks()


class _open_table:  # noqa: N801 - a context manager that is used like the function ``open``
    """An open Parquet or Arrow file as groups of rows."""

    def __init__(self, address: str) -> None:
        system, path = file_system(address)
        self.stream = system.open(path, "rb")
        self.parquet = address.lower().endswith(".parquet")
        try:
            if self.parquet:
                self.file = require("pyarrow.parquet", "sources", "read Parquet files").ParquetFile(self.stream)
                self.schema, self.groups = self.file.schema_arrow, self.file.num_row_groups
            else:
                self.file = _open_stream(address) if self._is_stream() else _arrow().ipc.open_file(self.stream)
                self.schema, self.groups = self.file.schema, self.file.num_record_batches
        except BaseException:
            self.stream.close()
            raise
        self.names: list[str] = self.schema.names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def _is_stream(self) -> bool:
        """Whether the file has the streaming format of Arrow, which the library ``datasets`` writes."""
        start = self.stream.read(4)
        self.stream.seek(0)
        return bool(start == b"\xff\xff\xff\xff")

    def has_paths(self, column: str) -> bool:
        """Whether a column holds texts."""
        types, kind = _arrow().types, self.schema.field(column).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    def rows(self, group: int) -> int:
        """Number of rows of a group."""
        one = self.file.metadata.row_group(group) if self.parquet else self.file.get_batch(group)
        return int(one.num_rows)

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Columns of a group, as a table."""
        if self.parquet:
            return self.file.read_row_group(group, columns=list(columns))
        return _arrow().Table.from_batches([self.file.get_batch(group)]).select(list(columns))


class _open_stream:  # noqa: N801 - as above
    """A local file in the streaming format of Arrow; its batches lie in mapped memory and are read when needed."""

    def __init__(self, address: str) -> None:
        if "://" in address and not address.startswith("file://"):
            raise DataError(
                f"{address} is an Arrow stream, which has no positions: copy it here, or write Parquet files"
            )
        reader = _arrow().ipc.open_stream(_arrow().memory_map(file_system(address)[1]))
        self.schema, self.batches = reader.schema, list(reader)
        self.num_record_batches = len(self.batches)

    def get_batch(self, group: int) -> Any:
        """One batch of rows."""
        return self.batches[group]


def _arrow() -> Any:
    return require("pyarrow", "sources", "read Arrow files")
