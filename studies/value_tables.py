"""Means of values with intervals, and files of them, to which later runs of other scores or methods are added."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from model_halves import OBJECT, Values
from study import save_json

from vitrail.scores import difference, interval, mean_ratio

#: What a row of a table is, its published numbers, and the same from the values of each example; None without values.
RecomputedRow = tuple[str, list[float], list[float] | None]


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
    """Settings of several runs: the larger of two numbers of images, all methods and presets.

    Runs on another device or with other versions are listed apart.
    """

    def joined(name: str, new: Any) -> Any:
        old = before.get(name)
        if isinstance(new, list | tuple) and old is not None:
            return list(dict.fromkeys([*old, *new]))
        return max(old, new) if isinstance(new, int) and isinstance(old, int) else new

    if any(before[name] != settings[name] for name in ("device", "versions") if name in before):
        return {**before, "elsewhere": [*before.get("elsewhere", []), settings]}
    manifest = {name: joined(name, new) for name, new in settings.items()}
    return {**manifest, "elsewhere": before["elsewhere"]} if "elsewhere" in before else manifest


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


def stored_values(result: Path, model: str) -> Values:
    """Values of each example beside the file of a result; none where they were not kept."""
    path = values_path(result, model)
    return read_values(path) if path.is_file() else {}


def in_single_precision(values: Values) -> Values:
    """Values as files keep them, so that what is computed from them is computed again from a file without a change."""
    return {
        score: {method: [float(v) for v in np.array(own, np.float32)] for method, own in by_method.items()}
        for score, by_method in values.items()
    }


def write_values(path: Path, values: Values) -> None:
    """Write the values of each example, in the order of the examples, in place of a file that exists."""
    columns: dict[str, list[Any]] = {"score": [], "method": [], "number": [], "value": []}
    for score, by_method in values.items():
        for method, own in by_method.items():
            columns["score"] += [score] * len(own)
            columns["method"] += [method] * len(own)
            columns["number"] += range(len(own))
            columns["value"] += [np.float32(v) for v in own]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd")


def joined_values(kept: Values, new: Values) -> Values:
    """Values of two runs; the new ones replace those of the same score and method."""
    return {score: {**kept.get(score, {}), **new.get(score, {})} for score in {**kept, **new}}


def save_values(path: Path, values: Values) -> None:
    """Write the values of each example, in the order of the examples; keep those of other scores and methods."""
    write_values(path, joined_values(read_values(path) if path.exists() else {}, values))


def refuse_other_examples(
    what: str, before: object, now: object, methods: Iterable[str], measured: Iterable[str]
) -> None:
    """End where a run on other examples would remove rows of methods that it does not measure.

    Args:
        what: The rows, for the message.
        before: Examples of the rows that exist, or their number.
        now: The same for the run.
        methods: Methods that have rows.
        measured: Methods of the run.
    """
    lost = sorted(set(methods) - set(measured))
    if lost and before != now:
        raise SystemExit(
            f"{what} has rows on {before} examples, the run has {now}, and {', '.join(lost)} would be lost: "
            "measure the same number of examples, or these methods too, or give another --out"
        )


def save_result(path: Path, result: dict[str, Any], values: Values) -> dict[str, Any]:
    """Write a result and its values; those of other parts or methods that are there already stay. Returns both."""
    file = path.with_suffix(".parquet")
    save_values(file, values)
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        settings = joined_manifest(before["manifest"], result["manifest"])
        if settings.get("elsewhere", [None])[-1] == result["manifest"]:  # times on two devices are not one table
            result = {key: own for key, own in result.items() if key != "milliseconds"}
        # Rows by method, such as mIoU and checks; those of other methods stay.
        by_method = {key: {**before.get(key, {}), **own} for key, own in result.items() if isinstance(own, dict)}
        # A row has its difference to another method, which the further run need not have measured.
        found = summarise({score: own for score, own in read_values(file).items() if score in result["scores"]})
        scores = before["scores"] | {
            score: before["scores"].get(score, {}) | {method: rows[method] for method in result["scores"][score]}
            for score, rows in found.items()
        }
        result = {**before, **result, **by_method, "scores": scores, "manifest": settings}
    save_json(path, result)
    return result


def join(source: Path, target: Path) -> None:
    """Add the results of a folder to those of another."""
    for path in sorted(source.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        save_result(target / path.name, result, read_values(path.with_suffix(".parquet")))
