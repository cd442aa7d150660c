"""Published scores of grids, movie reviews and FunnyBirds beside those from the values of each example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bird_values
import numpy as np
import pyarrow.parquet as pq
from model_halves import OBJECT
from study import read_json
from value_tables import RecomputedRow, read_values, segmented, summarise

from vitrail.scores import interval

GRIDS = ("grid_pointing", "leadlight_both", "leadlight_thorough")
MOVIES = ("movies", "movies-base", "movies-base-second", "movies-decoder")
RATIONALE = ("f1", "auprc", "comprehensiveness", "sufficiency")
DIMENSIONS = ("completeness", "correctness", "contrastivity")
BIRDS = ("funnybirds", "funnybirds_second")


def grids(folder: Path) -> Iterator[RecomputedRow]:
    """Grid pointing game, perturbation protocols, segmentation and verdicts of the check, and forms of Leadlight."""
    for path in sorted(file for name in GRIDS for file in (folder / name).glob("*-[01].json")):
        published, what = read_json(path, {}), f"{path.parent.name} {path.stem}"
        file = path.with_suffix(".parquet")
        values = read_values(file) if file.is_file() else {}
        found = summarise(values)
        columns = [values.get(f"mIoU, column {i}", {}) for i in range(4)]
        ratios = {m: np.stack([np.array(one[m]) for one in columns], 1) for m in columns[0]}
        found["mIoU"] = {m: segmented(table, ratios.get(OBJECT)) for m, table in ratios.items()}
        for score, rows in {**published["scores"], "mIoU": published.get("mIoU", {})}.items():
            for method, row in rows.items():
                own = found.get(score, {}).get(method, {})
                keys = [key for key in ("mean", "to_object") if key in row]
                again = [number for key in keys for number in own.get(key, ())]
                yield f"{what} {score} {method}", [number for key in keys for number in row[key]], again or None
        for method, own in values.get("check passes (pets)", {}).items():  # of second halves alone
            verdicts = published["checks"][method]
            numbers = [float(verdicts.get("faithful", 0)), float(sum(verdicts.values()))]
            yield f"{what} check {method}", numbers, [sum(own), float(len(own))]


def movies(folder: Path) -> Iterator[RecomputedRow]:
    """Agreement with rationales of reviews, means over the numbers of words, and removal of words."""
    for name in MOVIES:
        file = folder / f"{name}.parquet"
        table = pq.read_table(file).to_pydict() if file.is_file() else {"method": []}
        methods = np.array(table["method"])
        for row in read_json(folder / f"{name}.json", {"rows": []})["rows"]:
            for score in (score for score in RATIONALE if score in row):
                own = np.array(table.get(score, []))[methods == row["method"]]
                published = [row[score][key] for key in ("mean", "low", "high")]
                yield f"{name} {row['method']} {score}", published, [*interval(own)] if len(own) else None


def dimension_means(values: np.ndarray) -> list[float]:
    """Means of the protocols over images where they are defined, then completeness, correctness, contrastivity."""
    check, keep, delete, calm, single, target = means = np.nanmean(values.astype(np.float64), 0).tolist()
    return [*means, ((check + keep + delete) / 3 + calm) / 2, single, target]


def birds(folder: Path) -> Iterator[RecomputedRow]:
    """Protocols and dimensions of FunnyBirds, and their mean with its interval, at the method's threshold."""
    for name in BIRDS:
        file = folder / name / "funnybirds.parquet"
        table = pq.read_table(file).to_pydict() if file.is_file() else {"method": []}
        methods = np.array(table["method"])
        values = np.array([table.get(p, []) for p in bird_values.PROTOCOLS]).T
        for method, row in read_json(folder / name / "funnybirds.json", {"methods": {}})["methods"].items():
            if row.get("low") is not None:
                own = values[methods == method] if len(methods) else values
                found = bird_values.mean_interval(own) if len(own) else None
                keys = (*bird_values.PROTOCOLS, *DIMENSIONS, "mean", "low", "high")
                scores = [] if found is None else dimension_means(own)
                yield f"{name} {method}", [row[key] for key in keys], [*scores, *found] if found else None
