"""Values of each image of runs of plans: read from a run, kept in one small file for each model, and summarised.

A file has the columns of the run without curves and costs, in single precision. Rows of a table are computed from what
is kept. A later run replaces the values of the methods that it has, for the same data set, explained class and
protocol; others stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from value_tables import values_path

if TYPE_CHECKING:
    import polars as pl

#: Columns of a file.
COLUMNS = ("model", "dataset", "image", "method", "target", "protocol", "score", "value", "explained", "error")
#: Columns of a row of a table that name it.
NAMES = ("dataset", "protocol", "target", "score", "method")
#: Plans whose values have a folder of their own, from which results/appendices.py reads them.
APPENDICES = {"vitcx_sanity": "vitcx_sanity", "vitcx_delta_sigma": "vitcx_delta_sigma", "vitcx_appendix_d": "vitcx_d"}


def plan_values_path(result: Path, plan: str, model: str) -> Path:
    """File of the values of a plan and model: NAME-PLAN-MODEL.parquet beside NAME.json, appendices in their folder.

    An empty plan stands for that of a file with a single one: NAME-MODEL.parquet.
    """
    if plan in APPENDICES:
        return result.parent / "vitcx_appendices" / f"{APPENDICES[plan]}-{model}.parquet"
    return values_path(result, f"{plan}-{model}" if plan else model)


def run_values(run: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Label of each model of a run, and its values: of ``vitrail bench`` or of run_plan.py."""
    import polars as pl

    paths = [path for name in ("results.parquet", "scores-*.parquet") for path in sorted(run.glob(name))]
    if not paths:
        raise SystemExit(f"{run} has neither results.parquet nor scores-MODEL.parquet: finish the run first")
    for path in paths:
        table = pl.read_parquet(path, columns=list(COLUMNS))
        for (model,), own in table.group_by("model", maintain_order=True):
            yield str(model).replace("/", "-").rpartition(":")[2], kept_values(own)


def kept_values(table: pl.DataFrame) -> pl.DataFrame:
    """Rows with a score, in single precision, sorted."""
    import polars as pl

    scored = table.filter(pl.col("error").is_null(), pl.col("protocol") != "explain")
    return scored.with_columns(pl.col("value").cast(pl.Float32)).sort(COLUMNS[:7])


def store_values(path: Path, new: pl.DataFrame) -> None:
    """Write values; those of other methods, protocols, explained classes and data sets that the file has stay."""
    import polars as pl
    import pyarrow.parquet as pq

    if path.exists():
        before = kept_values(pl.read_parquet(path))
        replaced = new.select("dataset", "protocol", "target", "method").unique()
        new = pl.concat([before.join(replaced, on=replaced.columns, how="anti"), new]).sort(COLUMNS[:7])
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [name for name in COLUMNS if name not in ("value", "explained", "error")]
    pq.write_table(new.to_arrow(), path, compression="zstd", compression_level=19, use_dictionary=texts,
                   column_encoding={"value": "BYTE_STREAM_SPLIT"})  # fmt: skip


def summarise(table: pl.DataFrame, model: str) -> list[dict[str, Any]]:
    """A row for each score of each method: number of images, value and 95 % interval, in the units of reports."""
    from vitrail.bench.report.metric import protocol_metrics
    from vitrail.bench.report.values import method_scores, metric_values
    from vitrail.scores import interval

    rows = []
    kinds = table.select("dataset", "protocol", "target").unique(maintain_order=True).rows()
    for dataset, protocol, target in kinds:
        scores = method_scores(table.filter(dataset=dataset, protocol=protocol, target=target), protocol)
        columns = {name for by in scores.values() for name in by.columns}
        for metric in protocol_metrics(protocol, target, sorted(columns)):
            for method, own in scores.items():
                values = metric_values(own, metric)
                if values is None:
                    continue
                found = interval(values.table, values.score)._asdict()
                rows.append({"model": model, "dataset": dataset, "protocol": protocol, "target": target,
                             "score": metric.score, "method": method, "images": len(values.ids),
                             **{name: round(v * metric.factor, 5) for name, v in found.items()}})  # fmt: skip
    return rows


def stored_rows(path: Path, model: str) -> list[dict[str, Any]]:
    """Rows of a table from a file of values; none where there is no file."""
    import polars as pl

    return summarise(kept_values(pl.read_parquet(path)), model) if path.is_file() else []


def by_method(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One row for each method: scores as shares, each with its interval."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = found.setdefault(row["method"], {})
        own[row["score"]] = row["value"] / 100
        own[f"{row['score']}_interval"] = [row["low"] / 100, row["high"] / 100]
    return found


def joined_rows(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New rows, after those before that none of them replaces; a row without a model is one of the only model."""
    replaced = {tuple(row[name] for name in ("model", *NAMES)) for row in new}
    without = {key[1:] for key in replaced}

    def stays(row: dict[str, Any]) -> bool:
        key = tuple(row[name] for name in NAMES)
        return (row["model"], *key) not in replaced if "model" in row else key not in without

    return [*(row for row in before if stays(row)), *new]
