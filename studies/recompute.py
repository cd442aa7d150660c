"""Recompute the published means and intervals from the values of each example, and compare.

    python studies/recompute.py                   # all tables
    python studies/recompute.py pairs --show      # the numbers of one of them

Values are kept in single precision, so that numbers agree to about 10⁻⁵. A table that differs is named, and the command
ends with exit code 1. Tables of ``results/`` are recomputed by their own scripts there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import card_values
import gradtoken_readings
import numpy as np
import overdetermination
import pairs
import plan_values
import shapley_references
import srg_rows
import vitcx_combinations
from masked_images import model_values_path
from study import RESULTS, read_csv, read_json
from value_tables import read_values, values_path

#: What a row is, its published numbers, and the same from the values of each example.
Row = tuple[str, list[float], list[float] | None]
TOLERANCE = 2e-5


def class_discrimination() -> Iterator[Row]:
    """Class-discrimination accuracy and relevance mass on scenes."""
    for name in ("pairs-scenes", "pairs-gradtoken"):
        path = RESULTS / f"{name}.json"
        for result in read_json(path, None)["results"]:
            rows = pairs.summarise(read_values(values_path(path, result["model"])))
            for method, published in result["methods"].items():
                for score in pairs.SCORES:
                    yield f"{name} {method} {score}", published[score], rows[method][score]


def paper_tables() -> Iterator[Row]:
    """Scores of the plans beside the papers' tables."""
    path = RESULTS / "paper-tables.json"
    for plan, published in read_json(path, None)["rows"].items():
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


def ablations() -> Iterator[Row]:
    """Segmentation by the ablations of VTranM and GradToken."""
    path = RESULTS / "ablations-pets.json"
    content = read_json(path, None)
    model = content["manifest"]["model"]
    found = plan_values.by_method(plan_values.stored_rows(plan_values.plan_values_path(path, "", model), model))
    for method, row in content["rows"].items():
        for score, published in row.items():
            own = found.get(method, {}).get(score)
            numbers = [one if isinstance(one, list) else [one] for one in (published, own) if one is not None]
            yield f"{method} {score}", numbers[0], numbers[1] if len(numbers) > 1 else None


def gradtoken() -> Iterator[Row]:
    """Segmentation and class discrimination of GradToken in two readings."""
    path = RESULTS / "gradtoken-readings-h200.json"
    for result in read_json(path, None)["results"]:
        file = model_values_path(path, result["model"])
        found = gradtoken_readings.summarise(read_values(file) if file.is_file() else {})
        for table in ("segmentation", "pairs"):
            for method, published in result.get(table, {}).items():
                own = found.get(table, {}).get(method)
                numbers = None if own is None else [own[name] for name in published]
                yield f"{result['model']} {table} {method}", list(published.values()), numbers


def vitcx() -> Iterator[Row]:
    """ViT-CX in combinations of its paper and its program."""
    path = RESULTS / "vitcx-combinations-h200.json"
    for result in read_json(path, None)["results"]:
        file = model_values_path(path, result["model"])
        found = vitcx_combinations.summarise(read_values(file) if file.is_file() else {})
        for published in result["combinations"]:
            names = published.keys() - {"spec", "name"}
            rows = [{n: row[n] for n in sorted(names)} for row in (published, found.get(published["spec"])) if row]
            yield (f"{result['model']} {published['spec']}", *both_flat(rows))


def shapley() -> Iterator[Row]:
    """SRG of Shapley values by number of forward passes, and differences from the best other method."""
    path = RESULTS / "shapley.csv"
    published = read_csv(path)
    values = {model: srg_rows.read_forms(path, model) for model in dict.fromkeys(row["model"] for row in published)}
    rows = {tuple(str(row[name]) for name in srg_rows.FIELDS[:5]): row for row in srg_rows.summarise(values)}
    for row in published:
        key = tuple(row[name] for name in srg_rows.FIELDS[:5])
        both = [{name: float(one[name]) for name in srg_rows.FIELDS[5:]} for one in (row, rows.get(key)) if one]
        yield (" ".join(key), *both_flat(both))
    tests = {(one["model"], *one["form"]): one for one in srg_rows.compare(values)}
    for one in read_json(path.with_suffix(".json"), None)["comparison"]:
        key = one["model"], *one["form"]
        both = [{name: row[name] for name in ("value", "low", "high", "p")} for row in (one, tests.get(key)) if row]
        yield (f"comparison {' '.join(map(str, key))}", *both_flat(both))


def overdetermined() -> Iterator[Row]:
    """Causal overdetermination of images of ImageNet."""
    path = RESULTS / "overdetermination.json"
    for model, published in read_json(path, None)["rows"].items():
        file = values_path(path, model)
        found = overdetermination.summarise(read_values(file) if file.is_file() else {})
        for method, row in published.items():
            both = [{name: one[name] for name in row} for one in (row, found.get(method)) if one]
            yield (f"{model} {method}", *both_flat(both))


def cards() -> Iterator[Row]:
    """Similarities and errors of the cards of the methods, and class discrimination that other results do not have."""
    path = RESULTS / "cards.json"
    content = read_json(path, None)
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


def vit_shapley() -> Iterator[Row]:
    """Agreement with sampled Shapley values of trained explainers and other methods, and divergences of surrogates."""
    for path in sorted(RESULTS.glob("vit_shapley-*.json")):
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


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    "pairs": class_discrimination, "paper-tables": paper_tables, "ablations": ablations, "gradtoken": gradtoken,
    "vitcx": vitcx, "shapley": shapley, "overdetermination": overdetermined,
    "cards": cards, "vit_shapley": vit_shapley,
}  # fmt: skip


def is_same(published: list[float], recomputed: list[float]) -> bool:
    """Whether two rows of numbers agree up to the precision of the values."""
    return len(published) == len(recomputed) and np.allclose(published, recomputed, atol=TOLERANCE, rtol=TOLERANCE)


def main() -> None:
    """Compare the tables that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--show", action="store_true", help="print every row")
    args = parser.parse_args()
    failed = False
    for name in args.tables or TABLES:
        rows = list(TABLES[name]())
        differ = [row for row in rows if not is_same(*row[1:])]
        print(f"{name}: {len(rows)} rows, {len(differ)} differ")
        for what, published, recomputed in rows if args.show else differ:
            print(f"  {what}: {published} published, {recomputed} recomputed")
        failed = failed or bool(differ) or not rows
    sys.exit(failed)


if __name__ == "__main__":
    main()
