"""The committed results of FunnyBirds: scores and intervals follow from the values of each image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "results" / "funnybirds"
PROTOCOLS = (
    "controlled_data_check", "preservation_check", "deletion_check", "distractibility", "single_deletion",
    "target_sensitivity",
)  # fmt: skip


def test_scores_follow_from_the_values_of_each_image():
    content = json.loads((FOLDER / "funnybirds.json").read_text(encoding="utf-8"))
    table = pq.read_table(FOLDER / "funnybirds.parquet").to_pydict()
    methods = np.array(table["method"])
    assert set(methods) == set(content["methods"])
    for method, row in content["methods"].items():
        own = np.array([np.array(table[name], np.float64)[methods == method] for name in PROTOCOLS])
        assert own.shape[1] == row.get("images", content["model"]["images"]), method
        for name, values in zip(PROTOCOLS, own, strict=True):
            if row[name] is None:
                assert np.isnan(values).all(), (method, name)
            else:
                assert np.nanmean(values) == pytest.approx(row[name], abs=2e-5), (method, name)
        if row["mean"] is not None:
            check, keep, delete, calm, single, target = np.nanmean(own, axis=1)
            complete = ((check + keep + delete) / 3 + calm) / 2
            assert complete == pytest.approx(row["completeness"], abs=2e-5)
            assert (complete + single + target) / 3 == pytest.approx(row["mean"], abs=2e-5)
            assert row["low"] <= row["mean"] <= row["high"]
