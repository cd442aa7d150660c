"""Collect the measurements of the methods' cards from committed results, and update the pages of the methods.

    python results/cards.py

Reads the tables of scores on three models, and cards.json, pairs-scenes.json and movies-decoder.json of
studies/results; writes src/vitrail/methods/cards.json, the card of every docs/methods/NAME.md, and the tables of
docs/methods/index.md.
Nothing in them is typed by hand.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from method_pages import renewed_index, renewed_page

from vitrail.methods.card import PHOTOGRAPH_MODELS
from vitrail.methods.registry import METHODS
from vitrail.pipeline.request import LANGUAGE_DEFAULT
from vitrail.scores.statistics import holm, mean_ratio, p_value, single_mean

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "src" / "vitrail" / "methods" / "cards.json"
PAGES = ROOT / "docs" / "methods"
#: Tables of scores on three models; a method is taken from the first that has it, which has the most images.
TABLES = tuple(f"results/three_models{name}.csv" for name in ("_single", ""))
MEASURED, PAIRS, TEXTS = (f"studies/results/{name}.json" for name in ("cards", "pairs-scenes", "movies-decoder"))
ALPHA = 0.05  # significance level of the Holm-corrected p-values, as in reports
CONTROLS = ("random", "centre", "edges")
#: Lines that compare with controls: data set and score in the tables, and whether more is better.
COMPARED = {
    "deletion": ("imagenet", "positive(black)", False),
    "insertion": ("imagenet", "negative(black)", True),
    "srg": ("imagenet", "srg(tokens)", True),
    "objects": ("pets", "miou", True),
}
#: Methods of which another form than the default was measured: fewer forward passes, or a former default.
STAND_INS = {"rise": "rise:masks=1000"}
#: Variants that are rough on purpose: they do not count as sensitivity to options.
ROUGH_VARIANTS = ("quick",)
Lines = dict[str, dict[str, dict[str, Any]]]


def similarity(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A rank correlation as a measurement; None where no map had contrast."""
    if not found or found.get("rho") is None:
        return None
    return {"value": found["rho"], "images": found["maps"]}


