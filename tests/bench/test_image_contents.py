"""Images that are replaced under the same name are explained again when a folder is resumed."""

from __future__ import annotations

import io
import os
import tarfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import vitrail
from vitrail.bench import folder_chunk
from vitrail.bench.folder import explain_folder
from vitrail.bench.folder_overlays import draw_folder
from vitrail.cli import app as cli
from vitrail.errors import InputError

pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

NAMES = ("a.png", "b.png", "c.png")


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    for seed, name in enumerate(NAMES):
        picture(seed).save(tmp_path / "in" / name)
    return tmp_path / "in"


def explained(source, out):
    """Maps by image, the names of the parts that were computed, and the images that were replaced."""
    done, replaced = [], []
    options = {"methods": ["rollout"], "chunk": 2, "done": lambda task: done.append(task.name)}
    explain_folder(source, out, replaced=replaced.extend, **options)
    maps = vitrail.open_maps(out)
    return {name: maps.read(name) for name in maps.ids}, done, replaced


def later(path):
    """Move the time of a file by a second, as if it had been written again."""
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10**9))


def test_a_replaced_image_is_explained_again(folder, tmp_path):
    before, _, _ = explained(folder, tmp_path / "out")
    picture(9).save(folder / "a.png")
    later(folder / "a.png")
    after, done, replaced = explained(folder, tmp_path / "out")
    assert (done, replaced) == (["part-00000"], ["a.png"])
    assert not before["a.png"].equal(after["a.png"])
    assert all(before[name].equal(after[name]) for name in NAMES[1:])
    assert after["a.png"].equal(explained(folder, tmp_path / "fresh")[0]["a.png"])
    assert explained(folder, tmp_path / "out")[1:] == ([], [])


def test_an_image_with_another_time_and_the_same_content_is_kept(folder, tmp_path):
    explained(folder, tmp_path / "out")
    later(folder / "a.png")
    assert explained(folder, tmp_path / "out")[1:] == ([], [])


def test_overlays_of_a_replaced_image_are_drawn_again(folder, tmp_path):
    explained(folder, tmp_path / "out")
    draw_folder(tmp_path / "out")
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "out" / "overlays").rglob("a.png*.jpg")}
    assert drawn
    picture(9).save(folder / "a.png")
    later(folder / "a.png")
    explained(folder, tmp_path / "out")
    draw_folder(tmp_path / "out")
    assert all(path.read_bytes() != drawn[path.name] for path in (tmp_path / "out" / "overlays").rglob("a.png*.jpg"))


def test_a_replaced_image_that_cannot_be_explained_has_no_stale_map(folder, tmp_path, monkeypatch):
    explained(folder, tmp_path / "out")
    picture(9).save(folder / "a.png")
    later(folder / "a.png")

    def fail(self, device):
        msg = "no"
        raise RuntimeError(msg)

    monkeypatch.setattr(folder_chunk.FolderChunk, "compute", fail)
    with pytest.raises(InputError, match=r"a\.png has no map by rollout: RuntimeError: no"):
        explained(folder, tmp_path / "out")
    monkeypatch.undo()
    assert explained(folder, tmp_path / "out")[1] == ["part-00000"]


def test_a_store_without_contents_goes_by_the_times_of_its_files(folder, tmp_path, monkeypatch):
    """Stores of earlier versions do not know what they explained: files newer than their part were replaced."""
    monkeypatch.setattr(folder_chunk, "explained_contents", lambda *_: None)
    explained(folder, tmp_path / "out")
    assert explained(folder, tmp_path / "out")[1:] == ([], [])
    monkeypatch.undo()
    assert explained(folder, tmp_path / "out")[1:] == ([], [])
    picture(9).save(folder / "c.png")
    later(folder / "c.png")
    assert explained(folder, tmp_path / "out")[1:] == (["part-00001"], ["c.png"])


def test_a_shard_with_a_replaced_image(folder, tmp_path):
    def write(seeds):
        with tarfile.open(tmp_path / "shard.tar", "w") as tar:
            for name, seed in zip(NAMES, seeds, strict=True):
                data = io.BytesIO()
                picture(seed).save(data, "BMP")  # the same size for every image
                entry = tarfile.TarInfo(name.replace("png", "bmp"))
                entry.size = data.tell()
                data.seek(0)
                tar.addfile(entry, data)

    write((0, 1, 2))
    before, done, _ = explained(tmp_path / "shard.tar", tmp_path / "out")
    write((0, 1, 2))
    later(tmp_path / "shard.tar")
    assert explained(tmp_path / "shard.tar", tmp_path / "out")[1:] == ([], [])
    write((0, 1, 9))
    later(tmp_path / "shard.tar")
    later(tmp_path / "shard.tar")
    after, again, replaced = explained(tmp_path / "shard.tar", tmp_path / "out")
    assert (again, [name.endswith("c.bmp") for name in replaced]) == (done[1:], [True])
    assert [before[name].equal(after[name]) for name in before] == [True, True, False]


def test_the_command_says_which_images_were_replaced(folder, tmp_path):
    arguments = ["explain", str(folder), "--out", str(tmp_path / "out"), "--workers", "1", "--method", "rollout"]
    assert "replaced" not in CliRunner().invoke(cli.app, arguments).output
    picture(9).save(folder / "b.png")
    later(folder / "b.png")
    output = " ".join(CliRunner().invoke(cli.app, arguments).output.split())
    assert "1 image was replaced since it was explained, and is explained again with its part: b.png" in output
