"""Images in data sets of the library ``datasets``: a name of the Hugging Face hub, or a folder on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitrail.data.source import FileSource, SourceItem, file_system, name_store_errors
from vitrail.errors import DataError, require

__all__ = ["HubSource", "is_saved_dataset", "list_hub"]


@dataclass(frozen=True)
class HubSource(FileSource):
    """Images in the rows of a data set of the library ``datasets``.

    Attributes:
        split: Name of the split; "" for the only one.
        column: Column of the images; "" for the first column of the type Image.
    """

    split: str = ""
    column: str = ""

    def _read(self, item: SourceItem) -> bytes:
        rows, column, _ = _open_rows(item.file, self.split, self.column)
        value = rows[item.place[0]][column]
        content = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(content, bytes):
            return content
        path = value.get("path") if isinstance(value, dict) else value
        if not isinstance(path, str):
            raise DataError(f"{item.id} holds no image: the value is {path!r}")
        return FileSource().open(SourceItem(item.id, path))


def is_saved_dataset(folder: str) -> bool:
    """Whether ``save_to_disk`` wrote a folder."""
    names = ("dataset_dict.json", "state.json")
    if "://" not in folder:
        return any(Path(folder, name).is_file() for name in names)
    system, path = file_system(folder)
    return any(system.isfile(f"{path.rstrip('/')}/{name}") for name in names)


def list_hub(address: str, split: str = "", column: str = "", label: str = "") -> HubSource:
    """List a data set; ids are the split and the number of the row.

    Args:
        address: ``hf:NAME``, or a folder that ``save_to_disk`` wrote.
        split: Name of the split, or a slice of it, such as ``validation[:100]``. Not needed if there is only one.
        column: Column of the images. Default: the first column of the type Image.
        label: Column of class indices. Default: ``label``, if there is one.
    """
    _open_rows.cache_clear()  # the folder may have changed since another source read it
    with name_store_errors(address):
        rows, _, classes = _open_rows(address, split, column, label)
        name = label or ("label" if "label" in rows.column_names else "")
        labels = rows[name][:] if name else [None] * len(rows)
    items = tuple(SourceItem(f"{rows.split or 'row'}/{i}", address, (i,), one) for i, one in enumerate(labels))
    return HubSource(items, classes, split, column)


@lru_cache(maxsize=2)
def _open_rows(address: str, split: str, column: str, label: str = "") -> tuple[Any, str, tuple[str, ...] | None]:
    """The rows with images as bytes, the column of the images, and the names of the classes."""
    datasets: Any = require("datasets", "sources", "read data sets of Hugging Face")
    if address.startswith("hf:"):
        loaded = datasets.load_dataset(address.removeprefix("hf:"), split=split or None)
    else:
        loaded = datasets.load_from_disk(address)
    if isinstance(loaded, dict):
        if split not in loaded and (split or len(loaded) > 1):
            raise DataError(f"{address} has the splits {', '.join(loaded)}: choose one with --split")
        loaded = loaded[split or next(iter(loaded))]
    images = [name for name, feature in loaded.features.items() if isinstance(feature, datasets.Image)]
    chosen = column or next(iter(images), "")
    for name in (chosen, label):
        if name not in ("", *loaded.column_names) or not chosen:
            wanted = name or "of images"
            raise DataError(f"{address} has no column {wanted}: it has {', '.join(loaded.column_names)}; use --column")
    rows = loaded.cast_column(chosen, datasets.Image(decode=False)) if chosen in images else loaded
    feature = loaded.features.get(label or "label")
    return rows, chosen, tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None
