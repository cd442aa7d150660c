"""Parts: the result files of single chunks, written atomically, and the rows in them."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from vitrail.errors import OutputError, require

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.bench.batch import ProtocolScores, ScoreBatch, TextBatch

#: Columns that identify a row; no two rows of a run agree in all of them.
KEYS = ("model", "dataset", "image", "method", "target", "protocol", "score")
#: Columns that depend on the machine, left out of tables that must be identical.
COSTS = ("seconds", "forwards", "memory")
#: Columns of a perturbation curve: the model's outputs at each level.
CURVES = ("removed", "logp_predicted", "logp_label", "winner", "logp_first", "logp_second")
#: Value of the column ``protocol`` in rows about the map itself.
EXPLAIN = "explain"
#: Metadata key of the footer.
FOOTER_KEY = b"vitrail"


# -- rows --------------------------------------------------------------------------------------------------------------


class ScoreRows:
    """The rows of one part.

    Args:
        model: Name of the model.
        dataset: Name of the data set.
        methods: Methods of the chunk.

    Attributes:
        columns: Values by column name; see `vitrail.bench.results_store`.
    """

    def __init__(self, model: str, dataset: str, methods: Sequence[str]) -> None:
        self.model, self.dataset, self.methods = model, dataset, methods
        names = (*KEYS, "value", "explained", "error", *COSTS, *CURVES)
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(
        self,
        keys: Sequence[str],
        value: float | None,
        explained: int,
        error: str | None = None,
        rest: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one row; the keys are image, method, target, protocol and score."""
        row: dict[str, Any] = dict(zip(KEYS, (self.model, self.dataset, *keys), strict=True))
        row |= {"value": value, "explained": explained, "error": error, **(rest or {})}
        for name, column in self.columns.items():
            column.append(row.get(name, 0.0 if name in COSTS[:2] else None))

    def add_scores(self, batch: ScoreBatch | TextBatch, scores: ProtocolScores) -> None:
        """Add the scores of a protocol, one row for each image and score."""
        has_target = scores.target in batch.columns
        explained = batch.target_classes(scores.target) if has_target else [-1] * len(batch.ids)
        values: dict[str, list[float]] = {}
        for name, tensor in scores.values.items():
            wide = tensor.detach().double().cpu()
            if wide.dim() == 1:
                values[name] = wide.tolist()
            else:
                values |= {f"{name}/{j}": column.tolist() for j, column in enumerate(wide.T)}
        cost = {"seconds": scores.seconds, "forwards": scores.forwards}
        for row, image in enumerate(batch.ids):
            keys = (image, scores.method, scores.target, scores.protocol)
            if row in scores.reasons:
                self.add((*keys, ""), None, explained[row], scores.reasons[row], cost)
                continue
            for name, column in values.items():
                if scores.sparse and isnan(column[row]):
                    continue
                curve = _curve_columns(*scores.curves[name], row) if name in scores.curves else {}
                self.add((*keys, name), column[row], explained[row], None, cost | curve)

    def add_explanations(self, batch: ScoreBatch | TextBatch, probabilities: Tensor, targets: Sequence[str]) -> None:
        """Add rows about the maps themselves: the probability of the explained class, and the cost of the map."""
        for method in self.methods:
            for target in targets:
                missing = batch.missing_maps(method, target)
                for row, (image, label) in enumerate(zip(batch.ids, batch.target_classes(target), strict=True)):
                    keys = (image, method, target, EXPLAIN)
                    if row in missing or method not in batch.explanations:
                        self.add((*keys, ""), None, label, missing.get(row, "no map"))
                        continue
                    own, k = batch.explanations[method], batch.columns[target][row]
                    memory = None if isnan(own.memory[row]) else own.memory[row]
                    cost = {"seconds": own.seconds[row], "forwards": own.forwards[row], "memory": memory}
                    self.add((*keys, "probability"), float(probabilities[row, label]), label, None, cost)
                    self.add((*keys, "flat"), float(own.flat[row, k]), label, None, cost)

    def add_failure(
        self, image: str, protocols: Sequence[str], targets: Sequence[str], reason: str, methods: Sequence[str] = ()
    ) -> None:
        """Add rows with the reason why an image has no scores; of all methods unless some are given."""
        from vitrail.bench.protocols import PROTOCOLS
        from vitrail.scores.presets import find_presets

        for method in methods or self.methods:
            for name in protocols:
                explains = targets if name in (*PROTOCOLS, EXPLAIN) else find_presets(name)[0].explains
                for target in targets:
                    if target in explains:
                        self.add((image, method, target, name, ""), None, -1, reason)


