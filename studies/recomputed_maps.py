"""Published numbers of maps, checks and prompts beside the same from the values of each example; see recompute.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_values
import needle_scores
import pairs
from study import RESULTS, ROOT, read_csv, read_json
from value_tables import RecomputedRow, stored_values

from vitrail.tools.compare import CONTROLS
from vitrail.tools.compared_rows import ranked_rows


def numbers_of(row: Any) -> list[float]:
    """All numbers of a row in their order, those of nested rows included."""
    if isinstance(row, dict | list | tuple):
        parts = row.values() if isinstance(row, dict) else row
        return [number for part in parts for number in numbers_of(part)]
    return [] if row is None else [float(row)]


def compared(what: str, published: dict[str, Any], recomputed: dict[str, Any] | None) -> RecomputedRow:
    """A row of several numbers by name; a number that only one of the two has makes them differ."""
    if recomputed is None:
        return what, numbers_of(published), None
    return what, numbers_of(published), numbers_of([recomputed.get(key) for key in published])


def class_discrimination(folder: Path) -> Iterator[RecomputedRow]:
    """Class-discrimination accuracy and relevance mass on scenes."""
    for name in ("pairs-scenes", "pairs-gradtoken"):
        path = folder / f"{name}.json"
        for result in read_json(path, {"results": []})["results"]:
            rows = pairs.summarise(stored_values(path, result["model"]))
            for method, published in result["methods"].items():
                for score in pairs.SCORES:
                    yield f"{name} {method} {score}", published[score], rows.get(method, {}).get(score)


def known_maps(what: str, published: dict[str, Any], recomputed: dict[str, Any]) -> Iterator[RecomputedRow]:
    """Areas under the ROC curve of the check's statistic, and shares of maps that pass, by kind of map."""
    for key, own in published.items():
        found = recomputed.get(key)
        if key in ("roc_auc_against", "passes"):
            for kind, number in own.items():
                yield f"{what} {key} {kind}", [number], numbers_of((found or {}).get(kind)) or None
        elif key.startswith("roc_auc") or key in ("interval", "maps"):
            yield f"{what} {key}", numbers_of(own), numbers_of(found) or None


def checks(folder: Path) -> Iterator[RecomputedRow]:
    """The check on scenes and photographs."""
    path = folder / "trust.json"
    for name, result in read_json(path, {}).items():
        values = stored_values(path, name)
        if name == "scenes":
            yield from known_maps(name, result, check_values.summarise_scenes(values) if values else {})
        elif name != "manifest":
            rows, passes = check_values.summarise_verdicts(values)
            for method, published in result["methods"].items():
                yield compared(f"{name} {method}", published, rows.get(method))
            for kind, share in result["wrong_maps_pass"].items():
                yield f"{name} {kind} passes", [share], numbers_of(passes.get(kind)) or None


def world_checks(folder: Path) -> Iterator[RecomputedRow]:
    """The check on worlds; a folder that studies/worlds.py wrote has them in another file than results/."""
    path = ROOT / "results" / "worlds-checks.json" if folder == RESULTS else folder / "checks.json"
    for task, result in read_json(path, {}).items():
        values = stored_values(path, task)
        found = check_values.summarise_known(values, check_values.WORLD_DRAWS) if values else {}
        yield from known_maps(task, result, found)


def needles(folder: Path) -> Iterator[RecomputedRow]:
    """Sources that methods find in prompts of language models."""
    path, rows = folder / "needles.csv", {}
    published = read_csv(path) if path.is_file() else []
    for model in dict.fromkeys(row["model"] for row in published):
        for row in needle_scores.rows_of(model, stored_values(path, model)):
            rows[tuple(row[key] for key in needle_scores.KEYS)] = row
    for row in published:
        key = tuple(row[name] for name in needle_scores.KEYS)
        numbers = {name: row[name] for name in ("prompts", "mean", "low", "high")}
        yield compared(" ".join(key), numbers, rows.get(key))


def comparisons(folder: Path) -> Iterator[RecomputedRow]:
    """Methods compared on two models. Tests are between methods: rows have values where all of the model have."""
    path = folder / "compare.json"
    for model, result in read_json(path, {}).items():
        if model == "manifest":
            continue
        rows, values = {row["method"]: row for row in result["rows"]}, stored_values(path, model)
        found: dict[str, Any] = {}
        if rows.keys() <= values.get("faithfulness", {}).keys():
            ranked = ranked_rows(values, CONTROLS, {method: row["forwards"] for method, row in rows.items()})
            found = {row.method: row.to_dict() for row in ranked}
        for method, row in rows.items():
            numbers = {key: own for key, own in row.items() if key not in ("method", "forwards")}
            yield compared(f"{model} {method}", numbers, found.get(method))
