"""Collect runs of the plan three_models.toml, and update the tables and the figure of docs/three-models.md.

    python results/three_models.py --collect RUN [RUN ...]  # values of each image, the manifest, and the CSV files
    python results/three_models.py --collect                # the CSV files from the committed values
    python results/three_models.py                          # tables and figure from the CSV files

RUN is a folder with ``manifest.json`` and ``scores-MODEL.parquet``, as ``studies/run_plan.py`` writes them. A method
that is in several runs is taken from the last one. Values, intervals and tests are computed for each model by itself,
with the functions of `vitrail report`. Methods of many passes were run on fewer images, so there are two sets of rows:
``three_models_single.csv`` has the methods that have all images, ``three_models.csv`` all methods on the images that
every method has.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import show
from show import ScoreCell, ScoreColumn

HERE = Path(__file__).resolve().parent
#: Sets of rows by name, with the stem of their files.
SETS = {"single": "three_models_single", "all": "three_models"}
PAGE = HERE.parent / "docs" / "three-models.md"
FIGURE = "images/three-models.png"
TITLES = {"vit-t": "ViT-Tiny", "deit-t": "DeiT-Tiny", "dinov2-s": "DINOv2-S"}
MEAN_POSITIVE = ScoreColumn("positive, mean colour, %", "imagenet", "chefer21-mean", "positive(mean)")
MEAN_NEGATIVE = ScoreColumn("negative, mean colour, %", "imagenet", "chefer21-mean", "negative(mean)")
#: Scores of the page, each with the short title of the figure.
SCORES = {
    show.POSITIVE: "positive", show.NEGATIVE: "negative", MEAN_POSITIVE: "positive,\nmean colour",
    MEAN_NEGATIVE: "negative,\nmean colour", show.LODDS: "LOdds", show.SRG_BLACK: "SRG, black",
    show.SRG_TOKENS: "SRG, tokens", show.POINTING: "pointing\ngame", show.ENERGY: "energy\npointing",
    show.PIXEL_ACCURACY: "pixel\naccuracy", show.MAP: "mAP", show.MIOU: "mIoU",
}  # fmt: skip
#: Columns of the CSV.
CSV_COLUMNS = (
    "model", "dataset", "protocol", "score", "better", "unit", "method", "control", "images", "value", "low", "high",
    "to_best", "p_to_best", "to_control", "p_to_control", "to_best_low", "to_best_high",
)  # fmt: skip
DEFAULT = "leadlight"
Table = dict[tuple[str, ScoreColumn], dict[str, ScoreCell]]


def values_path(model: str) -> Path:
    """File with the values of each image of a model."""
    return HERE / "three_models" / f"{model}.parquet"


def run_rows(runs: Sequence[Path], model: str) -> Any:
    """Rows of a model: each method from the last run that has it."""
    import polars as pl

    parts, seen = [], set[str]()
    for table in reversed([pl.read_parquet(run / f"scores-{model}.parquet") for run in runs]):
        parts.append(table.filter(~pl.col("method").is_in(list(seen))))
        seen |= set(table["method"].unique())
    return pl.concat(reversed(parts))


def rows_of_set(rows: Any, name: str) -> Any:
    """Rows of methods that have all images, or of all methods on the images that every method has."""
    import polars as pl

    images = rows.select("dataset", "image", "method").unique()
    if name == "single":
        counts = images.group_by("method").len()
        return rows.filter(pl.col("method").is_in(counts.filter(len=counts["len"].max())["method"].implode()))
    counts = images.group_by("dataset", "image").len()
    shared = counts.filter(len=rows["method"].n_unique())
    return rows.join(shared, on=["dataset", "image"], how="semi")


def csv_rows(tables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of the CSV: every score of every method, by model."""
    import polars as pl

    from vitrail.bench.plan import CONTROLS
    from vitrail.bench.report.metric import protocol_metrics
    from vitrail.bench.report.values import method_scores, metric_values
    from vitrail.scores.comparison import rank_methods

    for model, rows in tables.items():
        for dataset, protocol in dict.fromkeys((column.dataset, column.protocol) for column in SCORES):
            own = rows.filter(pl.col("dataset") == dataset, pl.col("protocol") == protocol)
            if own.is_empty():
                continue
            scores = method_scores(own, protocol)
            for metric in protocol_metrics(protocol, "predicted"):
                if not any((column.protocol, column.score) == (protocol, metric.score) for column in SCORES):
                    continue
                found = {name: metric_values(values, metric) for name, values in scores.items()}
                given = {name: values for name, values in found.items() if values is not None}
                for ranked in rank_methods(given, metric.direction, CONTROLS).values():
                    best, control = ranked.to_best, ranked.to_control
                    numbers = [*ranked.value, best and best.difference.value, control and control.difference.value,
                               *(best.difference[1:] if best else (None, None))]  # fmt: skip
                    digits = 3 if metric.percent else 5
                    texts = ["" if x is None else f"{x * metric.factor:.{digits}f}" for x in numbers]
                    tests = ["" if test is None else f"{test.p_holm:.4f}" for test in (best, control)]
                    cells = (
                        model, dataset, protocol, metric.score, metric.direction, "percent" if metric.percent else "",
                        ranked.method, ranked.control, ranked.images, *texts[:4], tests[0], texts[4], tests[1],
                        *texts[5:],
                    )  # fmt: skip
                    yield dict(zip(CSV_COLUMNS, cells, strict=True))


