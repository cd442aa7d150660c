"""The committed results of FunnyBirds: scores and intervals follow from the values of each image."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"
PROTOCOLS = (
    "controlled_data_check", "preservation_check", "deletion_check", "distractibility", "single_deletion",
    "target_sensitivity",
)  # fmt: skip


@pytest.mark.parametrize("name", ["funnybirds", "funnybirds_second"])
def test_scores_follow_from_the_values_of_each_image(name):
    folder = RESULTS / name
    content = json.loads((folder / "funnybirds.json").read_text(encoding="utf-8"))
    table = pq.read_table(folder / "funnybirds.parquet").to_pydict()
    methods = np.array(table["method"])
    assert set(methods) == set(content["methods"])
    for method, row in content["methods"].items():
        own = np.array([np.array(table[protocol], np.float64)[methods == method] for protocol in PROTOCOLS])
        assert own.shape[1] == row.get("images", content["model"]["images"]), method
        for protocol, values in zip(PROTOCOLS, own, strict=True):
            if row[protocol] is None:
                assert np.isnan(values).all(), (method, protocol)
            else:
                assert np.nanmean(values) == pytest.approx(row[protocol], abs=2e-5), (method, protocol)
        if row["mean"] is not None:
            check, keep, delete, calm, single, target = np.nanmean(own, axis=1)
            complete = ((check + keep + delete) / 3 + calm) / 2
            assert complete == pytest.approx(row["completeness"], abs=2e-5)
            assert (complete + single + target) / 3 == pytest.approx(row["mean"], abs=2e-5)
            assert row["low"] <= row["mean"] <= row["high"]


def test_columns_of_numbers_are_right_aligned(monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parents[1] / "results"))
    readme = import_module("readme")
    tables = {mark: content for _, mark, content in readme.TABLES}
    for mark in ("funnybirds", "second training", "pairs"):
        (rule,) = (line for line in tables[mark]().splitlines() if line.startswith("|---"))
        first, *numbers = rule.strip("|").split("|")
        assert first == "---"
        assert set(numbers) == {"---:"}, mark
