"""The committed results on movie reviews: valid JSON, complete, and equal to the numbers in docs/text.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from vitrail.bench.report.rationale import rationale_html, read_rationale_results
from vitrail.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "studies" / "results"
FILES = [FOLDER / f"{name}.json" for name in ("movies", "movies-base", "movies-base-second", "movies-decoder")]
CONTROLS = {"random", "inverted", "start first", "end first"}
SCORES = ("f1", "auprc", "comprehensiveness", "sufficiency")


def read_rows(path: Path):
    def reject(name):
        raise AssertionError(f"{name} is not valid JSON")

    return {r["method"]: r for r in json.loads(path.read_text(encoding="utf-8"), parse_constant=reject)["rows"]}


def test_results_cover_every_text_method():
    # Methods of many passes evaluate a review hundreds of times, so these are not part of the tables.
    applicable = {
        name
        for name, method in METHODS.items()
        if method.reason_against("text") is None and method.family != "perturbation"
    }
    measured = {name.partition(":")[0] for path in FILES for name in read_rows(path)}
    many = {"integrated_gradients", "smoothgrad", "attattr", "bi_attn", "dix", "iia"}
    assert measured | many | CONTROLS >= applicable
    assert {row["reviews"] for path in FILES[:3] for row in read_rows(path).values()} == {199}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_values_of_each_review_give_the_rows(file: Path):
    table = pq.read_table(file.with_suffix(".parquet")).to_pydict()
    for name, row in read_rows(file).items():
        for score in SCORES:
            own = [v for m, v in zip(table["method"], table[score], strict=True) if m == name]
            assert len(own) == row["reviews"]
            assert sum(own) / len(own) == pytest.approx(row[score]["mean"], abs=1e-5), (name, score)


def test_tables_are_those_of_the_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import movie_table

    page = movie_table.PAGE.read_text(encoding="utf-8")
    assert page == movie_table.updated(page), "run python results/movie_table.py"


@pytest.mark.parametrize(
    ("file", "part", "place", "count"),
    [
        ("movies-base", 1, 19, 24),
        ("movies-base-second", 2, 5, 10),
        ("movies", 3, 12, 18),
        ("movies-decoder", 4, 17, 22),
    ],
)
def test_docs_page_matches_the_results_files(file: str, part: int, place: int, count: int):
    rows = read_rows(FOLDER / f"{file}.json")
    whole = (ROOT / "docs" / "text.md").read_text(encoding="utf-8")
    text = re.split(r"###+ (?:Results on movie|The same with|A second training|A small model).*\n", whole)[part]
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.match(r"\d.* ± ", cells[1]):
            table[re.sub(r"[*`]| \(control\)", "", cells[0])] = cells[1:]
    assert table.keys() == rows.keys()
    for name, row in rows.items():
        assert table[name] == [_cell(row[score]) for score in SCORES], name
    ranked = [name for name in sorted(rows, key=lambda n: -rows[n]["f1"]["mean"]) if name not in CONTROLS]
    assert ranked.index("gradtoken") == place
    assert len(ranked) == count


def test_values_of_each_review_give_the_means_of_the_table():
    results = json.loads((ROOT / "studies" / "results" / "movies-decoder.json").read_text(encoding="utf-8"))
    values = pq.read_table(ROOT / "studies" / "results" / "movies-decoder.parquet").to_pydict()
    reviews = set(values["review"])
    assert len(reviews) == results["manifest"]["reviews"]
    assert sum(name.startswith("pos") for name in reviews) == results["manifest"]["positive"]
    methods = np.array(values["method"])
    for row in results["rows"]:
        for score in ("f1", "auprc", "comprehensiveness", "sufficiency"):
            own = np.array(values[score])[methods == row["method"]]
            assert len(own) == len(reviews)
            assert float(own.mean()) == pytest.approx(row[score]["mean"], abs=1e-5)
    chosen = max(results["manifest"]["forms_on_validation"], key=lambda form: form["auc"])
    assert {name: chosen[name] for name in ("name", "words", "end")} == results["manifest"]["form"]


def test_the_report_draws_it():
    path = FOLDER / "movies.json"
    about, found = read_rationale_results(path)
    page = rationale_html(about, found)
    assert all(f"<title>{name}</title>" in page for name in read_rows(path))
    assert "<b>82.9 %</b>accuracy" in page
    assert ">False<" not in page


def test_training_manifest_matches_the_classifier():
    entry = json.loads((ROOT / "training" / "results" / "movies-manifest.json").read_text())["models"]["movies"]
    assert 100 * entry["accuracy"]["test_top1"] == pytest.approx(86.93, abs=0.01)
    log = (ROOT / "training" / "results" / "movies-log.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = [json.loads(line) for line in log if '"verdicts"' in line]
    assert max(verdicts, key=lambda v: v["val_accuracy"])["epoch"] == entry["training"]["verdicts"]["kept_epoch"]


def _cell(score):
    return f"{score['mean']:.3f} ± {(score['high'] - score['low']) / 2:.3f}".replace("-", "−")
