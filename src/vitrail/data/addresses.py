"""Open images by address: folders, tar shards, tables, lists and Hugging Face data sets, in any store."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.hub_rows import is_saved_dataset, list_hub
from vitrail.data.source import IMAGE_SUFFIXES, FileSource, Source, SourceItem, file_system, name_store_errors
from vitrail.data.table_rows import TableSource, list_rows
from vitrail.data.tar_shards import TarSource, list_shard
from vitrail.errors import DataError, require

__all__ = ["full_address", "is_address", "open_source"]

#: Suffixes of the files of each kind.
KINDS = {
    "images": IMAGE_SUFFIXES,
    "tar shards": (".tar", ".tar.gz", ".tgz"),
    "tables": (".parquet", ".arrow", ".feather"),
    "lists": (".csv", ".tsv"),
}


def is_address(text: str) -> bool:
    """Whether a text names a source that is not a local folder or image file.

    Example:
        >>> [is_address(text) for text in ("s3://bucket/x", "hf:beans", "shards-{00..09}.tar", "cat.jpg", "photos")]
        [True, True, True, False, False]
    """
    containers = KINDS["tar shards"] + KINDS["tables"] + KINDS["lists"]
    return "://" in text or text.startswith("hf:") or text.lower().endswith(containers) or is_saved_dataset(text)


def full_address(address: str | Path, folder: Path = Path()) -> str:
    """An address that means the same in every folder; relative local paths start at ``folder``.

    Example:
        >>> full_address("s3://bucket/x.tar"), full_address("x.tar", Path("/data"))
        ('s3://bucket/x.tar', '/data/x.tar')
    """
    text = str(address)
    return text if "://" in text or text.startswith("hf:") else str((folder / Path(text).expanduser()).resolve())


def open_source(
    address: str | Path,
    *,
    recursive: bool = False,
    column: str = "",
    label: str = "",
    split: str = "",
    exclude: str | None = None,
) -> Source:
    """List the images of an address. Nothing is unpacked, and images are read when they are needed.

    Args:
        address: A folder, a file or a pattern (``*``, ``{000..146}``), local or ``s3://``, ``gs://``, ``hf://`` and so
            on, of images, tar shards, Parquet or Arrow files or a CSV list; or ``hf:NAME`` for a data set of the hub.
        recursive: Whether to include subfolders of a folder.
        column: Column of the images or their paths in tables.
        label: Column of class indices in tables. Tar shards have labels in files ``.cls``.
        split: Split of a Hugging Face data set.
        exclude: A local folder whose files are left out.

    Returns:
        The source. A file that cannot be listed is an item with the reason.

    Raises:
        DataError: There are no images, or files of several kinds.
        UnreachableError: The store does not answer.
    """
    text = str(address)
    if (text.startswith("hf:") and "://" not in text) or is_saved_dataset(text):
        return list_hub(text, split, column, label)
    files, root, is_folder = _list_files(text, recursive)
    if exclude is not None:
        files = [file for file in files if not file.startswith(f"{exclude}/")]
    by_kind = {kind: [f for f in files if f.lower().endswith(suffixes)] for kind, suffixes in KINDS.items()}
    kind = next((kind for kind, found in by_kind.items() if found), None)
    if kind is None and not files:
        raise DataError(f"{text} does not exist or is empty: pass a folder, a file or a pattern of images")
    if kind is None:
        advice = "" if recursive or not is_folder else "; recursive=True (--recursive) includes subfolders"
        raise DataError(f"there are no images in {text}{advice}")
    others = [f"{len(by_kind[other]):,} {other}" for other in ("tar shards", "tables") if by_kind[other]]
    if kind == "images" and others:
        count = f"{len(by_kind[kind]):,} images and {' and '.join(others)}"
        raise DataError(f"{text} has {count}: pass a pattern that fits those to read, such as {text.rstrip('/')}/*.tar")
    chosen = [(file, posixpath.relpath(file, root)) for file in sorted(by_kind[kind])]
    if kind == "images":
        return FileSource(tuple(SourceItem(name, file) for file, name in chosen))
    if kind == "tar shards":
        return TarSource(_unique(text, [item for file, name in chosen for item in list_shard(file, name)]))
    rows = _unique(text, [item for file, name in chosen for item in list_rows(file, name, column, label)])
    return TableSource(rows, column=column)


def _unique(address: str, items: Sequence[SourceItem]) -> tuple[SourceItem, ...]:
    if not items:
        raise DataError(f"there are no images in {address}")
    if all(item.error for item in items):
        raise DataError(str(items[0].error))
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise DataError(f"{address} has two images with the id {item.id}: ids must be unique")
        seen.add(item.id)
    return tuple(items)


def _list_files(address: str, recursive: bool) -> tuple[list[str], str, bool]:
    """Addresses of the files of a folder, a pattern or one file, the folder above them, and whether that was given."""
    local = "://" not in address
    with name_store_errors(address):
        system, path = file_system(address)
        is_folder = system.isdir(path)
        if is_folder:
            found = system.find(path, maxdepth=None if recursive else 1)
            root = path
        else:
            patterns = [address]
            if "{" in address:
                patterns = list(require("braceexpand", "sources", "expand {…}").braceexpand(address))
            found = [f for one in patterns for f in _glob(one)]
            root = posixpath.dirname(re.split(r"[*?\[{]", path)[0])
    names = [name if local else str(system.unstrip_protocol(name)) for name in found]
    return names, root if local else str(system.unstrip_protocol(root)), is_folder


def _glob(pattern: str) -> list[str]:
    system, path = file_system(pattern)
    if not re.search(r"[*?\[]", path):
        # A shard that is missing is named when it is listed, so that the other shards can be used.
        return [path]
    return sorted(system.glob(path))
