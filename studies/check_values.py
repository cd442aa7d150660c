"""Values of `Explanation.check` on each map, and the numbers that studies of the check publish from them.

Maps whose truth is known (scenes, worlds): by score, then by ``KIND: SOURCE`` of the map such as ``inverted: attnlrp``,
two values for each example. Photographs: by score, then by method, one value for each image; every verdict is a score
of zeros and ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from value_tables import Values

from vitrail.scores import auroc
from vitrail.trust import VERDICTS, MapCheck

#: Draws of the bootstrap over the examples of scenes, and of worlds.
SCENE_DRAWS, WORLD_DRAWS = 1000, 300
#: P-value up to which a map passes the removal test.
PASS = 0.05
#: Scores of a photograph that are means over the images for which they are defined.
MEANS = (
    "class_similarity", "noise_similarity", "seed_similarity", "head_similarity", "block_similarity", "forwards",
)  # fmt: skip
WRONG_PASS = "wrong_maps_pass"  # noqa: S105 - the name of a score


def kind_of(name: str) -> str:
    """Kind of a map by its name: right, or how it was made wrong."""
    return name.partition(": ")[0]


def removal_values(checks: Iterable[tuple[str, MapCheck]]) -> Values:
    """Statistic, p-value and whether it passes, of each map, by name; examples in their order."""
    values: Values = {"statistic": {}, "p_value": {}, "passes": {}}
    for name, check in checks:
        # Whether a map passes is kept by itself: in single precision 0.05 is above 0.05.
        for score, value in (
            ("statistic", check.statistic), ("p_value", check.p_value), ("passes", check.p_value <= PASS)
        ):  # fmt: skip
            values[score].setdefault(name, []).append(float(value))
    return values


def area(table: NDArray[np.float64], right: Sequence[bool]) -> float:
    """Area under the ROC curve, with right maps as positives.

    Args:
        table: Statistic of each map, shape (names, …).
        right: Whether the maps of each name are right.
    """
    flat = table.reshape(len(table), -1)
    positive = np.repeat(np.array(right)[:, None], flat.shape[1], 1)
    return float(auroc(torch.from_numpy(flat.flatten())[None], torch.from_numpy(positive.flatten())[None])[0])


def summarise_known(values: Values, draws: int) -> dict[str, Any]:
    """Area under the ROC curve of the statistic and shares of maps that pass, from values of maps with a known truth.

    The interval is a percentile bootstrap over examples, whose maps stay together.

    Args:
        values: From `removal_values`.
        draws: Draws of the bootstrap.
    """
    statistics = values["statistic"]
    table = np.array(list(statistics.values())).reshape(len(statistics), -1, 2)  # (names, examples, targets)
    kinds = [kind_of(name) for name in statistics]
    right = [kind == "right" for kind in kinds]
    rng, count = np.random.default_rng(0), table.shape[1]
    areas = [area(table[:, rng.integers(0, count, count)], right) for _ in range(draws)]
    against = {}
    for kind in dict.fromkeys(kind for kind in kinds if kind != "right"):
        rows = [i for i, own in enumerate(kinds) if own in ("right", kind)]
        against[kind] = area(table[rows], [right[i] for i in rows])
    return {
        "maps": table.size, "roc_auc": area(table, right), "interval": np.percentile(areas, [2.5, 97.5]).tolist(),
        "roc_auc_against": against,
        "passes": {name: float(np.mean(own)) for name, own in values.get("passes", {}).items()},
    }  # fmt: skip


def summarise_scenes(values: Values) -> dict[str, Any]:
    """The same for scenes, with their number."""
    found = summarise_known(values, SCENE_DRAWS)
    count = len(next(iter(values["statistic"].values()))) // 2
    return {"scenes": count, **{"roc_auc_interval" if key == "interval" else key: own for key, own in found.items()}}


def verdict_values(checks: dict[str, list[MapCheck]], wrong: dict[str, list[bool]]) -> Values:
    """Values of each photograph, by score and method.

    Args:
        checks: By method, one check for each image.
        wrong: By name, whether the map that was made wrong passes the removal test.
    """
    values: Values = {score: {} for score in (*VERDICTS, "statistic", "p_value", *MEANS)}
    values |= {"better_than_chance": {}, "better_than_centre": {}, WRONG_PASS: {}}
    for method, own in checks.items():
        for verdict in VERDICTS:
            values[verdict][method] = [float(check.verdict == verdict) for check in own]
        for score in ("statistic", "p_value", *MEANS):
            numbers = [getattr(check, score) for check in own]
            values[score][method] = [float("nan") if number is None else float(number) for number in numbers]
        values["better_than_chance"][method] = [float(check.p_value <= PASS) for check in own]
        values["better_than_centre"][method] = [float(check.statistic > check.controls["centre"]) for check in own]
    values[WRONG_PASS] = {name: [float(passed) for passed in own] for name, own in wrong.items()}
    return values


def summarise_verdicts(values: Values) -> tuple[dict[str, Any], dict[str, float]]:
    """Rows of the methods, and shares of the wrong maps that pass, from values of photographs."""

    def mean(score: str, method: str) -> float:
        return float(np.nanmean(values[score][method]))

    rows = {}
    for method in values.get("faithful", {}):
        defined = [score for score in MEANS if np.isfinite(values.get(score, {}).get(method, [])).any()]
        rows[method] = {
            "verdicts": {verdict: mean(verdict, method) for verdict in VERDICTS},
            **{score: mean(score, method) for score in ("better_than_chance", "better_than_centre", *defined)},
        }
    return rows, {name: float(np.mean(own)) for name, own in values.get(WRONG_PASS, {}).items()}
