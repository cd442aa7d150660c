"""Parts: files that appear whole or not at all, each with a note at its end that says what it belongs to."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from vitrail.errors import OutputError, require

#: What names a row; no two rows of a run agree in all of these.
KEYS = ("model", "dataset", "image", "method", "target", "protocol", "score")
#: What depends on the machine and the moment, and so is left out where tables must be identical.
COSTS = ("seconds", "forwards", "memory")
#: What the model said at each level of a perturbation test.
CURVES = ("removed", "logp_predicted", "logp_label", "winner", "logp_first", "logp_second")
NOTE = b"vitrail"


def schema() -> Any:
    """The columns of a part; see `vitrail.bench.results_store` for what they mean."""
    pa = arrow()
    kinds = {"removed": pa.int32(), "winner": pa.int32()}
    return pa.schema(
        [
            *((name, pa.string()) for name in KEYS),
            ("value", pa.float64()),
            ("explained", pa.int32()),
            ("error", pa.string()),
            *((name, pa.float64()) for name in COSTS),
            *((name, pa.list_(kinds.get(name, pa.float32()))) for name in CURVES),
        ]
    )


def arrow() -> Any:
    """The library that reads and writes parquet."""
    return require("pyarrow", "bench", "write tables")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]], note: Mapping[str, Any], kinds: Any = None) -> Path:
    """Write columns as parquet, with a note in the footer.

    Args:
        path: The final name.
        columns: By name.
        note: What the file belongs to.
        kinds: The schema; that of parts unless told.

    Raises:
        OutputError: The disk is full, or may not be written to. Files already there are whole.
    """
    pa, pq = arrow(), require("pyarrow.parquet", "bench", "write tables")
    kinds = kinds or schema()
    table = pa.table({name: columns[name] for name in kinds.names}, kinds)
    table = table.replace_schema_metadata({NOTE: json.dumps(note, sort_keys=True).encode()})
    return write_file(path, lambda file: pq.write_table(table, file, compression="zstd"))


def read_note(path: Path) -> dict[str, Any] | None:
    """The note of a part, or None if the file is missing, damaged or not a part."""
    pq = require("pyarrow.parquet", "bench", "read tables")
    try:
        metadata = pq.read_schema(path).metadata or {}
        note: dict[str, Any] = json.loads(metadata[NOTE])
    except (OSError, KeyError, ValueError):  # what pyarrow raises is one of these
        return None
    return note


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write under another name, wait until it is on the disk, and rename.

    Args:
        path: The final name.
        write: Puts the content into an open file.

    Raises:
        OutputError: As `write_table`.
    """
    unfinished = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - one call that tests can let fail
        sync_folder(path.parent)
    except OSError as error:
        raise told(error, path) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def sync_folder(folder: Path) -> None:
    """Wait until names in a folder are on the disk, so that a part outlives a power cut as well."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network drives cannot, and need not
            raise
    finally:
        os.close(handle)


def told(error: OSError, path: Path) -> OutputError:
    """What went wrong with a file, and what to do."""
    kind = {
        errno.ENOSPC: "the disk is full: make room",
        errno.EDQUOT: "the quota is used up: make room",
        errno.EACCES: "permission is denied: choose another folder with --out",
        errno.EPERM: "permission is denied: choose another folder with --out",
        errno.EROFS: "the disk is read-only: choose another folder with --out",
    }.get(error.errno or 0, f"{error.strerror or error}")
    return OutputError(f"cannot write {path}: {kind}. Parts already there are whole; run it again to go on")


def sweep(folder: Path) -> None:
    """Remove what processes of this machine that are gone left unfinished."""
    for path in folder.glob(".*.tmp"):
        host, pid = path.name.split(".")[-4:-2]
        with suppress(ValueError, OSError):
            if host == socket.gethostname().rpartition(".")[2] and not _alive(int(pid)):
                path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
