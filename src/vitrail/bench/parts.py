"""Parts: the result files of single chunks, written atomically, and the rows in them."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import OutputError, require
from vitrail.scores.statistics import Array

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


@dataclass(frozen=True)
class _RowBlock:
    """Rows that agree in method, target, protocol and score, or are alone.

    Attributes:
        images: Ids of the images.
        keys: Method, target, protocol and score.
        values: One value per image, shape (n,), or None in rows with an error.
        explained: Class of each image, shape (n,).
        error: Reason why there is no score, if so.
        costs: Values of some of the columns ``COSTS``: one for all images, or shape (n,).
        curves: Numbers of removed pixels, and the outputs at each of L levels, shape (n, L, 5).
    """

    images: Sequence[str]
    keys: Sequence[str]
    values: Array | None
    explained: Sequence[int] | NDArray[np.int64]
    error: str | None = None
    costs: Mapping[str, float | Array] = field(default_factory=dict)
    curves: tuple[tuple[int, ...], NDArray[np.float32]] | None = None


class ScoreRows:
    """The rows of one part. They are collected by column, a block of rows at a time."""

    def __init__(self, model: str, dataset: str, methods: Sequence[str]) -> None:
        self.model, self.dataset, self.methods = model, dataset, methods
        self.blocks: list[_RowBlock] = []

    @property
    def columns(self) -> dict[str, Any]:
        """Arrow arrays by column name; see `vitrail.bench.results_store`."""
        pa = require_pyarrow()
        blocks = self.blocks
        counts = np.array([len(block.images) for block in blocks], np.int64)
        total = int(counts.sum())

        def strings(each: Sequence[str | None]) -> Any:
            """One string for each block, repeated for its rows."""
            names = list(dict.fromkeys(each))
            code = {name: i for i, name in enumerate(names)}
            codes = np.repeat(np.array([code[name] for name in each], np.int32), counts)
            return pa.array(names, pa.string()).take(pa.array(codes))

        def numbers(name: str, missing: float | None) -> Any:
            """A column of ``COSTS``; where a block has none, ``missing``, and NaN is null where that is None."""
            given = [block.costs.get(name, np.nan if missing is None else missing) for block in blocks]
            values = np.concatenate(
                [np.broadcast_to(v, (n,)) for v, n in zip(given, counts, strict=True)] or [np.zeros(0)]
            )
            mask = np.isnan(values) if missing is None else None
            return pa.array(values.astype(np.float64), pa.float64(), mask=mask)

        empty = np.repeat(np.array([block.values is None for block in blocks], bool), counts)
        values = [np.zeros(len(b.images)) if b.values is None else b.values for b in blocks]
        columns = {
            "model": strings([self.model] * len(blocks)),
            "dataset": strings([self.dataset] * len(blocks)),
            "image": pa.array([name for block in blocks for name in block.images], pa.string()),
            **{name: strings([block.keys[i] for block in blocks]) for i, name in enumerate(KEYS[3:])},
            "value": pa.array(np.concatenate([*values, np.zeros(0)]), pa.float64(), mask=empty),
            "explained": pa.array(np.concatenate([*(b.explained for b in blocks), []]).astype(np.int32)),
            "error": strings([block.error for block in blocks]),
            "seconds": numbers("seconds", 0.0), "forwards": numbers("forwards", 0.0), "memory": numbers("memory", None),
        }  # fmt: skip
        return columns | _curve_columns(blocks, total)

    def add_scores(self, batch: ScoreBatch | TextBatch, scores: ProtocolScores) -> None:
        """Add the scores of a protocol, one row for each image and score."""
        has_target = scores.target in batch.columns
        explained = np.array(batch.target_classes(scores.target) if has_target else [-1] * len(batch.ids))
        cost: dict[str, float | Array] = {"seconds": scores.seconds, "forwards": scores.forwards}
        keys = (scores.method, scores.target, scores.protocol)
        for row, reason in scores.reasons.items():
            self.blocks.append(_RowBlock([batch.ids[row]], (*keys, ""), None, explained[row : row + 1], reason, cost))
        scored = np.array([row not in scores.reasons for row in range(len(batch.ids))])
        for name, tensor in scores.values.items():
            wide = tensor.detach().double().cpu().numpy()
            names = [name] if wide.ndim == 1 else [f"{name}/{j}" for j in range(wide.shape[1])]
            for own_name, column in zip(names, wide.reshape(len(wide), -1).T, strict=True):
                rows = (scored & ~np.isnan(column) if scores.sparse else scored).nonzero()[0]
                curves = None
                if own_name in scores.curves:
                    removed, outputs = scores.curves[own_name]
                    curves = removed, outputs.float().cpu().numpy()[rows]
                ids = batch.ids if len(rows) == len(batch.ids) else [batch.ids[row] for row in rows]
                own_keys = (*keys, own_name)
                self.blocks.append(_RowBlock(ids, own_keys, column[rows], explained[rows], None, cost, curves))

    def add_explanations(self, batch: ScoreBatch | TextBatch, probabilities: Tensor, targets: Sequence[str]) -> None:
        """Add rows about the maps themselves: the probability of the explained class, and the cost of the map."""
        probability = probabilities.double().cpu().numpy()
        constant = {
            method: explained_batch.constant.double().cpu().numpy()
            for method, explained_batch in batch.explanations.items()
        }
        for target in targets:
            explained, columns = np.array(batch.target_classes(target)), batch.target_columns(target).numpy()
            for method in self.methods:
                missing, keys = batch.missing_maps(method, target), (method, target, EXPLAIN)
                if method not in batch.explanations:
                    missing = {row: missing.get(row, "no map") for row in range(len(batch.ids))}
                for row, reason in missing.items():
                    block = _RowBlock([batch.ids[row]], (*keys, ""), None, explained[row : row + 1], reason)
                    self.blocks.append(block)
                if method not in batch.explanations:
                    continue
                rows = np.array([row for row in range(len(batch.ids)) if row not in missing], int)
                ids, labels, one = [batch.ids[row] for row in rows], explained[rows], batch.explanations[method]
                cost: dict[str, float | Array] = {
                    name: np.array(getattr(one, name), float)[rows] for name in ("seconds", "forwards", "memory")
                }
                for score, values in (
                    ("probability", probability[rows, labels]),
                    ("flat", constant[method][rows, columns[rows]]),
                ):
                    self.blocks.append(_RowBlock(ids, (*keys, score), values, labels, None, cost))

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
                        self.blocks.append(_RowBlock([image], (method, target, name, ""), None, [-1], reason))


def _curve_columns(blocks: Sequence[_RowBlock], total: int) -> dict[str, Any]:
    """Return the columns of the perturbation curves, null in the rows that have none."""
    pa = require_pyarrow()
    lengths, missing = np.zeros(total, np.int64), np.ones(total, bool)
    removed, outputs, start = [np.zeros(0, np.int32)], [np.zeros((0, 5), np.float32)], 0
    for block in blocks:
        stop = start + len(block.images)
        if block.curves is not None:
            counts, curve_outputs = block.curves
            lengths[start:stop], missing[start:stop] = len(counts), False
            removed.append(np.tile(np.array(counts, np.int32), len(curve_outputs)))
            outputs.append(curve_outputs.reshape(-1, 5))
        start = stop
    offsets = pa.array(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
    joined, mask = np.concatenate(outputs), pa.array(missing)
    values = [
        np.concatenate(removed),
        joined[:, 0],
        joined[:, 1],
        joined[:, 2].astype(np.int32),
        joined[:, 3],
        joined[:, 4],
    ]
    return {
        name: pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(column)), mask=mask)
        for name, column in zip(CURVES, values, strict=True)
    }


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
    """Write columns, by name, as a parquet file with a footer; the schema is `part_schema` by default.

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
    """Return an error that states why a file could not be written and what to do."""
    reason = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the quota is used up: free some space",
        errno.EACCES: "permission denied: choose another folder with --out",
        errno.EPERM: "permission denied: choose another folder with --out",
        errno.EROFS: "the disk is read-only: choose another folder with --out",
    }.get(error.errno or 0, f"{error.strerror or error}")
    failure = OutputError(f"cannot write {path}: {reason}. Parts written before are complete; run it again to resume")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        failure.exit_status = 1
    return failure


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
