"""Means of values with intervals, and files of them, to which later runs of other scores or methods are added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from model_halves import OBJECT, Values
from study import save_json

from vitrail.scores import difference, interval, mean_ratio


def summarise(values: Values) -> dict[str, Any]:
    """Mean and 95 % interval of every score, and the difference to leadlight:object."""
    rows: dict[str, Any] = {}
    for score, with_nan in values.items():
        tables = {method: np.array(own) for method, own in with_nan.items() if np.isfinite(own).any()}
        if not tables:
            continue
        defined = np.isfinite(list(tables.values())).all(0)  # some images have no value whatever the map
        by_method = {method: own[defined] for method, own in tables.items()}
        for method, own in by_method.items():
            table = own[:, None]
            row = {"images": len(own), "mean": [round(v, 5) for v in interval(table)]}
            if method != OBJECT and OBJECT in by_method:
                row["to_object"] = [round(v, 5) for v in difference(table, by_method[OBJECT][:, None])]
            rows.setdefault(score, {})[method] = row
    return rows


def segmented(table: np.ndarray, reference: np.ndarray | None) -> dict[str, Any]:
    """MIoU of a method with its 95 % interval, and the difference to leadlight:object."""
    row = {"images": len(table), "mean": [round(v, 5) for v in interval(table, mean_ratio)]}
    if reference is not None:
        row["to_object"] = [round(v, 5) for v in difference(table, reference, mean_ratio)]
    return row


def joined_manifest(before: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of several runs: the larger of two numbers of images, all methods and presets."""

    def joined(name: str, new: Any) -> Any:
        old = before.get(name)
        if isinstance(new, list | tuple) and old is not None:
            return list(dict.fromkeys([*old, *new]))
        return max(old, new) if isinstance(new, int) and isinstance(old, int) else new

    return {name: joined(name, new) for name, new in settings.items()}


def values_path(result: Path, model: str) -> Path:
    """File of the values of each example of a model, beside the file of a result: NAME.json, NAME-MODEL.parquet."""
    own = "" if result.stem.endswith(f"-{model}") else f"-{model}"
    return result.with_name(f"{result.stem}{own}.parquet")


def read_values(path: Path) -> Values:
    """Values of each image from a file."""
    values: Values = {}
    for row in pq.read_table(path).to_pylist():
        values.setdefault(row["score"], {}).setdefault(row["method"], []).append(row["value"])
    return values


def save_values(path: Path, values: Values) -> None:
    """Write the values of each image, in the order of the images; keep those of other scores and methods."""
    new = {(score, method): own for score, by_method in values.items() for method, own in by_method.items()}
    if path.exists():
        kept = read_values(path)
        new = {(score, method): own for score, by_method in kept.items() for method, own in by_method.items()} | new
    columns = [(score, method, i, np.float32(v)) for (score, method), own in new.items() for i, v in enumerate(own)]
    names = ("score", "method", "number", "value")
    table = pa.table({name: [row[k] for row in columns] for k, name in enumerate(names)})
    pq.write_table(table, path, compression="zstd")


def save_result(path: Path, result: dict[str, Any], values: Values) -> dict[str, Any]:
    """Write a result and its values; those of other parts or methods that are there already stay. Returns both."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        scores = {key: {**rows, **result["scores"].get(key, {})} for key, rows in before["scores"].items()}
        # Rows by method, such as mIoU and checks; those of other methods stay.
        by_method = {key: {**before.get(key, {}), **own} for key, own in result.items() if isinstance(own, dict)}
        settings = joined_manifest(before["manifest"], result["manifest"])
        result = {**before, **result, **by_method, "scores": {**result["scores"], **scores}, "manifest": settings}
    save_json(path, result)
    save_values(path.with_suffix(".parquet"), values)
    return result


def join(source: Path, target: Path) -> None:
    """Add the results of a folder to those of another."""
    for path in sorted(source.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        save_result(target / path.name, result, read_values(path.with_suffix(".parquet")))
