"""Rows, comparisons and files of the study of Shapley values: from the SRG of each image by model and method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study import read_csv, read_json, save_csv, save_json
from value_tables import read_values, save_values, values_path

from vitrail.scores import difference, interval, p_value

FIELDS = ("model", "method", "forwards", "score", "prior", "srg", "low", "high", "images")
#: Name of the score in files of values; a method is there written as METHOD|FORWARDS|SCORE|PRIOR.
SRG = "srg(tokens)"
#: Method, number of forward passes, score and prior.
Form = tuple[str, int, str, str]
#: By form, the SRG of each image, shape (n,).
FormValues = dict[Form, NDArray[np.float64]]


def single_precision(srg: NDArray[Any]) -> NDArray[np.float64]:
    """Values as a file keeps them, so that p-values are the same again."""
    return np.asarray(srg, np.float32).astype(np.float64)


def summarise(values: Mapping[str, FormValues]) -> list[dict[str, Any]]:
    """One row for each model and form: mean SRG and its 95 % interval."""
    rows = []
    for model, by_form in values.items():
        for form, srg in by_form.items():
            rounded = (round(x, 5) for x in interval(srg))
            rows.append(dict(zip(FIELDS, (model, *form, *rounded, len(srg)), strict=True)))
    return rows


def compare(values: Mapping[str, FormValues]) -> list[dict[str, Any]]:
    """Paired differences of each form of ``shapley`` from the best other method on as many images, by model."""
    found = []
    for model, by_form in values.items():
        for form, srg in by_form.items():
            others = {key: own for key, own in by_form.items() if key[0] != "shapley" and len(own) == len(srg)}
            if form[0] == "shapley" and others:
                best = max(others, key=lambda key: float(others[key].mean()))
                gap = difference(srg, others[best])
                found.append(
                    {"model": model, "form": list(form), "against": list(best), "p": p_value(srg, others[best]),
                     **{name: round(x, 5) for name, x in gap._asdict().items()}}
                )  # fmt: skip
    return found


def read_forms(out: Path, model: str) -> FormValues:
    """Values of a model from the file beside the table; none where there is no file."""
    path = values_path(out, model)
    stored = read_values(path).get(SRG, {}) if path.is_file() else {}
    parts = {name: name.split("|") for name in stored}
    return {(p[0], int(p[1]), p[2], p[3]): np.array(stored[name]) for name, p in parts.items()}


def check_same_images(out: Path, images: int) -> None:
    """Refuse to add to a table of another choice of images; tables without that number are of 100."""
    before = read_json(out.with_suffix(".json"), {"images": images}).get("images", 100)
    if before != images:
        raise SystemExit(f"{out} has rows of {before} images, this run {images}: pass another --out")


def save_rows(out: Path, values: Mapping[str, FormValues], about: dict[str, Any]) -> None:
    """Write table, values of each image, comparison and manifest; rows of other models and forms stay.

    Args:
        out: File of the table.
        values: By model; those of this run.
        about: What decides the numbers.
    """
    new = summarise(values)
    kept = {tuple(row[name] for name in FIELDS[:5]): row for row in (read_csv(out) if out.is_file() else [])}
    rows = kept | {tuple(str(row[name]) for name in FIELDS[:5]): row for row in new}
    save_csv(out, rows.values(), FIELDS)
    for model, by_form in values.items():
        named = {"|".join(map(str, form)): srg.tolist() for form, srg in by_form.items()}
        save_values(values_path(out, model), {SRG: named})
    before = read_json(out.with_suffix(".json"), {})
    compared = {(one["model"], *one["form"]): one for one in before.get("comparison", ())}
    for one in compare({model: read_forms(out, model) for model in values}):
        compared[one["model"], *one["form"]] = one
    budgets = sorted({*before.get("budgets", ()), *about["budgets"]})
    save_json(out.with_suffix(".json"), {**about, "budgets": budgets, "comparison": list(compared.values())})
