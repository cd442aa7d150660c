"""Values of each example of runs of ``vitrail bench``, means of them with intervals, and files of them.

A later run replaces the values of the methods it has. Values are in single precision, and means are computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

KEYS = ("model", "task", "method", "protocol", "score")
#: By the columns of ``KEYS``, a value for each example, shape (n,).
Values = dict[tuple[str, ...], np.ndarray[Any, Any]]


def run_values(folder: Path, scores: Mapping[str, Iterable[str]], model: str = "") -> Values:
    """Values of some scores by protocol in one run; undefined ones are left out.

    Args:
        folder: Folder of the run.
        scores: Scores by protocol.
        model: Name of the model, if it is not that of the run.
    """
    table = pl.read_parquet(folder / "results.parquet").filter(pl.col("error").is_null())
    found: Values = {}
    for protocol, names in scores.items():
        for score in names:
            chosen = table.filter(protocol=protocol, score=score)
            for (own, task, method), group in chosen.group_by("model", "dataset", "method", maintain_order=True):
                key = (model or str(own), str(task), str(method), protocol, score)
                found[key] = group["value"].drop_nans().to_numpy().astype(np.float32)
    return found


def mean_row(key: tuple[str, ...], values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A row of a table: number of examples, mean and 95 % interval (percentile bootstrap, 2,000 resamples)."""
    values = values.astype(np.float64)
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (2000, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    numbers = {"mean": values.mean(), "low": low, "high": high}
    return {**dict(zip(KEYS, key, strict=True)), "examples": len(values),
            **{name: round(float(number), 4) for name, number in numbers.items()}}  # fmt: skip


def read_values(path: Path) -> Values:
    """Values of a file; none where it does not exist."""
    if not path.is_file():
        return {}
    table = pl.read_parquet(path)
    groups = table.group_by(*KEYS, maintain_order=True)
    return {tuple(map(str, key)): group["value"].to_numpy() for key, group in groups}


def add_values(path: Path, new: Values) -> None:
    """Write values, in the order of the examples; those of other models, tasks and methods that the file has stay."""
    renewed = {key[:3] for key in new}
    kept = {key: own for key, own in read_values(path).items() if key[:3] not in renewed}
    parts = [
        pl.DataFrame({**{name: [part] * len(own) for name, part in zip(KEYS, key, strict=True)}, "value": own})
        for key, own in sorted((kept | new).items())
    ]
    pl.concat(parts).write_parquet(path, compression="zstd", compression_level=19)
