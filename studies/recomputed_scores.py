"""Published scores of images beside the same from the values of each image; see recompute.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import card_values
import gradtoken_readings
import overdetermination
import pairs
import plan_values
import shapley_references
import srg_rows
import vitcx_combinations
from masked_images import model_values_path
from study import read_csv, read_json
from value_tables import RecomputedRow, read_values, values_path


def paper_tables(folder: Path) -> Iterator[RecomputedRow]:
    """Scores of the plans beside the papers' tables."""
    path = folder / "paper-tables.json"
    for plan, published in read_json(path, {"rows": {}})["rows"].items():
        models = dict.fromkeys(row["model"] for row in published if "model" in row)
        found = {
            (row["model"], *(row[name] for name in plan_values.NAMES)): row
            for model in models
            for row in plan_values.stored_rows(plan_values.plan_values_path(path, plan, model), model)
        }
        for row in published:
            key = row.get("model", ""), *(row[name] for name in plan_values.NAMES)
            numbers = [[one[n] for n in ("images", "value", "low", "high")] for one in (row, found.get(key)) if one]
            yield f"{plan} {' '.join(key)}", numbers[0], numbers[1] if len(numbers) > 1 else None


def ablations(folder: Path) -> Iterator[RecomputedRow]:
    """Segmentation by the ablations of VTranM and GradToken."""
    path = folder / "ablations-pets.json"
    content = read_json(path, {"rows": {}, "manifest": {"model": ""}})
    model = content["manifest"]["model"]
    found = plan_values.by_method(plan_values.stored_rows(plan_values.plan_values_path(path, "", model), model))
    for method, row in content["rows"].items():
        for score, published in row.items():
            own = found.get(method, {}).get(score)
            numbers = [one if isinstance(one, list) else [one] for one in (published, own) if one is not None]
            yield f"{method} {score}", numbers[0], numbers[1] if len(numbers) > 1 else None


def gradtoken(folder: Path) -> Iterator[RecomputedRow]:
    """Segmentation and class discrimination of GradToken in two readings."""
    path = folder / "gradtoken-readings.json"
    for result in read_json(path, {"results": []})["results"]:
        file = model_values_path(path, result["model"])
        found = gradtoken_readings.summarise(read_values(file) if file.is_file() else {})
        for table in ("segmentation", "pairs"):
            for method, published in result.get(table, {}).items():
                own = found.get(table, {}).get(method)
                numbers = None if own is None else [own[name] for name in published]
                yield f"{result['model']} {table} {method}", list(published.values()), numbers


def vitcx(folder: Path) -> Iterator[RecomputedRow]:
    """ViT-CX in combinations of its paper and its program."""
    path = folder / "vitcx-combinations-h200.json"
    for result in read_json(path, {"results": []})["results"]:
        file = model_values_path(path, result["model"])
        found = vitcx_combinations.summarise(read_values(file) if file.is_file() else {})
        for published in result["combinations"]:
            names = published.keys() - {"spec", "name"}
            rows = [{n: row[n] for n in sorted(names)} for row in (published, found.get(published["spec"])) if row]
            yield (f"{result['model']} {published['spec']}", *both_flat(rows))


def shapley(folder: Path) -> Iterator[RecomputedRow]:
    """SRG of Shapley values by number of forward passes, and differences from the best other method."""
    path = folder / "shapley.csv"
    published = read_csv(path) if path.is_file() else []
    values = {model: srg_rows.read_forms(path, model) for model in dict.fromkeys(row["model"] for row in published)}
    rows = {tuple(str(row[name]) for name in srg_rows.FIELDS[:5]): row for row in srg_rows.summarise(values)}
    for row in published:
        key = tuple(row[name] for name in srg_rows.FIELDS[:5])
        both = [{name: float(one[name]) for name in srg_rows.FIELDS[5:]} for one in (row, rows.get(key)) if one]
        yield (" ".join(key), *both_flat(both))
    tests = {(one["model"], *one["form"]): one for one in srg_rows.compare(values)}
    for one in read_json(path.with_suffix(".json"), {"comparison": []})["comparison"]:
        key = one["model"], *one["form"]
        both = [{name: row[name] for name in ("value", "low", "high", "p")} for row in (one, tests.get(key)) if row]
        yield (f"comparison {' '.join(map(str, key))}", *both_flat(both))


