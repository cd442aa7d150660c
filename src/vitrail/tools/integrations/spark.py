"""Relevance maps in a Spark job, with ``mapInPandas``. Neither pyspark nor pandas is imported.

::

    from vitrail.integrations import SPARK_COLUMNS, spark_explainer

    images = spark.read.format("binaryFile").load("s3a://bucket/photos").selectExpr("path", "content AS image")
    explain = spark_explainer("vit-b16", ["gradtoken", "vtranm"])
    images.select("path", "image").mapInPandas(explain, f"path string, {SPARK_COLUMNS}").write.parquet("s3a://bucket/maps")

Spark sends batches of ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows, 10,000 by default: set it to some hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vitrail.pipeline.column_explainer import Explainer
from vitrail.pipeline.explain import DEFAULT

__all__ = ["SPARK_COLUMNS", "spark_explainer"]

#: Schema of the added columns, to be appended to that of the columns that are kept.
SPARK_COLUMNS = (
    "maps binary, targets array<bigint>, names array<string>, probabilities array<double>, checks string, errors string"
)


def spark_explainer(
    model: str, methods: Sequence[str] = (DEFAULT,), target: Any = None, **options: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for ``DataFrame.mapInPandas``, which loads the model once for each partition.

    Args:
        model: A name that `vitrail.load` takes.
        methods: Method specs.
        target: As `vitrail.explain` takes it, the same for all images.
        **options: Further options of `vitrail.ray.Explainer`, such as ``column``.
    """

    def explain_partition(frames: Iterator[Any]) -> Iterator[Any]:
        explainer: Explainer | None = None
        for frame in frames:
            explainer = explainer or Explainer(model, methods, target, **options)
            columns = explainer({name: frame[name].to_list() for name in frame.columns})
            yield type(frame)({name: list(values) for name, values in columns.items()})

    return explain_partition
