"""Values of each image of collected runs in one small file: a row for each score, method and image.

The value of the label's map is empty where it equals the one of the predicted class's map: the classes are the same, or
the method is class-agnostic.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

KEYS = ("dataset", "protocol", "score", "method", "image")


def store_values(rows: pl.DataFrame, path: Path) -> None:
    """Write the rows of runs, with columns ``KEYS``, target and value."""
    rows = rows.filter(pl.col("protocol") != "explain").select(*KEYS, "target", pl.col("value").cast(pl.Float32))
    one, other = (rows.filter(pl.col("target") == name).drop("target") for name in ("predicted", "label"))
    wide = one.rename({"value": "predicted"}).join(other.rename({"value": "label"}), on=KEYS, how="left").sort(KEYS)
    same = pl.col("label").eq_missing(pl.col("predicted"))
    wide = wide.with_columns(pl.when(~same).then(pl.col("label")).alias("label"))
    encodings = dict.fromkeys(("predicted", "label"), "BYTE_STREAM_SPLIT")
    pq.write_table(wide.to_arrow(), path, compression="zstd", compression_level=19, use_dictionary=list(KEYS),
                   column_encoding=encodings)  # fmt: skip


def read_values(path: Path) -> pl.DataFrame:
    """The rows that `store_values` wrote, in single precision."""
    wide = pl.read_parquet(path).with_columns(label=pl.coalesce("label", "predicted"))
    rows = wide.unpivot(["predicted", "label"], index=KEYS, variable_name="target", value_name="value")
    return rows.with_columns(error=pl.lit(None, pl.String))
