"""Explaining a folder of images: index, maps, resuming, the command."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from vitrail.bench.folder import explain_folder, read_map
from vitrail.cli import app as cli

pl = pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for i, name in enumerate(("a.png", "b.jpg", "deep/c.png")):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (70, 90, 3), np.uint8)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "broken.png").write_bytes(b"not an image")
    return tmp_path / "in"


def test_folder_is_explained_and_indexed(photos, tmp_path):
    done = []
    options = {
        "recursive": True,
        "methods": ["rollout", "gradtoken"],
        "target": "top2",
        "chunk": 3,
        "done": done.append,
    }
    index = explain_folder(photos, tmp_path / "out", **options)
    table = pl.read_parquet(index)
    assert len(done) == 2
    assert table.filter(pl.col("error").is_not_null())["image"].unique().to_list() == ["broken.png"]
    good = table.filter(pl.col("image") == "deep/c.png", pl.col("method") == "gradtoken").sort("probability").to_dicts()
    assert len(good) == 2
    assert good[0]["probability"] < good[1]["probability"]
    assert read_map(tmp_path / "out", good[1]).shape == (16, 16)
    assert table.filter(pl.col("offset") >= 0).group_by("part", "method", "offset").len()["len"].max() == 1
    before = index.read_bytes()
    explain_folder(photos, tmp_path / "out", **options)
    assert len(done) == 2, "finished parts are skipped"
    assert index.read_bytes() == before


def test_command_explains_a_folder(photos, tmp_path):
    call = ["explain", str(photos), "--out", str(tmp_path / "out"), "--workers", "1", "--method", "rollout"]
    first = CliRunner().invoke(cli.app, call)
    assert first.exit_code == 0, first.output
    assert set(pl.read_parquet(tmp_path / "out" / "index.parquet")["image"]) == {"a.png", "b.jpg", "broken.png"}
    name = pl.read_parquet(tmp_path / "out" / "index.parquet")["name"].drop_nulls()[0]
    second = CliRunner().invoke(cli.app, [*call, "--recursive", "--target", name, "--target", "1"])
    assert second.exit_code == 0, second.output
    index = pl.read_parquet(tmp_path / "out" / "index.parquet")
    assert len(index.filter(pl.col("image") == "deep/c.png")) == 2
    wrong = CliRunner().invoke(cli.app, [*call, "--target", "no-such-class"])
    assert "no class is called" in str(wrong.exception)
    several = CliRunner().invoke(cli.app, ["explain", str(photos), str(photos / "a.png")])
    assert "give one folder, or image files" in str(several.exception)
