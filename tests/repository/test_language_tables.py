"""The tables of docs/language-model-truth.md are those that the stored results give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from vitrail.data.recall import RECALL_TASKS, draw_recall

pytest.importorskip("polars")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recall(monkeypatch):
    """The script results/recall.py, which is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    spec = importlib.util.spec_from_file_location("results_recall", ROOT / "results" / "recall.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["recall", "worlds"])
def test_rows_of_the_tables_are_those_of_the_stored_values(name, recall, tmp_path):
    import example_values

    values = example_values.read_values(ROOT / "results" / f"{name}.parquet")
    stored = {tuple(row[k] for k in example_values.KEYS): row for row in recall.read_rows(ROOT / f"results/{name}.csv")}
    assert len(values) > 50
    for key, own in values.items():
        found = example_values.mean_row(key, own)
        assert [float(stored[key][k]) for k in ("examples", "mean", "low", "high")] == [
            found[k] for k in ("examples", "mean", "low", "high")
        ], key
    # Controls of positions are computed from the prompts.
    without = set(recall.POSITIONS) if name == "recall" else set()
    assert {key[2] for key in stored if key not in values} == without
    first = next(iter(values))
    second = next(key for key in values if key[:3] != first[:3])
    example_values.add_values(tmp_path / "two.parquet", {key: values[key] for key in (first, second)})
    example_values.add_values(tmp_path / "two.parquet", {first: values[first][:3]})
    again = example_values.read_values(tmp_path / "two.parquet")
    assert (again[first] == values[first][:3]).all(), "a later run replaces the values of its methods"
    assert (again[second] == values[second]).all(), "values of other methods stay"


def test_the_page_has_the_tables_of_the_stored_results(recall):
    rows, needles = recall.read_rows(ROOT / "results" / "recall.csv"), recall.read_rows(recall.NEEDLES)
    page = recall.PAGE.read_text(encoding="utf-8")
    tables = recall.tables(rows, needles)
    assert tables
    for name, table in tables.items():
        assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in page, name


def test_the_manifest_names_the_plan_and_the_weights():
    manifest = json.loads((ROOT / "results" / "recall-manifest.json").read_text(encoding="utf-8"))
    assert "lm_recall" in manifest
    assert manifest["lm_recall"]["plan"]["models"][0]["name"] == "lm-recall"


@pytest.mark.parametrize("task", RECALL_TASKS)
def test_controls_of_positions_follow_from_the_prompts(task, recall):
    """The later of two sources wins for one control and loses for the other."""
    for index in range(10):
        for prompt in draw_recall(0, index, task=task, split="test"):
            late, early = (recall.position_scores(prompt, last) for last in (True, False))
            later = sum(prompt.source) / len(prompt.source) > sum(prompt.other_source) / len(prompt.other_source)
            if task != "sum":
                assert (late["share"], early["share"]) == (float(later), float(not later))
            assert late["source"] == 0, "the last word is never the source"