def _curve_columns(removed: tuple[int, ...], outputs: Tensor, row: int) -> dict[str, Any]:
    """Return the columns of one image's perturbation curve."""
    lists = outputs[row].T.tolist()
    columns: dict[str, Any] = dict(zip(CURVES, ([*removed], *lists), strict=True))
    columns["winner"] = [int(label) for label in lists[2]]
    return columns


# -- files -------------------------------------------------------------------------------------------------------------


def require_pyarrow() -> Any:
    """Import pyarrow, which reads and writes parquet files."""
    return require("pyarrow", "bench", "write tables")


def part_schema() -> Any:
    """Return the schema of a part; see `vitrail.bench.results_store` for the meaning of its columns."""
    pa = require_pyarrow()
    list_types = {"removed": pa.int32(), "winner": pa.int32()}
    return pa.schema(
        [
            *((name, pa.string()) for name in KEYS),
            ("value", pa.float64()),
            ("explained", pa.int32()),
            ("error", pa.string()),
            *((name, pa.float64()) for name in COSTS),
            *((name, pa.list_(list_types.get(name, pa.float32()))) for name in CURVES),
        ]
    )


def write_table(
    path: Path, columns: Mapping[str, Sequence[Any]], footer: Mapping[str, Any], schema: Any = None
) -> Path:
    """Write columns as a parquet file with a footer.

    Args:
        path: Final name of the file.
        columns: Values by column name.
        footer: What the file belongs to.
        schema: Schema of the file. Default: `part_schema`.

    Raises:
        OutputError: The disk is full or not writable. Files written before are complete.
    """
    pa, pq = require_pyarrow(), require("pyarrow.parquet", "bench", "write tables")
    schema = schema or part_schema()
    table = pa.table({name: columns[name] for name in schema.names}, schema)
    table = table.replace_schema_metadata({FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()})
    return write_file(path, lambda file: pq.write_table(table, file, compression="zstd"))


def read_footer(path: Path) -> dict[str, Any] | None:
    """Read the footer of a part; None if the file is missing, damaged or not a part."""
    pq = require("pyarrow.parquet", "bench", "read tables")
    try:
        metadata = pq.read_schema(path).metadata or {}
        footer: dict[str, Any] = json.loads(metadata[FOOTER_KEY])
    except (OSError, KeyError, ValueError):  # pyarrow's errors are among these
        return None
    return footer


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write a file atomically: under a temporary name, flushed to disk, then renamed.

    Args:
        path: Final name.
        write: Writes the content to an open file.

    Raises:
        OutputError: As for `write_table`.
    """
    unfinished = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - a single call that tests can make fail
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(error, path) from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return path


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a finished part survives a power failure."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network drives do not support it
            raise
    finally:
        os.close(handle)


def write_error(error: OSError, path: Path) -> OutputError:
    """Return an error that says why a file could not be written and what to do."""
    reason = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the quota is used up: free some space",
        errno.EACCES: "permission denied: choose another folder with --out",
        errno.EPERM: "permission denied: choose another folder with --out",
        errno.EROFS: "the disk is read-only: choose another folder with --out",
    }.get(error.errno or 0, f"{error.strerror or error}")
    return OutputError(f"cannot write {path}: {reason}. Parts written before are complete; run it again to resume")


def remove_stale_files(folder: Path) -> None:
    """Remove unfinished files of processes of this machine that no longer run."""
    for path in folder.glob(".*.tmp"):
        host, pid = path.name.split(".")[-4:-2]
        with suppress(ValueError, OSError):
            if host == socket.gethostname().rpartition(".")[2] and not _is_running(int(pid)):
                path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
