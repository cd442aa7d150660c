"""MkDocs hook: published numbers beside ours on the pages of docs/papers.

``<!-- paper KEY -->`` becomes the numbers of a published table (vitrail.papers) for which a committed result has a
counterpart, such as ``<!-- paper vtranm_table2 -->``; with ``if measured``, nothing where there is none,
and with ``on MODEL`` the results of that embedded model. Published
numbers come from src/vitrail/papers/numbers.csv, ours from results/imagenet1000.csv and, in studies/results,
ablations-pets.json and, if it exists, paper-tables.json. ``<!-- movies-base -->`` becomes token-F1 by the
number of words, from studies/results/movies-base.json, ``<!-- movies-base-second -->`` the same from
movies-base-second.json; ``<!-- depths -->`` the scores of GradToken by depth.
"""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mkdocs.plugins import get_plugin_logger

from vitrail.bench.papers import PaperMetric, PaperNumber, PaperTable, find_table

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

logger = get_plugin_logger("papers")

MARK = re.compile(r"<!-- paper (\w+)(?: on ([\w-]+))?( if measured)? -->")
#: Marks of the other tables.
DEPTHS = "<!-- depths -->"
#: Results of classifiers of movie reviews.
MOVIES = ("movies-base", "movies-base-second")
ABLATIONS = "studies/results/ablations-pets.json"
#: Plans in paper-tables.json that stand beside published tables; others have several models or settings.
TABLE_PLANS = ("cifar10", "cifar10-distilled", "vtranm", "vitcx")
#: The plan whose method is in the large benchmark too, measured in another run: its rows stand in a table of their own.
ABLATION_PLAN = "vtranm"
#: Where the values of a table can come from; the first is the large benchmark.
SOURCES = ("", "ablations", f"{ABLATION_PLAN} plan")
#: By data set of a paper, the one we have instead.
DATA = {"imagenet": "imagenet", "imagenet-segmentation": "pets", "cifar10": "cifar10"}
#: By protocol of a paper, the one in the results that is computed in the same way.
PROTOCOLS = {"gradtoken": "chefer21", "box_pointing": "pointing"}
#: By protocol, its only score in the results where the name differs.
SCORES = {"box_pointing": "hit@0"}
#: By method of a paper, the settings that were measured.
METHODS = {
    "rise": "rise:masks=1000",
    "rise:masks=5000": "rise:masks=1000",
    "vit_cx:2": "vit_cx:2,random_masks=1000",
}
ARROWS = {"up": "↑", "down": "↓"}
#: Rows of Figure 6 of GradToken, by our names.
TEXT_METHODS = (
    "gradtoken",
    "transformer_attribution:bert",
    "gradcam:bert",
    "raw_attention",
    "partial_lrp",
    "lrp",
    "rollout",
)


class OurScore(NamedTuple):
    """Where a score stands in the results: data set, protocol, explained class and name."""

    dataset: str
    protocol: str
    target: str
    score: str


class Value(NamedTuple):
    """A measured value, half of its 95 % interval, if one was computed, and the number of images."""

    value: float
    half: float | None
    images: int


#: Values by score and method.
Values = dict[tuple[OurScore, str], Value]
#: Values by method and metric of a paper.
Found = dict[tuple[str, str], Value]