def manifest(runs: Sequence[Path]) -> dict[str, Any]:
    """Everything the numbers depend on; files by hash, without paths."""
    found = [json.loads((run / "manifest.json").read_text(encoding="utf-8")) for run in runs]
    plan = found[0]["plan"]
    settings = {key: plan[key] for key in ("view", "precision", "matmul", "seed", "targets")}
    if any({key: one["plan"][key] for key in settings} != settings for one in found):
        raise ValueError("the runs have different settings: collect them separately")
    models = [
        {"label": m["label"], "name": m["name"], "weights_sha256": found[0]["weights"][m["label"]]}
        for m in plan["models"]
    ]
    return {
        "models": models, "settings": settings, "not_applicable": found[0]["refused"],
        "runs": [
            {
                "key": one["key"], "methods": one["methods"], "images": one["images"],
                "device": one["accelerator"], "machine": one["machine"],
                "versions": {n: "from source" if (n, t) == ("vitrail", "absent") else t
                             for n, t in one["versions"].items()},
            }
            for one in found
        ],
    }  # fmt: skip


def read_table(path: Path) -> Table:
    """The committed CSV by model and score; methods in its order, best first, controls last."""
    columns = {(c.dataset, c.protocol, c.score): c for c in SCORES}
    table: Table = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            column = columns[row["dataset"], row["protocol"], row["score"]]
            numbers = {name: float(row.get(name) or "nan") for name in show.NUMBERS}
            cell = ScoreCell(row["method"], row["control"] == "True", row["better"], unit=row["unit"], **numbers)
            table.setdefault((row["model"], column), {})[cell.method] = cell
    return table


def ranks(table: Table) -> dict[str, dict[tuple[str, ScoreColumn], float]]:
    """Rank of each method in each column, 1 for the best; equal values share a rank; controls have none."""
    found: dict[str, dict[tuple[str, ScoreColumn], float]] = {}
    for key, cells in table.items():
        own = {name: cell.sign * cell.value for name, cell in cells.items() if not cell.control}
        values = np.array(list(own.values()))
        for name, value in own.items():
            found.setdefault(name, {})[key] = 1 + float((values > value).sum() + ((values == value).sum() - 1) / 2)
    return {name: by for name, by in found.items() if len(by) == len(table)}


def mean_rank_table(table: Table) -> str:
    """Methods by their mean rank over all scores and models, with the mean rank on each model."""
    found, rows = ranks(table), []
    for name in sorted(found, key=lambda name: np.mean(list(found[name].values()))):
        own = [np.mean([r for (m, _), r in found[name].items() if m == model]) for model in TITLES]
        beats = sum(table[key][name].beats_controls for key in table)
        tied = sum(table[key][name].tied for key in table)
        rows.append([f"`{name}`", f"{np.mean(own):.1f}", *(f"{x:.1f}" for x in own), str(tied), str(beats)])
    head = ["method", "mean rank ↓", *TITLES.values(), "best or not significantly different", "better than controls"]
    return show._markdown(head, rows)  # noqa: SLF001 - the two scripts share their tables


def claims_table(table: Table) -> str:
    """For each score: the best method of each model, and what holds on all three."""
    rows = []
    for column in SCORES:
        by_model = [table[model, column] for model in TITLES]
        best = [next(cell for cell in cells.values() if not cell.control) for cells in by_model]
        shared = [name for name in by_model[0] if all(name in cells for cells in by_model)]
        tied = [f"`{name}`" for name in shared if all(cells[name].tied for cells in by_model)]
        better = [name for name in shared if all(cells[name].beats_controls for cells in by_model)]
        methods = sum(not by_model[0][name].control for name in shared)
        firsts = [f"`{cell.method}` {cell.text(cell.value)}" for cell in best]
        rows.append([f"{column.title} {best[0].arrow}", *firsts, ", ".join(tied) or "–", f"{len(better)} of {methods}"])
    head = [
        "score",
        *TITLES.values(),
        "best or not significantly different on all three",
        "better than controls on all three",
    ]
    return show._markdown(head, rows).replace("|---:|---:|---:|---:|", "|---|---|---|---|", 1)  # noqa: SLF001


def values_table(table: Table, columns: Sequence[ScoreColumn]) -> str:
    """Values of all methods on the three models, sorted by the mean rank over these columns."""
    found = ranks({key: cells for key, cells in table.items() if key[1] in columns})
    controls = [name for name, cell in next(iter(table.values())).items() if cell.control]
    rows = []
    for name in [*sorted(found, key=lambda name: np.mean(list(found[name].values()))), *controls]:
        texts = []
        for column in columns:
            cells = [table[model, column][name] for model in TITLES]
            texts.append(" / ".join(_value(cell) for cell in cells))
        rows.append([f"*{name}* (control)" if name in controls else f"`{name}`", *texts])
    first = next(iter(TITLES))
    arrows = [next(iter(table[first, column].values())).arrow for column in columns]
    head = ["method", *(f"{c.title} {arrow}" for c, arrow in zip(columns, arrows, strict=True))]
    return show._markdown(head, rows)  # noqa: SLF001


