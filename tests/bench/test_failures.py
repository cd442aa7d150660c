"""Failures during a run become rows with the reason, or a clear error; finished parts stay complete."""

from __future__ import annotations

import errno
import os
import warnings
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from PIL import Image

from tests.bench.bench_helpers import ONE, open_store, table_bytes
from vitrail.bench import explainer, ground_truth, parts
from vitrail.bench.engines.local import LocalEngine, _worker_loop
from vitrail.bench.results_table import count_failures
from vitrail.errors import DataError, GuessWarning, InputError, OutputError

pl = pytest.importorskip("polars")


def test_damaged_part_is_computed_again(tiny_run):
    store, before = tiny_run
    chunk = store.chunks[0]
    chunk.path.write_bytes(chunk.path.read_bytes()[:-9])
    assert store.missing() == [chunk]
    other = store.chunks[1]
    content = other.path.read_bytes()
    other.path.write_bytes(store.chunks[2].path.read_bytes())
    assert store.missing() == [chunk, other], "the part of another chunk does not count"
    other.path.write_bytes(content)
    LocalEngine(1).run(store.missing())
    assert table_bytes(store) == before


def test_failing_images_and_methods_become_rows_with_the_reason(tmp_path, monkeypatch):
    store = open_store(ONE.replace("SEED", "1"), tmp_path, tmp_path)
    images, model = store.context.images(0), store.context.model(0)
    ids, read, explain = images.ids, ground_truth.read_ground_truth, explainer.explain

    def read_or_fail(dataset, index):
        if index == 1:
            raise DataError("x.jpg cannot be read: damaged")
        return read(dataset, index)

    def explain_or_fail(model, images, *, methods, **rest):
        if "gradtoken" in methods and (images == third).flatten(1).all(1).any():
            raise RuntimeError("no relevance today\nand more")
        return explain(model, images, methods=methods, **rest)

    third = ground_truth.prepare_ground_truth(images.dataset, 2, model.preprocess, True).image[None]
    monkeypatch.setattr(ground_truth, "read_ground_truth", read_or_fail)
    monkeypatch.setattr(explainer, "explain", explain_or_fail)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    bad = {(r["image"], r["method"]): r["error"] for r in table.filter(pl.col("error").is_not_null()).to_dicts()}
    damaged, failed = "x.jpg cannot be read: damaged", "RuntimeError: no relevance today"
    assert bad == {(ids[1], "rollout"): damaged, (ids[1], "gradtoken"): damaged, (ids[2], "gradtoken"): failed}
    assert set(count_failures(table)["error"]) == {damaged, failed}
    good = table.filter(pl.col("protocol") == "segmentation", pl.col("error").is_null(), pl.col("score") == "ap")
    assert sorted(zip(good["image"], good["method"], strict=True)) == sorted(
        [(ids[0], "rollout"), (ids[0], "gradtoken"), (ids[2], "rollout"), (ids[3], "rollout"), (ids[3], "gradtoken")]
    )


def test_out_of_memory_halves_the_batch(tmp_path, monkeypatch):
    plain = open_store(ONE.replace("SEED", "2"), tmp_path / "a", tmp_path)
    LocalEngine(1).run(plain.missing())
    short = open_store(ONE.replace("SEED", "2"), tmp_path / "b", tmp_path)
    explain, sizes = explainer.explain, []

    def explain_with_little_memory(*args, batch_size, **rest):
        sizes.append(batch_size)
        if batch_size > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return explain(*args, batch_size=batch_size, **rest)

    monkeypatch.setattr(explainer, "explain", explain_with_little_memory)
    LocalEngine(1).run(short.missing())
    assert sizes[:3] == [4, 2, 1]
    assert set(sizes[3:]) == {1}
    a, b = plain.merge(), short.merge()
    same = pl.exclude("value", "seconds", "forwards", "memory")
    assert a.select(same).equals(b.select(same))
    assert np.allclose(a["value"], b["value"], rtol=1e-2, atol=20, equal_nan=True)


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "permission denied")])
def test_full_disk_is_an_error_and_parts_stay_complete(tmp_path, monkeypatch, number, words):
    store = open_store(ONE.replace("SEED", "3"), tmp_path, tmp_path)
    replace, targets = os.replace, []

    def replace_once(source, target):
        targets.append(target)
        if len(targets) > 1:
            raise OSError(number, os.strerror(number))
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(parts.os, "replace", replace_once)
        with pytest.raises(OutputError, match=f"cannot write .*{words}.*Parts written before are complete") as found:
            LocalEngine(1).run(store.missing())
    assert found.value.exit_status == (1 if number == errno.ENOSPC else 2), "of the command line"
    assert [store.done(c) for c in store.chunks] == [True, False]
    assert not list((store.folder / "parts").glob(".*"))
    LocalEngine(1).run(store.missing())
    assert len(store.merge())


def test_damaged_image_file_is_a_row_and_every_protocol_runs(tmp_path):
    pets = tmp_path / "pets"
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (pets / folder).mkdir(parents=True)
        for name in "xy":
            Image.new(mode, (60, 50), 1).save(pets / folder / f"{name}.png")
    (pets / "images" / "x.png").write_bytes((pets / "images" / "x.png").read_bytes()[:60])
    text = """
name = "pets"
models = ["scenes-tagged"]
methods = ["rollout"]
protocols = ["segmentation", "complexity", "sensitivity", "chefer21-tokens"]
view = "squash"
dataset = { name = "masks", root = "pets" }
controls = false
"""
    store = open_store(text, tmp_path / "runs", tmp_path)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert set(table.filter(pl.col("error").is_not_null())["image"]) == {"x"}
    assert all("x.png cannot be read" in why for why in table["error"].drop_nulls())
    good = table.filter(pl.col("image") == "y")
    assert set(good["protocol"]) == {"explain", "segmentation", "complexity", "sensitivity", "chefer21-tokens"}
    assert good.filter(pl.col("score") == "samples")["value"].to_list() == [10.0]


def test_cuda_without_a_gpu_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="torch finds no GPU: use --device cpu"):
        LocalEngine(device="cuda")


def test_warnings_of_worker_processes_are_one_line_each(capfd):
    ours, theirs = Pipe()
    ours.close()  # so that the loop ends at once
    with warnings.catch_warnings():
        _worker_loop(theirs, "cpu", torch.get_num_threads())
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("the layout\nis a guess", GuessWarning, stacklevel=1)
    assert capfd.readouterr().err == "warning: the layout is a guess\n"
