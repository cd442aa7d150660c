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

from vitrail.scores import compare

GRIDS = ("grid_pointing", "leadlight_both", "leadlight_thorough")
MOVIES = ("movies", "movies-base", "movies-base-second", "movies-decoder")
#: Scores of movie reviews, and whether more is better.
RATIONALE = {"f1": True, "auprc": True, "comprehensiveness": True, "sufficiency": False}
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
    """Agreement with rationales of reviews, means over the numbers of words, and removal of words, with their tests."""
    for name in MOVIES:
        file = folder / f"{name}.parquet"
        table = pq.read_table(file).to_pydict() if file.is_file() else {"method": []}
        methods = np.array(table["method"])
        rows = read_json(folder / f"{name}.json", {"rows": []})["rows"]
        for score, higher in RATIONALE.items():
            names = dict.fromkeys(table["method"]) if score in table else {}
            values = {one: np.array(table[score])[methods == one] for one in names}
            found = {row.name: row._asdict() for row in compare(values, higher=higher)} if values else {}
            for row in (row for row in rows if score in row):
                own = found.get(row["method"])
                keys = [key for key, number in row[score].items() if number is not None]  # the best has no p-value
                published = [row[score][key] for key in keys]
                yield f"{name} {row['method']} {score}", published, [own[key] for key in keys] if own else None


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
