"""The table of a run: read from its folder, failures counted, scores of a method collected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vitrail.errors import DataError, require
from vitrail.scores.statistics import SampleScores

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T", bound=SampleScores)


def read_results(folder: str | Path) -> pl.DataFrame:
    """Read the results of a finished run, without loading its models or data.

    Args:
        folder: Folder of the run.

    Returns:
        The table `ResultsStore.merge` returns, without the cost columns.

    Raises:
        DataError: The folder has no results.
    """
    require("polars", "bench", "read tables")
    import polars as pl

    path = Path(folder) / "results.parquet"
    if not path.is_file():
        raise DataError(f"{path} does not exist: run the plan to its end first")
    return pl.read_parquet(path)


def count_failures(table: pl.DataFrame) -> pl.DataFrame:
    """Count the rows of each error by model and method, the most frequent first."""
    import polars as pl

    counts = table.filter(pl.col("error").is_not_null()).group_by("model", "method", "error").len("rows")
    return counts.sort(["rows", "model", "method", "error"], descending=[True, False, False, False])


def count_failed_images(table: pl.DataFrame) -> tuple[int, int]:
    """Count the images of which no method has a result, such as unreadable ones, and all images."""
    import polars as pl

    rows = table.filter(pl.col("image") != "").group_by("dataset", "image").agg(pl.col("error").is_null().any())
    return int((~rows["error"]).sum()), len(rows)


def collect_scores(table: pl.DataFrame, kind: type[T] = SampleScores, **where: str) -> T:  # type: ignore[assignment]
    """Collect the rows of one method, target and protocol in the accumulator that summarises them.

    Args:
        table: Result of `read_results` or `ResultsStore.merge`.
        kind: Accumulator of the protocol, such as `SegmentationScores`.
        **where: Values of columns: model, dataset, method, target, protocol.
    """
    import polars as pl

    rows = table.filter(pl.col("error").is_null(), *(pl.col(name) == value for name, value in where.items()))
    names: list[str] = rows["score"].unique(maintain_order=True).to_list()
    names.sort(key=lambda name: (name.partition("/")[0], int(name.partition("/")[2] or 0)))
    wide = rows.pivot("score", index="image", values="value").sort("image")
    values = wide.select(names).to_numpy().astype(np.float64)
    return kind(tuple(names), dict(zip(wide["image"].to_list(), values, strict=True)))
