"""Images in files of any store: the protocol of sources, whole files, and the errors of stores."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from vitrail.errors import DataError, UnreachableError

__all__ = ["FileSource", "Source", "SourceItem", "file_system", "keep_list", "name_store_errors", "read_bytes"]

#: Suffixes of image files.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif", ".heic", ".heif")
#: Version of the lists that are kept.
LIST_FORMAT = "2"


class SourceItem(NamedTuple):
    """Where one image is.

    Attributes:
        id: Name of the image, the same on every machine.
        file: Address of the file that holds it.
        place: Where in that file: nothing for a whole file, offset and size in a tar archive, group and row in a table.
        label: Index of its class, if known.
        error: Why it cannot be read, if that is known already: the item then stands for a damaged file.
    """

    id: str
    file: str
    place: tuple[int, ...] = ()
    label: int | None = None
    error: str | None = None


class Source(Protocol):
    """Images that are listed first and read one by one, each in any process."""

    @property
    def items(self) -> Sequence[SourceItem]:
        """The images in a fixed order."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes that labels refer to, or None if unknown."""

    def open(self, item: SourceItem) -> bytes:
        """Read the content of an image file.

        Raises:
            DataError: It is missing or damaged.
            UnreachableError: The store does not answer.
        """

    def emptied(self) -> Source:
        """The same source without its list, to be sent to a worker together with some items."""


@dataclass(frozen=True)
class FileSource:
    """Images that are whole files of a folder or an object store.

    Attributes:
        items: The images.
    """

    items: tuple[SourceItem, ...] = ()
    classes: tuple[str, ...] | None = None

    def open(self, item: SourceItem) -> bytes:
        """Read the content of an image file."""
        if item.error is not None:
            raise DataError(item.error)
        with name_store_errors(item.file):
            return self._read(item)

    def emptied(self) -> Self:
        """The same source without its list."""
        return replace(self, items=())

    def _read(self, item: SourceItem) -> bytes:
        return read_bytes(item.file)


def read_bytes(address: str, start: int = 0, size: int = -1) -> bytes:
    """Read a file, or ``size`` bytes of it from ``start``."""
    if "://" not in address:  # without fsspec, which takes several times as long
        local = Path(address).expanduser()
        _refuse_special_file(local)
        with local.open("rb") as file:
            file.seek(start)
            return file.read(size)
    system, path = file_system(address)
    content: bytes = system.cat_file(path, start, None if size < 0 else start + size)
    return content


def _refuse_special_file(path: Path) -> None:
    """Raise an error for a named pipe, a socket or a device, which may be waited for without end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path} is a pipe, a socket or a device, expected a file: remove it")


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address and the path in it; an address without ``scheme://`` is a local path.

    Example:
        >>> file_system("memory://shards/a.tar")[1], file_system("/data/a::b.tar")[1]
        ('/shards/a.tar', '/data/a::b.tar')
    """
    import fsspec

    if "://" not in address:
        return fsspec.filesystem("file"), str(Path(address).expanduser().resolve())
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # the library of this protocol is missing, or there is no such protocol
        raise DataError(f"{address} cannot be opened: {error}") from error
    return system, str(path)


@contextmanager
def name_store_errors(address: str) -> Iterator[None]:
    """Turn errors of file systems and of readers into errors that name the address."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{address} does not exist: check the address") from error
    except (PermissionError, IsADirectoryError) as error:
        raise DataError(f"{address} cannot be read: {error}") from error
    except (EOFError, ValueError, KeyError, NotImplementedError, tarfile.TarError, csv.Error) as error:  # and pyarrow's
        raise DataError(f"{address} cannot be read ({error}): it is damaged or truncated") from error
    except OSError as error:
        is_local = address.startswith("file://") or ("://" not in address and not address.startswith("hf:"))
        if is_local or "truncated" in str(error).lower():
            raise DataError(f"{address} cannot be read ({error}): it is damaged or truncated") from error
        raise UnreachableError(f"{address} does not answer ({error}): check the network, then run it again") from error
    except Exception as error:
        # Libraries of object stores have their own errors, of which most are no OSError.
        raise UnreachableError(f"{address} cannot be read ({type(error).__name__}: {error})") from error


def keep_list(
    address: str, name: str, options: str, list_items: Callable[[], Iterable[SourceItem]]
) -> list[SourceItem]:
    """List the images of a file, or read the list that an earlier call has kept.

    A list is kept in ``$XDG_CACHE_HOME/vitrail/sources`` until the file changes, so that a run that is resumed does not
    read the file again to list it. A file that cannot be listed becomes one item with the error, after the images that
    were found before the error.

    Args:
        address: Address of the file.
        name: Id of the item that stands for the file if it cannot be listed.
        options: What else decides the list.
        list_items: Lists the images.
    """
    items: list[SourceItem] = []
    try:
        with name_store_errors(address):
            system, path = file_system(address)
            if "://" not in address:
                _refuse_special_file(Path(path))
            listed = "\0".join((LIST_FORMAT, address, name, options, _file_version(system, path)))
            key = hashlib.sha256(listed.encode()).hexdigest()
            kept = _cache_folder() / f"{key}.json"
            with suppress(OSError, ValueError, TypeError):
                return [SourceItem(i, f, tuple(p), *rest) for i, f, p, *rest in json.loads(kept.read_text("utf-8"))]
            items.extend(list_items())
    except DataError as error:
        found = f"; the {len(items):,} images before the damage are used" if items else ""
        return [*items, SourceItem(name, address, (), None, f"{error}{found}")]
    with suppress(OSError):  # a home that cannot be written to: the file is listed again
        kept.parent.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(items), "utf-8")
        unfinished.replace(kept)
    return items


def _file_version(system: Any, path: str) -> str:
    """A text that changes with the file; fsspec takes files of the web for unchanging, so their size and tag count."""
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    on_the_web = "http" in protocols or "https" in protocols
    return f"{system.ukey(path)}{sorted(system.info(path).items()) if on_the_web else ''}"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail" / "sources"
