"""Images in tables: Parquet and Arrow files with the images or with their paths, and CSV lists of paths."""

from __future__ import annotations

import csv
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
    list_table = _list_csv if address.endswith((".csv", ".tsv")) else _list_groups
    return keep_list(address, name, f"{column}\0{label}", lambda: list_table(address, name, column, label))


def _list_groups(address: str, name: str, column: str, label: str) -> Iterator[SourceItem]:
    number = 0
    with _open_table(address) as table:
        image_column, label_column = _columns(table.names, address, column, label)
        for group in range(table.groups):
            columns = [label_column] if label_column else []
            paths = table.has_paths(image_column)
            values = table.read(group, [image_column, *columns] if paths else columns)
            labels = values[label_column].to_pylist() if label_column else [None] * table.rows(group)
            for row, one in enumerate(labels):
                if paths:
                    path = str(values[image_column][row].as_py())
                    yield SourceItem(path, _beside(address, path), (), one)
                else:
                    yield SourceItem(f"{name}/{number}", address, (group, row), one)
                number += 1


def _list_csv(address: str, name: str, column: str, label: str) -> Iterator[SourceItem]:
    del name
    system, path = file_system(address)
    with system.open(path, "r", encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t" if address.endswith(".tsv") else ",")
        image_column, label_column = _columns(reader.fieldnames or [], address, column, label)
        for row in reader:
            own = row[label_column] if label_column else ""
            yield SourceItem(row[image_column], _beside(address, row[image_column]), (), int(own) if own else None)


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
        self.parquet = address.endswith(".parquet")
        try:
            if self.parquet:
                self.file = require("pyarrow.parquet", "sources", "read Parquet files").ParquetFile(self.stream)
                self.schema, self.groups = self.file.schema_arrow, self.file.num_row_groups
            else:
                ipc = require("pyarrow", "sources", "read Arrow files").ipc
                self.file = ipc.open_file(self.stream)
                self.schema, self.groups = self.file.schema, self.file.num_record_batches
        except BaseException:
            self.stream.close()
            raise
        self.names: list[str] = self.schema.names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def has_paths(self, column: str) -> bool:
        """Whether a column holds texts."""
        return str(self.schema.field(column).type) in ("string", "large_string")

    def rows(self, group: int) -> int:
        """Number of rows of a group."""
        one = self.file.metadata.row_group(group) if self.parquet else self.file.get_batch(group)
        return int(one.num_rows)

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Columns of a group, as a table."""
        if self.parquet:
            return self.file.read_row_group(group, columns=list(columns))
        pa = require("pyarrow", "sources", "read Arrow files")
        return pa.Table.from_batches([self.file.get_batch(group)]).select(list(columns))
