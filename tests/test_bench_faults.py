"""What goes wrong in a run is a row with its reason, or told at once; what is done stays whole."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch
from PIL import Image

from benching import ONE, base, store_of, table_bytes  # noqa: F401 - a fixture
from vitrail.bench import explainer as explaining
from vitrail.bench import ground_truth as truth
from vitrail.bench import parts
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.results_store import failures
from vitrail.errors import DataError, OutputError

pl = pytest.importorskip("polars")


def test_a_damaged_part_is_done_again(base):  # noqa: F811
    store, before = base
    chunk = store.chunks[0]
    chunk.path.write_bytes(chunk.path.read_bytes()[:-9])
    assert store.missing() == [chunk]
    other = store.chunks[1]
    whole = other.path.read_bytes()
    other.path.write_bytes(store.chunks[2].path.read_bytes())
    assert store.missing() == [chunk, other], "a part of another chunk is not this one's"
    other.path.write_bytes(whole)
    LocalEngine(1).run(store.missing())
    assert table_bytes(store) == before


def test_pictures_and_methods_that_fail_are_rows_with_the_reason(tmp_path, monkeypatch):
    store = store_of(ONE.replace("SEED", "1"), tmp_path, tmp_path)
    ids, read, explain = store.stage.pictures(0).ids, truth.read_ground_truth, explaining.explain

    def broken(dataset, index):
        if index == 1:
            raise DataError("x.jpg cannot be read: damaged")
        return read(dataset, index)

    def choosy(model, images, *, methods, **rest):
        if "gradtoken" in methods and (images == third).flatten(1).all(1).any():
            raise RuntimeError("no relevance today\nand more")
        return explain(model, images, methods=methods, **rest)

    third = truth.prepare_ground_truth(store.stage.pictures(0).dataset, 2, store.stage.model(0).view, True).image[None]
    monkeypatch.setattr(truth, "read", broken)
    monkeypatch.setattr(explaining, "explain", choosy)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    bad = {(r["image"], r["method"]): r["error"] for r in table.filter(pl.col("error").is_not_null()).to_dicts()}
    damaged, failed = "x.jpg cannot be read: damaged", "RuntimeError: no relevance today"
    assert bad == {(ids[1], "rollout"): damaged, (ids[1], "gradtoken"): damaged, (ids[2], "gradtoken"): failed}
    assert set(failures(table)["error"]) == {damaged, failed}
    good = table.filter(pl.col("protocol") == "segmentation", pl.col("error").is_null(), pl.col("score") == "ap")
    assert sorted(zip(good["image"], good["method"], strict=True)) == sorted(
        [(ids[0], "rollout"), (ids[0], "gradtoken"), (ids[2], "rollout"), (ids[3], "rollout"), (ids[3], "gradtoken")]
    )


def test_out_of_memory_halves_the_batch_and_goes_on(tmp_path, monkeypatch):
    plain = store_of(ONE.replace("SEED", "2"), tmp_path / "a", tmp_path)
    LocalEngine(1).run(plain.missing())
    short = store_of(ONE.replace("SEED", "2"), tmp_path / "b", tmp_path)
    explain, seen = explaining.explain, []

    def greedy(*args, batch_size, **rest):
        seen.append(batch_size)
        if batch_size > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return explain(*args, batch_size=batch_size, **rest)

    monkeypatch.setattr(explaining, "explain", greedy)
    LocalEngine(1).run(short.missing())
    assert seen[:3] == [4, 2, 1]
    assert set(seen[3:]) == {1}
    a, b = plain.merge(), short.merge()
    same = pl.exclude("value", "seconds", "forwards", "memory")
    assert a.select(same).equals(b.select(same))
    assert np.allclose(a["value"], b["value"], rtol=1e-2, atol=20, equal_nan=True)


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission is denied")])
def test_a_full_disk_is_told_and_leaves_parts_whole(tmp_path, monkeypatch, number, words):
    store = store_of(ONE.replace("SEED", "3"), tmp_path, tmp_path)
    replace, count = os.replace, []

    def full(source, target):
        count.append(target)
        if len(count) > 1:
            raise OSError(number, os.strerror(number))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(parts.os, "replace", full)
        with pytest.raises(OutputError, match=f"cannot write .*{words}.*Parts already there are whole"):
            LocalEngine(1).run(store.missing())
    assert [store.done(c) for c in store.chunks] == [True, False]
    assert not list((store.folder / "parts").glob(".*"))
    LocalEngine(1).run(store.missing())
    assert len(store.merge())


def test_a_damaged_file_is_a_row_and_every_protocol_runs(tmp_path):
    pets = tmp_path / "pets"
    for part, mode in (("images", "RGB"), ("masks", "L")):
        (pets / part).mkdir(parents=True)
        for name in "xy":
            Image.new(mode, (60, 50), 1).save(pets / part / f"{name}.png")
    (pets / "images" / "x.png").write_bytes((pets / "images" / "x.png").read_bytes()[:60])
    text = """
name = "pets"
models = ["scenes-gap"]
methods = ["rollout"]
protocols = ["segmentation", "complexity", "sensitivity", "chefer21-tokens"]
view = "squash"
dataset = { name = "masks", root = "pets" }
controls = false
"""
    store = store_of(text, tmp_path / "runs", tmp_path)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert set(table.filter(pl.col("error").is_not_null())["image"]) == {"x"}
    assert all("x.png cannot be read" in why for why in table["error"].drop_nulls())
    good = table.filter(pl.col("image") == "y")
    assert set(good["protocol"]) == {"explain", "segmentation", "complexity", "sensitivity", "chefer21-tokens"}
    assert good.filter(pl.col("score") == "samples")["value"].to_list() == [10.0]
