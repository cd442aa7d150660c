"""Entries of the leaderboard: written from a run, reproduced, and refused where they do not hold."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from vitrail.bench.leaderboard import check_entry, read_entry, render_entry, write_entries
from vitrail.bench.run import run_plan
from vitrail.cli.app import app
from vitrail.errors import DataError

pytest.importorskip("polars")
pytest.importorskip("pydantic")

pytestmark = pytest.mark.slow

PLAN = """
name = "entry"
models = ["scenes"]
methods = ["rollout", "smoothgrad:samples=2"]
protocols = ["pointing"]
dataset = { name = "scenes", options = { split = "test", count = 6, objects = 1 } }
"""


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    run = run_plan(folder / "plan.toml", folder / "runs")
    return write_entries(run.folder, folder / "entries")


def changed(path, tmp_path, **fields):
    entry = read_entry(path) | fields
    (tmp_path / "changed.toml").write_text(render_entry(entry), encoding="utf-8")
    return tmp_path / "changed.toml"


def test_entries_are_reproduced_with_the_seeds_of_the_run(entries):
    assert [path.name for path in entries] == [
        "scenes--scenes--rollout.toml",
        "scenes--scenes--smoothgrad-samples-2.toml",
    ]
    for path in entries:
        count, mismatches = check_entry(path)
        assert not mismatches
        sample = read_entry(path)["sample"]
        assert len(sample) == 4
        assert count == sum(len(one["scores"]) for one in sample) >= 4 * 5
    entry = read_entry(entries[0])
    (hits,) = (row for row in entry["values"] if row["score"] == "hit@0")
    assert (hits["direction"], hits["images"]) == ("up", 6)
    assert hits["interval"][0] <= hits["value"] <= hits["interval"][1]
    assert len(entry["manifest"]) == len(entry["weights"]) == 64


def test_what_does_not_reproduce_is_refused(entries, tmp_path):
    entry = read_entry(entries[0])
    first, *rest = entry["sample"]
    wrong = [*first["scores"][0][:3], first["scores"][0][3] + 0.5]
    sample = [first | {"scores": [wrong, *first["scores"][1:]]}, *rest]
    path = changed(entries[0], tmp_path, sample=sample)
    result = CliRunner().invoke(app, ["leaderboard", "check", str(path), str(entries[0])], catch_exceptions=False)
    assert result.exit_code == 1
    assert "1 of 2 entries reproduced, 1 refused" in result.output
    (mismatch,) = check_entry(path)[1]
    assert first["image"] in str(mismatch)
    (weights,) = check_entry(changed(entries[0], tmp_path, weights="0" * 64))[1]
    assert weights.what == "SHA-256 of the weights"
    other = next(name for name in (f"test-0-128-1-{i:06d}" for i in range(6)) if name not in str(entry["sample"]))
    (images,) = check_entry(changed(entries[0], tmp_path, sample=[first | {"image": other}, *rest]))[1]
    assert images.what == "images of the sample", "the author does not choose the images"
    (images,) = check_entry(changed(entries[0], tmp_path, sample=rest))[1]
    assert images.what == "images of the sample"
    (left_out,) = check_entry(changed(entries[0], tmp_path, sample=[first | {"scores": first["scores"][1:]}, *rest]))[1]
    assert (left_out.stated, left_out.found) == (None, first["scores"][0][3])


def test_values_that_the_sample_contradicts_are_refused(entries, tmp_path):
    values = read_entry(entries[0])["values"]
    (position,) = (i for i, row in enumerate(values) if row["score"] == "energy")
    honest = values[position]
    forged = honest | {"value": honest["value"] + 5, "interval": [x + 5 for x in honest["interval"]]}
    path = changed(entries[0], tmp_path, values=[*values[:position], forged, *values[position + 1 :]])
    (mismatch,) = check_entry(path)[1]
    assert mismatch.what == f"mean of {honest['protocol']} {honest['target']} energy"
    assert mismatch.stated == forged["value"]
    (mismatch,) = check_entry(changed(entries[0], tmp_path, images=50_000))[1]
    assert (mismatch.what, mismatch.stated, mismatch.found) == ("number of images", 50_000, 6)


def test_malformed_entries_are_named(entries, tmp_path):
    (tmp_path / "a.toml").write_text("model = ", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read as TOML"):
        read_entry(tmp_path / "a.toml")
    with pytest.raises(DataError, match="images missing or of another type"):
        read_entry(changed(entries[0], tmp_path, images="six"))
    values = [row | {"interval": [2.0, 3.0]} for row in read_entry(entries[0])["values"]]
    wrong = [values, [{"protocol": "x"}], [values[0] | {"value": "high"}], [values[0] | {"interval": [1.0]}]]
    for rows in wrong:
        with pytest.raises(DataError, match="no score with an interval around its value"):
            read_entry(changed(entries[0], tmp_path, values=rows))
    for sample in ([{"image": "x"}], [{"image": "x", "scores": [["a", "b", 1.0]]}], [{"image": "x", "scores": [1]}]):
        with pytest.raises(DataError, match="a sample has an image"):
            read_entry(changed(entries[0], tmp_path, sample=sample))
    for plan in ("{", "[1]", "{}", '{"models": 3}'):
        with pytest.raises(DataError, match="its plan cannot be read"):
            check_entry(changed(entries[0], tmp_path, plan=plan))
    files = [str(tmp_path / name) for name in ("missing.toml", "a.toml", "changed.toml")]
    result = CliRunner().invoke(app, ["leaderboard", "check", *files, str(entries[0])], catch_exceptions=False)
    assert result.exit_code == 1
    assert "1 of 4 entries reproduced, 3 refused" in result.output
    assert all(name in result.output for name in files)


def test_rendered_entries_are_toml():
    entry = {"plan": '{"a": "b"}', "n": 2, "values": [{"score": "é", "interval": [1.5, 2.0]}]}
    assert tomllib.loads(render_entry(entry)) == entry
