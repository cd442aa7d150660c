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


def test_runs_on_another_device_are_listed_apart_and_their_rows_have_differences(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))
    import value_tables

    def result(device: str, methods: list[str]) -> dict[str, object]:
        return {"model": "m", "manifest": {"methods": methods, "device": device}, "milliseconds": {"forward": 1.0},
                "scores": {"saco": {method: {"images": 2, "mean": [0.0, 0.0, 0.0]} for method in methods}}}  # fmt: skip

    path, reference = tmp_path / "m-1.json", value_tables.OBJECT
    first = result("gpu", [reference, "second"])
    value_tables.save_result(path, first, {"saco": {reference: [0.4, 0.6], "second": [0.0, 0.0]}})
    again = {**result("cpu", ["second"]), "milliseconds": {"forward": 9.0}}
    found = value_tables.save_result(path, again, {"saco": {"second": [0.7, 0.9]}})
    assert found["scores"]["saco"]["second"]["to_object"] == [0.3, 0.3, 0.3]
    assert found["milliseconds"] == {"forward": 1.0}
    assert found["manifest"] == {**first["manifest"], "elsewhere": [again["manifest"]]}
    sys.modules.pop("value_tables")
