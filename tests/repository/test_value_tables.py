"""Joined results of studies keep what a second run did not measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

STUDIES = Path(__file__).resolve().parents[2] / "studies"


def test_rows_and_scores_of_other_methods_stay(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))
    import value_tables

    def result(method: str, value: float) -> dict[str, object]:
        row = {"images": 2, "mean": [value, value, value]}
        return {"model": "m", "manifest": {"pets": 2, "methods": [method]}, "mIoU": {method: row},
                "checks": {method: {"faithful": 2}}, "scores": {"saco": {method: row}}}  # fmt: skip

    path = tmp_path / "m-1.json"
    value_tables.save_result(path, result("first", 0.5), {"saco": {"first": [0.4, 0.6]}})
    value_tables.save_result(path, result("second", 0.25), {"saco": {"second": [0.2, 0.3]}})
    value_tables.save_result(path, result("second", 0.75), {"saco": {"second": [0.7, 0.8]}})
    found = json.loads(path.read_text(encoding="utf-8"))
    for rows in (found["mIoU"], found["scores"]["saco"]):
        assert {name: row["mean"][0] for name, row in rows.items()} == {"first": 0.5, "second": 0.75}
    assert set(found["checks"]) == {"first", "second"}
    assert found["manifest"]["methods"] == ["first", "second"]
    values = value_tables.read_values(path.with_suffix(".parquet"))["saco"]
    assert [round(v, 3) for v in values["first"] + values["second"]] == [0.4, 0.6, 0.7, 0.8]
    sys.modules.pop("value_tables")