def _value(cell: ScoreCell) -> str:
    text = cell.text(cell.value)
    if cell.control:
        return text
    best = np.isnan(cell.p_to_best)
    return (
        f"{f'**{text}**' if best else text}{'' if best or not cell.tied else '='}{'' if cell.beats_controls else '○'}"
    )


def draw(table: Table, path: Path) -> None:
    """Draw the rank of each method by score and model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    found = ranks(table)
    order = sorted(found, key=lambda name: np.mean(list(found[name].values())))
    keys = [(model, column) for column in SCORES for model in TITLES]
    matrix = np.array([[found[name][key] for key in keys] for name in order])
    figure, axis = plt.subplots(figsize=(12, 1.2 + 0.22 * len(order)), layout="constrained")
    image = axis.imshow(matrix, cmap="viridis_r", aspect="auto", vmin=1, vmax=len(order))
    for (i, j), rank in np.ndenumerate(matrix):
        colour = "white" if rank > 0.5 * len(order) else "black"
        weight = "bold" if table[keys[j]][order[i]].tied else "normal"
        axis.text(j, i, f"{rank:.0f}", ha="center", va="center", fontsize=6.5, color=colour, weight=weight)
    axis.set_yticks(range(len(order)), order, fontsize=8)
    axis.set_xticks(range(len(keys)), ["V", "D", "S"] * len(SCORES), fontsize=7)
    for k, title in enumerate(SCORES.values()):
        axis.text(3 * k + 1, -0.8, title, ha="center", va="bottom", fontsize=8)
        axis.axvline(3 * k - 0.5, color="white", linewidth=2)
    axis.tick_params(length=0)
    figure.colorbar(image, ax=axis, shrink=0.4, label="rank (1 = best)", pad=0.01)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=100, facecolor="white")
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def updated(page: str, tables: dict[str, Table]) -> str:
    """The page with its tables replaced; `tables` has one table for each set."""
    perturbation = [show.SRG_BLACK, show.SRG_TOKENS, show.POSITIVE, show.NEGATIVE]
    localisation = [show.POINTING, show.PIXEL_ACCURACY, show.MAP, show.MIOU]
    shown = {}
    for name, table in tables.items():
        shown |= {
            f"claims_{name}": claims_table(table), f"perturbation_{name}": values_table(table, perturbation),
            f"localisation_{name}": values_table(table, localisation),
        }  # fmt: skip
        shown[f"ranks_{name}"] = mean_rank_table(table)
    shown["default"] = default_table(HERE / f"{SETS['single']}.csv")
    return show.replace_tables(page, shown)


def default_table(path: Path) -> str:
    """The default beside the best method by score and model, with uncorrected intervals of the difference."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = {(r["model"], r["dataset"], r["score"], r["method"]): r for r in csv.DictReader(file)}
    lines = []
    for column in SCORES:
        cells = []
        for model in TITLES:
            own = rows[model, column.dataset, column.score, DEFAULT]
            digits = 1 if own["unit"] else 3
            value = f"{float(own['value']):.{digits}f}"
            if own["to_best"]:
                numbers = (float(own[name]) for name in ("to_best", "to_best_low", "to_best_high"))
                difference, low, high = (f"{number:+.{digits}f}" for number in numbers)
                value += f", {difference} [{low}, {high}]"
            cells.append(value.replace("-", "−") if own["to_best"] else f"**{value.replace('-', '−')}**")
        arrow = "↑" if own["better"] == "up" else "↓"
        lines.append([f"{column.title} {arrow}", *cells])
    return show._markdown(["score", *TITLES.values()], lines)  # noqa: SLF001


def collect(runs: Sequence[Path]) -> None:
    """Write values and manifest if runs are given, and the CSV of each set from the values."""
    from image_values import read_values, store_values

    if runs:
        values_path("any").parent.mkdir(exist_ok=True)
        for model in TITLES:
            store_values(run_rows(runs, model), values_path(model))
        text = json.dumps(manifest(runs), indent=2, ensure_ascii=False)
        (HERE / "three_models-manifest.json").write_text(f"{text}\n", encoding="utf-8")
    values = {model: read_values(values_path(model)).filter(target="predicted") for model in TITLES}
    for name, stem in SETS.items():
        rows = list(csv_rows({model: rows_of_set(own, name) for model, own in values.items()}))  # takes minutes
        with (HERE / f"{stem}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def main() -> None:
    """Collect runs if some are given, then update the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs="*", type=Path, metavar="RUN", help="folders of runs, the newest last")
    args = parser.parse_args()
    if args.collect is not None:
        collect(args.collect)
    tables = {name: read_table(HERE / f"{stem}.csv") for name, stem in SETS.items()}
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
    draw(tables["single"], PAGE.parent / FIGURE)


if __name__ == "__main__":
    main()
