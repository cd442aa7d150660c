"""The tables of docs/language-model-truth.md are those that the stored results give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from vitrail.data.recall import RECALL_TASKS, draw_recall

pytest.importorskip("polars")
ROOT = Path(__file__).resolve().parents[2]


def script():
    spec = importlib.util.spec_from_file_location("results_recall", ROOT / "results" / "recall.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables_of_the_stored_results():
    recall = script()
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
def test_controls_of_positions_follow_from_the_prompts(task):
    """The later of two sources wins for one control and loses for the other."""
    recall = script()
    for index in range(10):
        for prompt in draw_recall(0, index, task=task, split="test"):
            late, early = (recall.position_scores(prompt, last) for last in (True, False))
            later = sum(prompt.source) / len(prompt.source) > sum(prompt.other_source) / len(prompt.other_source)
            if task != "sum":
                assert (late["share"], early["share"]) == (float(later), float(not later))
            assert late["source"] == 0, "the last word is never the source"
