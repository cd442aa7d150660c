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
FILE = ROOT / "studies" / "results" / "movies.json"
CONTROLS = {"random", "inverted", "start first", "end first"}
#: Newer than the first model, whose weights were not kept; measured with another one.
PRESENT = FILE.with_name("movies-present.json")


@pytest.fixture(scope="module")
def rows():
    def reject(name):
        raise AssertionError(f"{name} is not valid JSON")

    results = json.loads(FILE.read_text(encoding="utf-8"), parse_constant=reject)
    return {row["method"]: row for row in results["rows"]}


def test_results_cover_every_text_method(rows):
    # A perturbation method evaluates a review hundreds of times, so these are not part of the table.
    applicable = {
        name
        for name, method in METHODS.items()
        if method.reason_against("text") is None and method.family != "perturbation"
    }
    newer = json.loads(PRESENT.read_text(encoding="utf-8"))["rows"]
    assert {name.partition(":")[0] for name in rows} >= (
        applicable - {row["method"].partition(":")[0] for row in newer}
    ) | CONTROLS
    assert "leadlight:single" in {row["method"] for row in newer}
    assert {row["reviews"] for row in (*rows.values(), *newer)} == {199}


@pytest.mark.parametrize("file", [PRESENT, FILE.with_name("movies-base-second.json")], ids=lambda file: file.stem)
def test_values_of_each_review_give_the_newer_rows(file: Path):
    table = pq.read_table(file.with_suffix(".parquet")).to_pydict()
    for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        for score in ("f1", "auprc", "comprehensiveness", "sufficiency"):
            own = [v for m, v in zip(table["method"], table[score], strict=True) if m == row["method"]]
            assert sum(own) / len(own) == pytest.approx(row[score]["mean"], abs=1e-5), (row["method"], score)


def test_tables_are_those_of_the_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import movie_table

    page = movie_table.PAGE.read_text(encoding="utf-8")
    assert page == movie_table.updated(page), "run python results/movie_table.py"


@pytest.mark.parametrize(
    ("file", "part", "place", "count"),
    [
        ("movies.json", 0, ("fourth", 3), 24),
        ("movies-base.json", 2, ("13th", 12), 18),
        ("movies-base-second.json", 3, ("", 5), 9),
        ("movies-decoder.json", 4, ("", 17), 22),
    ],
)
def test_docs_page_matches_the_results_files(file: str, part: int, place: tuple[str, int], count: int):
    results = json.loads((ROOT / "studies" / "results" / file).read_text(encoding="utf-8"))
    rows = {row["method"]: row for row in results["rows"]}
    whole = (ROOT / "docs" / "text.md").read_text(encoding="utf-8")
    text = re.split(r"### (?:The same with|A second ).*\n", whole)[part]
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.match(r"\d.* ± ", cells[1]):
            table[re.sub(r"[*`]| \(control\)", "", cells[0])] = cells[1:]
    assert table.keys() == rows.keys()
    for name, row in rows.items():
        assert table[name] == [_cell(row[score]) for score in ("f1", "auprc", "comprehensiveness", "sufficiency")], name
    ranked = [name for name in sorted(rows, key=lambda n: -rows[n]["f1"]["mean"]) if name not in CONTROLS]
    assert ranked.index("gradtoken") == place[1]
    assert len(ranked) == count
    assert not place[0] or f"GradToken is {place[0]} of {count}" in text


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


def test_the_report_draws_it(rows):
    about, found = read_rationale_results(FILE)
    page = rationale_html(about, found)
    assert all(f"<title>{name}</title>" in page for name in rows)
    assert "<b>94.5 %</b>accuracy" in page
    assert ">False<" not in page


def test_training_manifest_matches_the_classifier(rows):
    entry = json.loads((ROOT / "training" / "results" / "movies-manifest.json").read_text())["models"]["movies"]
    assert 100 * entry["accuracy"]["test_top1"] == pytest.approx(92.96, abs=0.01)
    log = (ROOT / "training" / "results" / "movies-log.jsonl").read_text(encoding="utf-8").splitlines()
    verdicts = [json.loads(line) for line in log if '"verdicts"' in line]
    assert max(verdicts, key=lambda v: v["val_accuracy"])["epoch"] == entry["training"]["verdicts"]["kept_epoch"]


def _cell(score):
    return f"{score['mean']:.3f} ± {(score['high'] - score['low']) / 2:.3f}".replace("-", "−")