def overdetermined(folder: Path) -> Iterator[RecomputedRow]:
    """Causal overdetermination of images of ImageNet."""
    path = folder / "overdetermination.json"
    for model, published in read_json(path, {"rows": {}})["rows"].items():
        file = values_path(path, model)
        found = overdetermination.summarise(read_values(file) if file.is_file() else {})
        for method, row in published.items():
            both = [{name: one[name] for name in row} for one in (row, found.get(method)) if one]
            yield (f"{model} {method}", *both_flat(both))


def cards(folder: Path) -> Iterator[RecomputedRow]:
    """Similarities and errors of the cards of the methods, and class discrimination that other results do not have."""
    path = folder / "cards.json"
    content = read_json(path, {"rows": {}, "pairs": {}})
    for model, rows in content["rows"].items():
        file = values_path(path, model)
        stored = read_values(file) if file.is_file() else {}
        for method, row in rows.items():
            values = card_values.of_method(stored, method)
            found = card_values.summarise(values) if values else {}
            for test in (*card_values.SIMILARITIES, card_values.CONSTANT, card_values.COMPLETENESS):
                if row.get(test) is not None:
                    both = [{test: one[test]} for one in (row, found) if one.get(test) is not None]
                    yield (f"{model} {method} {test}", *both_flat(both))
            for spec, published in row.get("options", {}).items():
                both = [one for one in (published, found.get("options", {}).get(spec)) if one]
                yield (f"{model} {method} {spec}", *both_flat(both))
    file = values_path(path, "scenes")
    stored = read_values(file) if file.is_file() else {}
    discriminating = {score: stored.get(f"{card_values.PAIRS}{score}", {}) for score in pairs.SCORES}
    again = pairs.summarise(discriminating)
    for method, row in content["pairs"].items():
        for score in pairs.SCORES:
            yield f"pairs {method} {score}", row[score], again[method][score] if method in again else None


def vit_shapley(folder: Path) -> Iterator[RecomputedRow]:
    """Agreement with sampled Shapley values of trained explainers and other methods, and divergences of surrogates."""
    for path in sorted(folder.glob("vit_shapley-*.json")):
        published = read_json(path, None).get("evaluation")
        if published is None:  # stopped after the training
            continue
        file = path.with_suffix(".parquet")
        found = shapley_references.summarise(read_values(file)) if file.is_file() else {}
        again = dict(agreements(found)) if found else {}
        for what, row in agreements(published):
            yield (f"{path.stem} {what}", *both_flat([one for one in (row, again.get(what)) if one]))


def agreements(evaluation: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Names and numbers of an evaluation of explainers."""
    for share, row in evaluation["kl_by_visible_share"].items():
        yield f"divergence {share}", row
    for game, tables in evaluation["games"].items():
        yield f"{game} halves", tables["between_halves"]
        for table in ("methods", "by_permutations"):
            for name, row in tables[table].items():
                yield f"{game} {table} {name}", row


def both_flat(rows: list[dict[str, Any]]) -> tuple[list[float], list[float] | None]:
    """Numbers of a published row and of the recomputed one, if there is one; a number that is undefined is −1."""

    def flat(value: Any) -> list[float]:
        if isinstance(value, dict | list):
            parts = [value[key] for key in sorted(value)] if isinstance(value, dict) else value
            return [v for one in parts for v in flat(one)]
        return [-1.0 if value is None else float(value)]

    return flat(rows[0]), flat(rows[1]) if len(rows) > 1 else None
