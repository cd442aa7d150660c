"""Update the tables of the appendices of ViT-CX on docs/papers/vit_cx.md.

    python results/appendices.py

Reads studies/results/paper-tables.json and the values of each image in studies/results/vitcx_appendices. The text
between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl
from method_pages import replaced
from readme import ROOT

from vitrail.bench.report.metric import metric_info
from vitrail.bench.report.values import method_scores, metric_values
from vitrail.scores.comparison import MethodValues, paired_tests

STUDIES = ROOT / "studies" / "results"
PAGE = ROOT / "docs" / "papers" / "vit_cx.md"
MODELS = ("vit-t", "deit-t")
#: Steps of the randomisation that are shown.
STEPS = ("head", "block 11", "block 6", "embedding")
SANITY = ("vit_cx", "vit_cx:paper", "transformer_mm", "leadlight", "rollout")
SETTINGS = (
    "vit_cx:delta=0.02", "vit_cx:delta=0.05", "vit_cx", "vit_cx:delta=0.2", "vit_cx:delta=0.4", "vit_cx:sigma=0",
    "vit_cx:sigma=0.05", "vit_cx:sigma=0.2", "vit_cx:sigma=0.5",
)  # fmt: skip
COMPARED = ("vit_cx", "vit_cx:paper", "vit_shapley", "shapley")
CONTROLS = ("random", "centre", "edges")
#: The method that the others are tested against.
REFERENCE = "vit_cx"


@dataclass(frozen=True)
class Score:
    """A score of a table: its heading, data set, protocol, explained class, name and number of decimals."""

    title: str
    dataset: str
    protocol: str
    score: str
    digits: int
    target: str = "predicted"


IMAGENET = (
    Score("deletion ↓", "imagenet", "vitcx", "deletion(mean)", 3),
    Score("insertion ↑", "imagenet", "vitcx", "insertion(mean)", 3),
    Score("insertion, blurred ↑", "imagenet", "vitcx", "insertion(blur)", 3),
    Score("pointing game, % ↑", "imagenet", "pointing", "hit@0", 1),
)
SCENES = (
    Score("deletion ↓", "single", "vitcx", "deletion(mean)", 3),
    Score("insertion ↑", "single", "vitcx", "insertion(mean)", 3),
    Score("insertion, blurred ↑", "single", "vitcx", "insertion(blur)", 3),
    Score("SRG, tokens ↑", "single", "srg-tokens", "srg(tokens)", 3),
    Score("mIoU at the mean, % ↑", "single", "segmentation", "miou", 1),
    Score("mIoU at the best threshold, % ↑", "single", "segmentation", "best_miou", 1),
    Score("class-discrimination accuracy, % ↑", "pairs", "selectivity", "share", 1, "things"),
    Score("relevance mass, % ↑", "pairs", "selectivity", "mass", 1, "things"),
)


@cache
def rows(plan: str) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Rows of a plan by model, data set, score and method."""
    found = json.loads((STUDIES / "paper-tables.json").read_text(encoding="utf-8"))["rows"][plan]
    return {(r["model"], f"{r['dataset']} {r['protocol']}", r["score"], r["method"]): r for r in found}


@cache
def image_values(name: str) -> pl.DataFrame:
    """Values of each image of a run with one model."""
    return pl.read_parquet(STUDIES / "vitcx_appendices" / f"{name}.parquet")


@cache
def different(name: str, score: Score, methods: tuple[str, ...]) -> frozenset[str]:
    """Methods that differ significantly from the reference (paired permutation test, Holm over these methods)."""
    table = image_values(name).filter(dataset=score.dataset, protocol=score.protocol, target=score.target)
    metric = metric_info(score.protocol, score.target, score.score)
    by_method = method_scores(table, score.protocol)
    values: dict[str, MethodValues] = {}
    for method in methods:
        found = metric_values(by_method[method], metric)
        assert found is not None, (method, score.score)
        values[method] = found
    reference = values.pop(REFERENCE)
    shared = {n: sorted({*v.ids} & {*reference.ids}) for n, v in values.items()}
    pairs = {n: (v.rows(shared[n]), reference.rows(shared[n])) for n, v in values.items()}
    return frozenset(n for n, test in paired_tests(pairs, reference.score).items() if test.significant)


def _number(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return (text.lstrip("-") if float(text) == 0 else text).replace("-", "−")


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    shown = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*shown, *(f"| {' | '.join(line)} |" for line in lines)])


def sanity() -> str:
    """Rank correlation of maps before and after randomisation; for the head also its mean size and its range."""
    given = rows("vitcx_sanity")
    lines = []
    for method in SANITY:
        cells = [
            " / ".join(_number(given[m, "imagenet sanity", f"{s}|spearman", method]["value"], 2) for m in MODELS)
            for s in STEPS
        ]
        tables = [image_values(f"vitcx_sanity-{m}").filter(score="head|spearman", method=method) for m in MODELS]
        values = [table["value"].to_numpy() for table in tables]
        sizes = " / ".join(_number(abs(v).mean(), 2) for v in values)
        ranges = " / ".join(f"{_number(v.min(), 2)} to {_number(v.max(), 2)}" for v in values)
        lines.append([f"`{method}`", *cells, sizes, ranges])
    return _table(["randomised down to", *STEPS, "head, mean of sizes", "head, range over images"], lines)


def delta_sigma() -> str:
    """Scores by δ and σ on both models; settings that differ significantly from the default have a dagger."""
    given = rows("vitcx_delta_sigma")
    names = {"vit_cx": "`vit_cx` (δ = 0.1, σ = 0.1)"}
    lines = []
    for method in (*SETTINGS, *CONTROLS):
        cells = []
        for score in IMAGENET:
            texts = []
            for model in MODELS:
                row = given[model, f"imagenet {score.protocol}", score.score, method]
                marked = method in different(f"vitcx_delta_sigma-{model}", score, SETTINGS)
                texts.append(_number(row["value"], score.digits) + "†" * marked)
            cells.append(" / ".join(texts))
        lines.append([f"*{method}* (control)" if method in CONTROLS else names.get(method, f"`{method}`"), *cells])
    return _table(["setting", *(s.title for s in IMAGENET)], lines)


def shapley() -> str:
    """Scores of ViT-CX and of Shapley values on scenes; methods that differ significantly from `vit_cx` have a †."""
    given = rows("vitcx_appendix_d")
    lines = []
    for score in SCENES:
        cells = []
        for method in (*COMPARED, "edges"):
            row = given["scenes", f"{score.dataset} {score.protocol}", score.score, method]
            marked = method in different("vitcx_d-scenes", score, COMPARED)
            cells.append(_number(row["value"], score.digits) + "†" * marked)
        lines.append([score.title, *cells])
    return _table(["", *(f"`{name}`" for name in COMPARED), "*edges* (control)"], lines)


#: Marks on the page, and what stands there.
TABLES = (("sanity", sanity), ("delta and sigma", delta_sigma), ("shapley", shapley))


def updated(page: str) -> str:
    """The page with its tables."""
    for mark, content in TABLES:
        page = replaced(page, mark, content())
    return page


def main() -> None:
    """Write the tables."""
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
