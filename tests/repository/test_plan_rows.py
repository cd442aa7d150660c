"""Rows of plans are computed from values of images, which are kept; later runs of other methods keep both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pl = pytest.importorskip("polars")
STUDIES = Path(__file__).resolve().parents[2] / "studies"
#: Pixels of object and background in each of two images.
OBJECT, BACKGROUND = 4.0, 12.0


@pytest.fixture
def studies(monkeypatch, tmp_path):
    """Modules of the studies, with results in a temporary folder."""
    monkeypatch.syspath_prepend(str(STUDIES))
    import plan_rows
    import recompute

    monkeypatch.setattr(recompute, "RESULTS", tmp_path)
    yield plan_rows, recompute
    recomputed = (f"recomputed_{name}" for name in ("maps", "protocols", "scores"))
    for name in ("plan_rows", "plan_values", "recompute", *recomputed):
        sys.modules.pop(name)


def write_run(folder: Path, method: str, found: tuple[float, float], name: str = "results.parquet") -> Path:
    """A run of two images: a method finds some object pixels at the mean of its map, and no background."""
    folder.mkdir()
    key = f"{method} {found}"
    (folder / "manifest.json").write_text(json.dumps({"plan": {"name": "ablations"}, "key": key, "device": "cpu"}))
    rows = []
    for image, true in enumerate(found):
        scores = {"foreground": OBJECT, "background": BACKGROUND, "ap": 0.25 + image / 2, "ap_foreground": 0.5,
                  "auroc": 0.5, "flat": 0.0}  # fmt: skip
        scores |= {f"true/{k}": true for k in range(11)} | {f"false/{k}": 0.0 for k in range(11)}
        rows += [
            {"model": "vit-t", "dataset": "pets", "image": f"image {image}", "method": method, "target": "predicted",
             "protocol": "segmentation", "score": score, "value": value, "explained": 1, "error": None}
            for score, value in scores.items()
        ]  # fmt: skip
    pl.DataFrame(rows, schema_overrides={"error": pl.String}).write_parquet(folder / name)
    return folder


def collect(plan_rows, monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["plan_rows.py", *map(str, words)])
    plan_rows.main()


def compared(recompute, table: str) -> dict[str, bool | None]:
    """Whether each row is the same again; None without values."""
    rows = recompute.TABLES[table](recompute.RESULTS)
    return {what: None if again is None else recompute.is_same(own, again) for what, own, again in rows}


def test_rows_are_computed_from_values_that_are_kept(studies, tmp_path, monkeypatch):
    plan_rows, recompute = studies
    out = tmp_path / "paper-tables.json"
    out.write_text('{"manifest": {"other": {}}, "rows": {"other": []}}')
    first = write_run(tmp_path / "first", "vtranm", (4.0, 2.0))
    collect(plan_rows, monkeypatch, first, "--out", out)
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert rows.keys() == {"other", "ablations"}
    by_score = {row["score"]: row for row in rows["ablations"]}
    # 6 of 8 object pixels, and all of 24 background pixels beside the 2 that are missed.
    assert by_score["miou"]["value"] == pytest.approx(100 * (6 / 8 + 24 / 26) / 2, abs=1e-4)
    assert (by_score["map"]["value"], by_score["map"]["images"], by_score["map"]["model"]) == (50.0, 2, "vit-t")
    second = write_run(tmp_path / "second", "gradtoken", (1.0, 1.0), "scores-vit-t.parquet")
    collect(plan_rows, monkeypatch, second, "--out", out)
    content = json.loads(out.read_text(encoding="utf-8"))
    assert [row for row in content["rows"]["ablations"] if row["method"] == "vtranm"] == rows["ablations"]
    assert [one["run"] for one in content["manifest"]["ablations"]["earlier"]] == ["vtranm (4.0, 2.0)"]
    found = compared(recompute, "paper-tables")
    assert len(found) == 2 * len(rows["ablations"])
    assert set(found.values()) == {True}


def test_a_changed_value_or_number_is_named(studies, tmp_path, monkeypatch):
    plan_rows, recompute = studies
    out = tmp_path / "ablations-pets.json"
    for name, found in (("vtranm", (4.0, 2.0)), ("gradtoken", (1.0, 1.0))):
        collect(plan_rows, monkeypatch, write_run(tmp_path / name, name, found), "--by-method", "--out", out)
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["rows"].keys() == {"vtranm", "gradtoken"}
    assert content["rows"]["vtranm"]["map"] == pytest.approx(0.5)
    assert content["manifest"]["images"] == 2
    assert set(compared(recompute, "ablations").values()) == {True}
    path = tmp_path / "ablations-pets-vit-t.parquet"
    table = pl.read_parquet(path)
    changed = (pl.col("score") == "ap") & (pl.col("method") == "vtranm")
    table.with_columns(pl.when(changed).then(pl.col("value") + 0.001).otherwise("value").alias("value")).write_parquet(
        path
    )
    differ = {what for what, same in compared(recompute, "ablations").items() if not same}
    assert differ == {"vtranm map", "vtranm map_interval"}
    table.filter(pl.col("method") != "vtranm").write_parquet(path)
    without = {what.split()[0] for what, same in compared(recompute, "ablations").items() if same is None}
    assert without == {"vtranm"}


def test_rows_of_another_number_of_images_are_not_mixed(studies, tmp_path, monkeypatch):
    plan_rows, _ = studies
    out = tmp_path / "ablations-pets.json"
    out.write_text('{"manifest": {"images": 300, "model": "vit_tiny"}, "rows": {"vtranm": {"miou": 0.5}}}')
    run = write_run(tmp_path / "run", "gradtoken", (1.0, 1.0))
    with pytest.raises(SystemExit, match="has rows with images 300, this run 2"):
        collect(plan_rows, monkeypatch, run, "--by-method", "--out", out)
    assert not (tmp_path / "ablations-pets-vit-t.parquet").exists()


def test_a_row_without_a_model_is_replaced(studies):
    plan_rows, _ = studies
    names = {"dataset": "d", "protocol": "p", "target": "t", "score": "s"}
    before = [{**names, "method": method, "value": 1.0} for method in ("first", "second")]
    new = [{"model": "m", **names, "method": "first", "value": 2.0}]
    assert plan_rows.plan_values.joined_rows(before, new) == [before[1], *new]
    other = [{"model": "n", **names, "method": "first", "value": 3.0}]
    assert plan_rows.plan_values.joined_rows(new, other) == [*new, *other], "rows of other models stay"


def test_a_plan_without_controls_can_be_run_without_them(studies, tmp_path):
    import tomllib

    import run_plan

    path = run_plan.with_methods(str(STUDIES / "plans" / "ablations.toml"), ["vtranm"], tmp_path / "run", False)
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    assert (plan["methods"], plan["controls"], plan["name"]) == (["vtranm"], False, "ablations")
    sys.modules.pop("run_plan")