def model_lines(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Measurements of one method on one model that compare its maps with each other."""
    lines: dict[str, Any] = {"determinism": similarity(row.get("seed") or row.get("repeat"))}
    for key in ("noise", "label", "head", "last block", "all"):
        lines[key] = similarity(row.get(key))
    tried = {
        spec: found
        for spec, found in row.get("options", {}).items()
        if spec not in ROUGH_VARIANTS and similarity(found)
    }
    if tried:
        lowest = min(tried, key=lambda spec: float(tried[spec]["rho"]))
        lines["options"] = {**(similarity(tried[lowest]) or {}), "detail": lowest}
    if row.get("completeness"):
        found = row["completeness"]
        lines["completeness"] = {"value": found["median"], "images": found["maps"]}
    if "over_forward_backward" in row:
        lines["cost"] = {"value": round(row["over_forward_backward"], 2), "images": row["images"]}
    return {key: found for key, found in lines.items() if found is not None}


def labelled(found: dict[str, Any], form: str, name: str) -> dict[str, Any]:
    """A measurement, with the form that was measured where it is not the method's default."""
    return found if form == name else {**found, "form": form}


def table_lines(path: Path) -> dict[str, Lines]:
    """Measurements by method from a table of scores on three models."""
    wanted = {(dataset, score): (key, up) for key, (dataset, score, up) in COMPARED.items()}
    names = {STAND_INS.get(name, name): name for name in METHODS}
    lines: dict[str, Lines] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key, up = wanted.get((row["dataset"], row["score"]), (None, True))
            name = names.get(row["method"])
            if key is None or name is None:
                continue
            found: dict[str, Any] = {"value": float(row["value"]), "images": int(row["images"])}
            if row["p_to_control"] and float(row["p_to_control"]) < ALPHA:
                found["detail"] = "better" if (float(row["to_control"]) > 0) == up else "worse"
            lines.setdefault(name, {}).setdefault(key, {})[row["model"]] = labelled(found, row["method"], name)
    return lines


def merged_tables(root: Path) -> dict[str, Lines]:
    """Measurements by method from all tables, each line from the first table that has it."""
    merged: dict[str, Lines] = {}
    for path in reversed(TABLES):
        for name, lines in table_lines(root / path).items():
            merged.setdefault(name, {}).update(lines)
    return merged


def compared_lines(rows: Mapping[str, Any], key: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Measurements of some methods on one model, tested against the strongest control on the same images."""
    _, score, up = COMPARED[key]
    regions = key == "objects"

    def values(name: str) -> np.ndarray[Any, Any] | None:
        row = rows.get(name, {})
        found = row.get("regions") if regions else row.get("perturbation", {}).get(score)
        return None if found is None else np.asarray(found, dtype=np.float64)

    reduce, factor = (mean_ratio, 100.0) if regions else (single_mean, 1.0)

    def mean(table: np.ndarray[Any, Any]) -> float:
        return float(reduce(table.reshape(len(table), -1).mean(0)))

    controls = {name: table for name in CONTROLS if (table := values(name)) is not None}
    found, tests = {}, {}
    for name in names:
        own = values(name)
        if own is None:
            continue
        found[name] = {"value": round(factor * mean(own), 5), "images": len(own)}
        if name in CONTROLS or not controls:
            continue
        count = min(len(own), *map(len, controls.values()))  # images are the first of one list
        own, same = own[:count], {control: table[:count] for control, table in controls.items()}
        best = (max if up else min)(same, key=lambda control: mean(same[control]))
        tests[name] = (p_value(own, same[best], reduce), (mean(own) > mean(same[best])) == up)
    for (name, (_, better)), p in zip(
        tests.items(), holm([p for p, _ in tests.values()]) if tests else (), strict=True
    ):
        if p < ALPHA:
            found[name]["detail"] = "better" if better else "worse"
    return found


def pair_lines(measured: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Class discrimination on scenes by method, in percent."""
    result = next(result for result in measured["results"] if result["model"] == "scenes")
    found = {name: (row["wins"], result["scenes"]) for name, row in result["methods"].items()}
    found |= {name: (row["wins"], row["scenes"]) for name, row in further.items() if name not in found}
    return {
        name: {"value": round(100 * wins[0], 2), "images": scenes, "low": round(100 * wins[1], 2)}
        for name, (wins, scenes) in found.items()
        if name in METHODS
    }


def text_lines(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Comprehensiveness on Movie Reviews by method; "better" where its interval is above that of random words.

    Of the method that is the default of language models, the form is the one that is the default.
    """
    rows = {row["method"]: row for row in measured["rows"]}
    chance = rows["random"]["comprehensiveness"]["high"]
    found = {}
    for name in METHODS.keys() & rows.keys() - {"random"}:
        form = LANGUAGE_DEFAULT if LANGUAGE_DEFAULT.partition(":")[0] == name else name
        one = rows[form]["comprehensiveness"]
        found[name] = labelled({"value": round(one["mean"], 5), "images": rows[form]["reviews"]}, form, name)
        if one["low"] > chance:
            found[name]["detail"] = "better"
    return found


def collect(root: Path = ROOT) -> dict[str, Any]:
    """The measurements of all methods, as they are stored in the package."""
    table = merged_tables(root)
    measured, pairs, movies = (json.loads((root / f).read_text(encoding="utf-8")) for f in (MEASURED, PAIRS, TEXTS))
    methods: dict[str, Lines] = {name: {} for name in METHODS}
    for model, rows in measured["rows"].items():
        forms = {name if name in rows else STAND_INS.get(name, name): name for name in METHODS}
        forms = {form: name for form, name in forms.items() if form in rows}
        for form, name in forms.items():
            for key, found in model_lines(rows[form]).items():
                methods[name].setdefault(key, {})[model] = labelled(found, form, name)
        for key in COMPARED:
            left = [form for form, name in forms.items() if model not in table.get(name, {}).get(key, {})]
            for form, found in compared_lines(rows, key, left).items():
                methods[forms[form]].setdefault(key, {})[model] = labelled(found, form, forms[form])
    for name, lines in table.items():
        for key, by_model in lines.items():
            methods[name].setdefault(key, {}).update({m: f for m, f in by_model.items() if m in PHOTOGRAPH_MODELS})
    for name, found in pair_lines(pairs, measured["pairs"]).items():
        methods[name]["pairs"] = {"scenes": found}
    for name, found in text_lines(movies).items():
        methods[name]["texts"] = {"movies": found}
    return {"sources": [*TABLES, MEASURED, PAIRS, TEXTS], "methods": methods}


def stored_text(content: Mapping[str, Any]) -> str:
    """The JSON of the package: one line for each method and line of its card."""
    blocks = []
    for name, lines in content["methods"].items():
        inner = ",\n".join(f"   {json.dumps(key)}: {json.dumps(found)}" for key, found in lines.items())
        blocks.append(f"  {json.dumps(name)}: {{\n{inner}\n  }}" if inner else f"  {json.dumps(name)}: {{}}")
    methods = ",\n".join(blocks)
    return f'{{\n "sources": {json.dumps(content["sources"])},\n "methods": {{\n{methods}\n }}\n}}\n'


def main() -> None:
    """Write the measurements of the package, then the pages, which are made from them."""
    from vitrail.methods.card import measurements

    STORED.write_text(stored_text(collect()), encoding="utf-8")
    measurements.cache_clear()
    for name in METHODS:
        page = PAGES / f"{name}.md"
        page.write_text(renewed_page(page.read_text(encoding="utf-8"), name), encoding="utf-8")
    index = PAGES / "index.md"
    index.write_text(renewed_index(index.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
