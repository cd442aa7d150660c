"""A run with lost parts writes the table of its finished parts, and names the others."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.bench.bench_helpers import parts_of_one_image
from vitrail.bench import chunk
from vitrail.bench.engines import LostTasksError
from vitrail.bench.run import run_plan
from vitrail.cli import app as cli

pl = pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

PLAN = parts_of_one_image(4)
#: The second of four parts, each of one image.
LOST = "part-m0-d0-c00001-g00"


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    return tmp_path / "plan.toml"


@pytest.fixture
def losing(monkeypatch):
    """A worker that fails at one part."""
    compute = chunk.Chunk.compute

    def fail(self, device):
        if self.name == LOST:
            raise RuntimeError("out of luck")
        return compute(self, device)

    monkeypatch.setattr(chunk.Chunk, "compute", fail)
    return monkeypatch


def test_finished_parts_are_written_as_a_table(plan, tmp_path, losing):
    with pytest.raises(LostTasksError, match=f"1 of 4 parts could not be computed, {LOST}: RuntimeError: out of luck"):
        run_plan(plan, tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "results.parquet").exists()
    partial = pl.read_parquet(folder / "partial_results.parquet")
    assert pl.read_csv(folder / "partial_results.csv").height == partial.height
    losing.undo()
    store = run_plan(plan, tmp_path / "runs")
    whole = pl.read_parquet(folder / "results.parquet")
    assert partial["image"].n_unique() == whole["image"].n_unique() - 1 == 3
    assert whole.filter(pl.col("image").is_in(partial["image"].implode())).equals(partial)
    assert not list(folder.glob("partial_results.*")), "the whole table replaces them"
    assert store.merge().height == whole.height


def test_nothing_is_written_where_no_part_is_finished(plan, tmp_path, losing):
    losing.setattr(chunk.Chunk, "compute", lambda *_: 1 / 0)
    with pytest.raises(LostTasksError):
        run_plan(plan, tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    assert not list(folder.glob("partial_results.*"))


def test_the_command_names_what_is_missing(plan, tmp_path, losing):
    arguments = ["bench", str(plan), "--out", str(tmp_path / "runs"), "--workers", "1"]
    found = CliRunner().invoke(cli.app, arguments)
    output = " ".join(found.output.split())
    assert found.exit_code == 1
    assert f"missing: {LOST}: RuntimeError: out of luck" in output
    assert "3 of 4 parts are in the tables, 1 could not be computed: run the same command again" in output
    assert "partial_results.csv" in output
    (folder,) = (tmp_path / "runs").iterdir()
    assert "1 of 4 chunks are missing" in (folder / "report.html").read_text(encoding="utf-8")
    losing.undo()
    again = CliRunner().invoke(cli.app, arguments)
    assert again.exit_code == 0
    assert "missing" not in again.output
    assert (folder / "results.csv").is_file()