@cache
def load(root: Path) -> Values:
    """Read the committed results, in percent where the papers use percent."""
    values: Values = {}
    with (root / "results" / "imagenet1000.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = OurScore(row["dataset"], row["protocol"], row["target"], row["score"]), row["method"]
            half = (float(row["high"]) - float(row["low"])) / 2
            values[key] = Value(float(row["value"]), half, int(row["images"]))
    ablations = json.loads((root / ABLATIONS).read_text(encoding="utf-8"))
    for method, row in ablations["rows"].items():
        for score in ("pixel_accuracy", "map", "miou", "best_pixel_accuracy", "best_miou"):
            low, high = row.get(f"{score}_interval", (None, None))
            key = OurScore("pets", "ablations", "predicted", score), method
            half = None if low is None else 50 * (high - low)
            values[key] = Value(100 * row[score], half, ablations["manifest"]["images"])
    tests = root / "studies" / "results" / "paper-tables.json"
    measured = json.loads(tests.read_text(encoding="utf-8"))["rows"] if tests.exists() else {}
    for plan, row in ((name, row) for name in TABLE_PLANS for row in measured.get(name, ())):
        protocol = f"{plan} plan" if plan == ABLATION_PLAN else row["protocol"]
        key = OurScore(row["dataset"], protocol, row["target"], row["score"]), row["method"]
        values[key] = Value(row["value"], (row["high"] - row["low"]) / 2, row["images"])
    return values


def find_value(
    values: Values, specs: tuple[str, ...], data: str, metric: PaperMetric, source: str, model: str = ""
) -> Value | None:
    """Our counterpart of a published number, or None: the first of our methods that was measured.

    Args:
        values: Our values.
        specs: Our methods for the paper's method, the best match first.
        data: The paper's data set, by our name.
        metric: The paper's metric.
        source: "ablations" for the file of ablations, "vtranm plan" for that plan, "" for the large benchmark.
        model: Embedded model whose results are asked for, under the name of the data set.
    """
    if metric.reason or data not in DATA:
        return None
    score = SCORES.get(metric.protocol, metric.score)
    protocol = source or PROTOCOLS.get(metric.protocol, metric.protocol)
    found = (
        values.get((OurScore(model or DATA[data], protocol, metric.target, score), METHODS.get(s, s))) for s in specs
    )
    return next((value for value in found if value is not None), None)


def table(paper: PaperTable, values: Values, model: str = "") -> str:
    """The rows and columns of a paper's table for which we have a value, a table for each data set with two rows.

    All values of a table come from the same source: the one that has more of them.
    """
    tables = []
    for dataset, source in paper.datasets.items():
        if source.images == 1:
            continue  # a mean over other images is no counterpart
        numbers = [n for n in paper.numbers if n.dataset == dataset]

        def measured(origin: str, numbers: list[PaperNumber] = numbers, name: str = source.names[0]) -> Found:
            rows = ((n, paper.methods[n.method], paper.metric(n)) for n in numbers)
            found = ((n, find_value(values, specs, name, metric, origin, model)) for n, specs, metric in rows)
            return {(n.method, n.metric): value for n, value in found if value is not None}

        ours = max(map(measured, SOURCES), key=len)
        metrics = [m for m in dict.fromkeys(n.metric for n in numbers) if any(key[1] == m for key in ours)]
        methods = [m for m in dict.fromkeys(n.method for n in numbers) if any(key[0] == m for key in ours)]
        if len(methods) > 1:
            tables.append(_draw(paper, numbers, ours, metrics, methods))
    return "\n\n".join(tables)


def _draw(
    paper: PaperTable,
    numbers: list[PaperNumber],
    ours: Found,
    metrics: list[str],
    methods: list[str],
) -> str:
    models = list(dict.fromkeys(n.model for n in numbers))
    published = {(n.method, n.metric, n.model): n.value for n in numbers}
    directions = {n.metric: n.direction for n in numbers}
    header = [numbers[0].dataset]
    for metric in metrics:
        title = paper.short(metric).replace(" (%)", ", %")
        title = f"{title} {ARROWS[directions[metric]]}"
        header += [f"{title}, {model}" for model in models] if len(models) > 1 else [title]
        header.append("ours")
    lines = [f"| {' | '.join(header)} |", "|---|" + "---:|" * (len(header) - 1)]
    for method in methods:
        cells = [method.removesuffix(" (Ours)")]  # "ours" are the numbers of this package
        for metric in metrics:
            digits = 2 if "%" in metric or metric.endswith("(%)") else 3
            cells += [_number(published.get((method, metric, model)), digits) for model in models]
            cells.append(_ours(ours.get((method, metric)), 1 if digits == 2 else 3))
        lines.append(f"| {' | '.join(cells)} |")
    counts = {metric: max(v.images for key, v in ours.items() if key[1] == metric) for metric in metrics}
    if len(set(counts.values())) == 1:
        note = f"Ours: {counts[metrics[0]]:,} images."
    else:
        note = f"Ours: {', '.join(f'{paper.short(m)} on {count:,} images' for m, count in counts.items())}."
    return "\n".join([*lines, "", note])


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _ours(found: Value | None, digits: int) -> str:
    if found is None:
        return "–"
    return _number(found.value, digits) + ("" if found.half is None else f" ± {found.half:.{digits}f}")


def depths(root: Path) -> str:
    """Segmentation scores of GradToken by the first block of its propagation, as a table."""
    rows = json.loads((root / ABLATIONS).read_text(encoding="utf-8"))["rows"]
    first = [name for name in rows if name.startswith("gradtoken:depth=")]
    lines = [
        f"| first block | {' | '.join(name.partition('=')[2] for name in first)} |",
        "|---|" + "---:|" * len(first),
    ]
    for key, title in (("best_pixel_accuracy", "PAcc, % ↑"), ("map", "mAP, % ↑"), ("best_miou", "mIoU, % ↑")):
        lines.append(f"| {title} | " + " | ".join(f"{100 * rows[name][key]:.1f}" for name in first) + " |")
    return "\n".join(lines)


def movies(root: Path, name: str) -> str:
    """Token-F1 of the methods of GradToken's Figure 6 by the number of words, as a table."""
    rows = json.loads((root / "studies" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    found = {row["method"]: row["macro_f1_at"] for row in rows}
    tops = list(found["gradtoken"])
    lines = [f"| token-F1 ↑, words picked | {' | '.join(tops)} |", "|---|" + "---:|" * len(tops)]
    rest = ((method, (f"{found[method][top]['value']:.3f}" for top in tops)) for method in (*TEXT_METHODS, "end first"))
    return "\n".join([*lines, *(f"| `{method}` | {' | '.join(cells)} |" for method, cells in rest)])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Put the tables into a page."""
    root = Path(config.config_file_path).parent
    for name in MOVIES:
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", movies(root, name))
    if DEPTHS in markdown:
        markdown = markdown.replace(DEPTHS, depths(root))

    def replace(match: re.Match[str]) -> str:
        found = table(find_table(match[1]), load(root), match[2] or "")
        if not found and not match[3]:
            logger.warning("%s asks for %s, but no result has a counterpart of it", page.file.src_uri, match[1])
        return found

    return MARK.sub(replace, markdown)
