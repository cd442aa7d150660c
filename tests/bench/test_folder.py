"""Explaining a folder of images: index, maps, resuming, the command."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import vitrail
from vitrail.bench import folder_chunk, folder_page
from vitrail.bench.folder import explain_folder, read_map
from vitrail.bench.folder_overlays import draw_folder
from vitrail.bench.folder_page import write_folder_page
from vitrail.cli import app as cli
from vitrail.data.decoding import ImageDecoder
from vitrail.data.scenes import render
from vitrail.data.source import FileSource, SourceItem
from vitrail.errors import DataError
from vitrail.models.preprocess import Preprocess

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
    assert first.exit_code == 1, "a broken file is counted in the exit status"
    assert "2 of 3 images explained, 1 failed" in first.output.splitlines()[-1]
    assert "toy model" in first.output
    assert set(pl.read_parquet(tmp_path / "out" / "index.parquet")["image"]) == {"a.png", "b.jpg", "broken.png"}
    name = pl.read_parquet(tmp_path / "out" / "index.parquet")["name"].drop_nulls()[0]
    (photos / "broken.png").unlink()
    second = CliRunner().invoke(cli.app, [*call, "--recursive", "--target", name, "--target", "1", "--original"])
    assert second.exit_code == 0, second.output
    assert "3 of 3 images explained, 0 failed" in second.output.splitlines()[-1]
    index = pl.read_parquet(tmp_path / "out" / "index.parquet")
    assert len(index.filter(pl.col("image") == "deep/c.png")) == 2
    assert Image.open(tmp_path / "out" / "overlays" / "deep" / "c.png.rollout-1.jpg").size == (128, 128)
    assert Image.open(tmp_path / "out" / "overlays" / "deep" / "c.png.rollout-1.original.jpg").size == (90, 70)
    wrong = CliRunner().invoke(cli.app, [*call, "--target", "no-such-class"])
    assert "no class is called" in str(wrong.exception)
    several = CliRunner().invoke(cli.app, ["explain", str(photos), str(photos / "a.png")])
    assert "pass one folder alone, or image files" in str(several.exception)


def test_page_shows_every_image_and_escapes_names(photos, tmp_path, monkeypatch):
    odd = "100% #1 <b>.png"
    (photos / "a.png").rename(photos / odd)
    out = tmp_path / "out"
    explain_folder(photos, out, methods=["rollout", "raw_attention"], target="top2")
    done = []
    draw_folder(out, done=done.append)
    draw_folder(out, done=done.append)
    assert len(done) == 1, "finished parts are not drawn again"
    summary = write_folder_page(out, ("A note.",))
    assert (summary.images, list(summary.failures)) == (3, ["broken.png"])
    page = summary.page.read_text()
    assert "<b>.png" not in page
    assert "100% #1 &lt;b&gt;.png" in page
    assert "A note." in page
    assert "1 of 3 images failed" in page
    assert "http" not in page, "the page loads nothing"
    sources = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(sources) == 2 * (2 * 4 + 1), "for two images: a thumbnail, four overlays and their links"
    for source in sources:
        assert (out / unquote(unescape(source))).is_file()
    monkeypatch.setattr(folder_page, "PAGE_SIZE", 1)
    write_folder_page(out)
    assert 'href="index-3.html"' in summary.page.read_text()
    assert "b.jpg.rollout-0.jpg" in (out / "index-2.html").read_text()


def test_overlays_of_a_folder_are_those_of_explain(tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(render(0, 1).image).save(tmp_path / "in" / "scene.png")
    explain_folder(tmp_path / "in", tmp_path / "out", methods=["gradtoken", "attcat"])
    draw_folder(tmp_path / "out")
    explanations = vitrail.explain(
        vitrail.load("scenes"), tmp_path / "in" / "scene.png", methods=["gradtoken", "attcat"]
    )
    assert explanations["attcat"].signed != explanations["gradtoken"].signed
    for method, one in explanations.items():
        drawn = np.asarray(Image.open(tmp_path / "out" / "overlays" / f"scene.png.{method}-0.jpg"), float)
        assert np.abs(drawn - np.asarray(one.overlay(), float)).mean() < 3, "up to JPEG and half precision"


@pytest.mark.slow
def test_overlays_of_a_list_in_any_order_are_all_drawn(tmp_path):
    names = ["c.png", "a.png", "d.png", "b.png"]
    for i, name in enumerate(names):
        Image.fromarray(render(i, 1).image).save(tmp_path / name)
    (tmp_path / "list.csv").write_text("\n".join(["file", *names]), encoding="utf-8")
    explain_folder(tmp_path / "list.csv", tmp_path / "out", methods=["rollout"], chunk=2)
    done = []
    draw_folder(tmp_path / "out", done=done.append)
    assert len(done) == 2, "one for each part"
    assert {path.name[:5] for path in (tmp_path / "out" / "overlays").glob("*.rollout-0.jpg")} == set(names)


@pytest.mark.slow
def test_maps_of_settings_whose_run_was_killed_are_not_taken_for_those_of_others(photos, tmp_path, monkeypatch):
    """The second run is killed between its two files: its maps replaced those of the first, its rows did not."""
    maps = tmp_path / "out" / "parts" / "part-00000.safetensors"
    index = explain_folder(photos, tmp_path / "out", methods=["rollout"], target="cog")
    first = index.read_bytes(), maps.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_chunk, "write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            explain_folder(photos, tmp_path / "out", methods=["rollout"], target="kite")
    assert maps.read_bytes() != first[1]
    explain_folder(photos, tmp_path / "out", methods=["rollout"], target="cog")
    assert (index.read_bytes(), maps.read_bytes()) == first


@pytest.mark.slow
def test_parts_that_were_not_reached_have_the_reason(photos, tmp_path, monkeypatch):
    (photos / "broken.png").unlink()
    for name in "defg":
        (photos / f"{name}.png").write_bytes((photos / "a.png").read_bytes())

    def fail(*_):
        raise RuntimeError("no such kernel")

    with monkeypatch.context() as patch:
        patch.setattr(folder_chunk, "explain_rows", fail)
        table = pl.read_parquet(explain_folder(photos, tmp_path / "out", methods=["rollout"], chunk=1))
    errors = dict(zip(table["image"], table["error"], strict=True))
    assert errors["a.png"] == errors["b.jpg"] == "RuntimeError: no such kernel"
    assert errors["g.png"] == "it was not computed, because the parts before it failed"
    assert len(errors) == 6
    table = pl.read_parquet(explain_folder(photos, tmp_path / "out", methods=["rollout"], chunk=1))
    assert table["error"].null_count() == 6


@pytest.mark.slow
def test_part_that_other_settings_overwrote_meanwhile_is_named(photos, tmp_path):
    class Overtaken:
        def run(self, tasks, _done):
            for task in tasks:
                task.perform("cpu")
            explain_folder(photos, tmp_path / "out", methods=["rollout"], target="kite", chunk=9)

    index = explain_folder(photos, tmp_path / "out", methods=["rollout"], target="cog", chunk=9, engine=Overtaken())
    assert set(pl.read_parquet(index)["error"]) == {
        "another run with other settings wrote to the same folder meanwhile: use a folder for each"
    }


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        draw_folder(tmp_path)


@pytest.mark.slow
def test_images_decoded_ahead_in_processes_give_the_same_index(photos, tmp_path, monkeypatch):
    """As on a GPU: images are read ahead, decoded in processes and joined to batches before they are needed."""
    options = {"recursive": True, "methods": ["rollout"], "chunk": 3, "batch": 2}
    expected = explain_folder(photos, tmp_path / "here", **options)
    decoder = ImageDecoder(1, start_after=0)
    decoder(FileSource(), [SourceItem("a.png", str(photos / "a.png"))], Preprocess((32, 32)))
    assert decoder._ready.wait(300)
    monkeypatch.setattr(folder_chunk, "ImageDecoder", lambda _: decoder)
    monkeypatch.setattr(folder_chunk.FolderChunk, "_reads_ahead", lambda *_: True)
    found = explain_folder(photos, tmp_path / "ahead", **options)
    decoder.close()
    assert decoder._decoded == 1 + 4
    assert found.read_bytes() == expected.read_bytes()
    assert all(path.read_bytes() == (tmp_path / "here" / "parts" / path.name).read_bytes()
               for path in (tmp_path / "ahead" / "parts").glob("*.safetensors"))  # fmt: skip
