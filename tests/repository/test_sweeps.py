"""The table of model families: its definitions, and the counts that the studies' README states."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "studies" / "results" / "sweep-families.csv"


@pytest.fixture(scope="module")
def sweep():
    sys.path.insert(0, str(ROOT / "studies"))
    try:
        import sweep_counts
    finally:
        sys.path.pop(0)
    return sweep_counts


def family(**columns):
    return {"family": "new", "task": "vision", "recognised": "plain", "works": "rollout", "padding": "yes", **columns}


def test_readme_counts_agree_with_the_table(sweep):
    with TABLE.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == sweep.FIELDS
    for row in table:
        assert row["softmax attention"] == str(sweep.is_softmax_classifier(row)), row["family"]
        assert row["fully working"] == str(sweep.is_fully_working(row)), row["family"]
    assert f"**{sweep.counts(table)}.**" in (ROOT / "studies" / "README.md").read_text(encoding="utf-8")


def test_a_family_that_is_not_recognised_counts_unless_its_architecture_is_named(sweep):
    assert sweep.is_softmax_classifier(family())
    assert sweep.is_softmax_classifier(family(recognised="parallel"))
    assert not sweep.is_fully_working(family(recognised="parallel"))
    assert not sweep.is_softmax_classifier(family(family="resnet", recognised="none"))
    assert not sweep.is_softmax_classifier(family(task="seq2seq"))
    assert not sweep.is_softmax_classifier(family(recognised=""))


@pytest.mark.parametrize("fault", [{"missing": "lrp"}, {"failed": "lrp (TypeError)"}, {"padding": "no: differs"}])
def test_one_fault_is_enough_not_to_be_fully_working(sweep, fault):
    assert sweep.is_fully_working(family())
    assert not sweep.is_fully_working(family(**fault))
    assert sweep.is_wrong(family(**fault)) == ("padding" in fault)


def test_a_family_without_a_known_answer_is_not_counted_as_right(sweep):
    assert not sweep.is_fully_working(family(padding="not applicable"))
    assert not sweep.is_wrong(family(padding="not applicable"))
