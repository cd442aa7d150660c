"""Explaining and scoring images of tar shards and tables: resuming reads nothing twice, bad input is named."""

from __future__ import annotations

import errno
import os
import tarfile
from collections import Counter
from io import BytesIO

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from typer.testing import CliRunner

from tests.data.source_files import png, write, write_tar
from vitrail.bench import parts
from vitrail.bench.audit.images import AuditImages
from vitrail.bench.engines import LostTasksError, run_task
from vitrail.bench.folder import explain_folder, read_map
from vitrail.bench.folder_overlays import draw_folder
from vitrail.bench.map_store import open_maps
from vitrail.bench.plan_file import PlanOverrides
from vitrail.bench.results_table import count_failed_images
from vitrail.bench.run import run_plan
from vitrail.bench.validate import read_plan
from vitrail.cli import app as cli
from vitrail.data.addresses import open_source
from vitrail.errors import DataError, OutputError

pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pydantic")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def reads(monkeypatch):
    """Counts the reads of images in memory, by file and offset."""
    counts, plain = Counter(), MemoryFileSystem.cat_file

    def read(self, path, start=None, end=None, **options):
        counts[path, start] += 1
        return plain(self, path, start, end, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", read)
    return counts


class InterruptedRunError(Exception):
    pass


class FirstTasks:
    """An engine that stops after some tasks."""

    def __init__(self, count):
        self.count = count

    def run(self, tasks, _done):
        for task in tasks[: self.count]:
            run_task(task)
        raise InterruptedRunError


def test_resumed_run_reads_no_image_twice_and_lists_no_shard_twice(tmp_path, reads, monkeypatch):
    for shard in range(2):
        write_tar(f"memory://shards/{shard}.tar", range(3 * shard, 3 * shard + 3))
    listed, plain = [], MemoryFileSystem.open
    monkeypatch.setattr(
        MemoryFileSystem, "open", lambda self, path, *a, **k: listed.append(path) or plain(self, path, *a, **k)
    )
    options = {"methods": ["rollout"], "chunk": 2, "batch": 1}
    with pytest.raises(InterruptedRunError):
        explain_folder("memory://shards/*.tar", tmp_path / "out", engine=FirstTasks(2), **options)
    assert len(reads) == 3
    index = explain_folder("memory://shards/*.tar", tmp_path / "out", **options)
    assert len(reads) == 6
    assert set(reads.values()) == {1}
    assert sorted(listed) == ["/shards/0.tar", "/shards/1.tar"]
    table = pl.read_parquet(index)
    assert table["part"].n_unique() == 4, "parts belong to shards: two of each"
    assert table["error"].null_count() == 6
    # The same images as files give the same maps.
    (tmp_path / "in").mkdir()
    for k in range(6):
        (tmp_path / "in" / f"{k}.png").write_bytes(png(k))
    files = pl.read_parquet(explain_folder(tmp_path / "in", tmp_path / "files", **options))
    assert files["probability"].to_list() == table["probability"].to_list()
    for one, other in zip(table.to_dicts(), files.to_dicts(), strict=True):
        assert read_map(tmp_path / "out", one).equal(read_map(tmp_path / "files", other))


def test_repaired_shard_leaves_the_parts_of_other_shards_valid(tmp_path, reads):
    whole = write_tar("memory://shards/0.tar", range(2), labels=False)
    write("memory://shards/0.tar", whole[:600])
    write_tar("memory://shards/1.tar", range(2, 4))
    call = ["explain", "memory://shards", "--out", str(tmp_path / "out"), "--workers", "1", "--method", "rollout"]
    first = CliRunner().invoke(cli.app, call)
    assert first.exit_code == 1, first.output
    assert "2 of 4 images explained, 2 failed" in first.output.splitlines()[-1]
    assert "0.tar" in first.output
    assert "damaged or truncated" in first.output
    reads.clear()
    write("memory://shards/0.tar", whole)
    second = CliRunner().invoke(cli.app, call)
    assert second.exit_code == 0, second.output
    assert "4 of 4 images explained, 0 failed" in second.output.splitlines()[-1]
    assert {path for path, _ in reads} == {"/shards/0.tar"}
    reads.clear()
    write_tar("memory://shards/00.tar", range(4, 5))
    third = CliRunner().invoke(cli.app, call)
    assert "5 of 5 images explained, 0 failed" in third.output.splitlines()[-1]
    assert {path for path, _ in reads} == {"/shards/00.tar"}


def test_images_of_a_store_that_does_not_answer_are_tried_again(tmp_path, reads, monkeypatch):
    write_tar("memory://shards/0.tar", range(2))
    write_tar("memory://shards/1.tar", range(2, 4))
    counting = MemoryFileSystem.cat_file

    def refuse(self, path, *args, **options):
        if path.endswith("1.tar"):
            raise TimeoutError("timed out")
        return counting(self, path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", refuse)
        table = pl.read_parquet(explain_folder("memory://shards", tmp_path / "out", methods=["rollout"]))
    failed = table.filter(pl.col("error").is_not_null())
    assert failed["image"].to_list() == ["1.tar/000.png", "1.tar/001.png"]
    assert all("1.tar does not answer (timed out)" in why for why in failed["error"])
    table = pl.read_parquet(explain_folder("memory://shards", tmp_path / "out", methods=["rollout"]))
    assert table["error"].null_count() == 4
    assert set(reads.values()) == {1}


def test_lost_part_and_full_disk_lose_nothing_else(tmp_path, monkeypatch):
    write_tar("memory://shards/0.tar", range(3))
    options = {"methods": ["rollout"], "chunk": 1}

    class DyingActor:
        def run(self, tasks, _done):
            for task in tasks[1:]:
                run_task(task)
            raise LostTasksError({tasks[0].name: "its actor died 4 times"}, len(tasks))

    index = explain_folder("memory://shards", tmp_path / "out", engine=DyingActor(), **options)
    errors = {row["image"]: row["error"] for row in pl.read_parquet(index).to_dicts()}
    assert errors == {"0.tar/000.png": "its actor died 4 times", "0.tar/001.png": None, "0.tar/002.png": None}
    replace, written = os.replace, []

    def replace_or_fail(source, target):
        if target.suffix == ".parquet" and target.name.endswith("-000.parquet"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(target.name)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(parts.os, "replace", replace_or_fail)
        with pytest.raises(OutputError, match=r"the disk is full: free some space. Parts written before are complete"):
            explain_folder("memory://shards", tmp_path / "out", **options)
    done = []
    index = explain_folder("memory://shards", tmp_path / "out", done=lambda task: done.append(task.name), **options)
    assert [name[-4:] for name in done] == ["-000"]
    assert pl.read_parquet(index)["error"].null_count() == 3


def test_parquet_row_groups_are_not_split_and_overlays_read_the_source(tmp_path):
    table = pa.table({"image": [png(k) for k in range(5)]})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    call = ["explain", str(tmp_path / "a.parquet"), "--out", str(tmp_path / "out"), "--workers", "1"]
    found = CliRunner().invoke(cli.app, [*call, "--method", "rollout", "--overlays"])
    assert found.exit_code == 0, found.output
    assert (tmp_path / "out" / "index.html").is_file()
    assert (tmp_path / "out" / "overlays" / "a.parquet" / "4.rollout-0.jpg").is_file()
    done = []
    draw_folder(tmp_path / "out", done=done.append)
    assert not done, "finished parts are not drawn again"
    sizes = []
    begin = {"begin": lambda tasks, _: sizes.extend(len(task.images) for task in tasks)}
    explain_folder(tmp_path / "a.parquet", tmp_path / "small", methods=["rollout"], chunk=1, **begin)
    assert sizes == [2, 2, 1]


PLAN = """
name = "shards"
models = ["scenes"]
methods = ["rollout"]
controls = false
targets = "both"
protocols = ["complexity"]
batch = 2
chunk = 2
dataset = { name = "images", root = "shards/*.tar" }
"""


def cut_images(count):
    """A shard whose images are all truncated."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number in range(count):
            info = tarfile.TarInfo(f"{number}.png")
            info.size = 60
            tar.addfile(info, BytesIO(png(number)[:60]))
    return content.getvalue()


@pytest.mark.slow
def test_bench_scores_shards_and_counts_what_cannot_be_read(tmp_path):
    (tmp_path / "shards").mkdir()
    write_tar(str(tmp_path / "shards" / "a.tar"), range(3))
    (tmp_path / "shards" / "0.tar").write_bytes(cut_images(5))
    (tmp_path / "shards" / "b.tar").write_bytes(b"no archive")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    call = ["bench", str(tmp_path / "plan.toml"), "--workers", "1", "--out", str(tmp_path / "runs")]
    found = CliRunner().invoke(cli.app, call)
    assert found.exit_code == 1, found.output
    assert found.output.splitlines()[-1] == "3 of 9 images scored, 6 failed"
    table = pl.read_parquet(next(tmp_path.glob("runs/*/results.parquet")))
    good = table.filter(pl.col("error").is_null())
    assert good["image"].unique().sort().to_list() == ["a.tar/000.png", "a.tar/001.png", "a.tar/002.png"]
    assert set(good["target"]) == {"predicted", "label"}
    assert set(table.filter(pl.col("error").is_not_null())["image"]) == {"b.tar", *(f"0.tar/{k}.png" for k in range(5))}


@pytest.mark.slow
def test_bench_tries_images_of_a_store_that_does_not_answer_again(tmp_path, reads, monkeypatch):
    write_tar("memory://shards/a.tar", range(4))
    plan, options = tmp_path / "plan.toml", {"overrides": PlanOverrides(data={"images": "memory://shards/a.tar"})}
    plan.write_text(PLAN.replace("chunk = 2", "chunk = 2\nkeep_maps = true"), encoding="utf-8")
    third = open_source("memory://shards/a.tar").items[2].place[0]
    counting = MemoryFileSystem.cat_file

    def refuse(self, path, start=None, end=None, **rest):
        if start == third:
            raise TimeoutError("timed out")
        return counting(self, path, start, end, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", refuse)
        store = run_plan(plan, tmp_path / "runs", **options)
    assert count_failed_images(store.merge()) == (1, 4)
    assert not store.missing()
    assert [chunk.number for chunk in store.to_compute()] == [1]
    reads.clear()
    store = run_plan(plan, tmp_path / "runs", **options)
    assert count_failed_images(store.merge()) == (0, 4)
    assert len(reads) == 2, "only the images of that part are read"
    assert not store.to_compute()


def test_address_of_a_plan_may_be_given_on_the_command_line(tmp_path):
    write_tar("memory://shards/a.tar", range(2))
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    overrides = PlanOverrides(data={"images": "memory://shards/{a,b}.tar"})
    assert read_plan(tmp_path / "plan.toml", overrides=overrides)[0].dataset[0].root == "memory://shards/{a,b}.tar"


def test_other_images_of_the_same_names_are_not_taken_for_finished_ones(tmp_path):
    for folder, seed in (("a", 0), ("b", 1)):
        write(f"memory://{folder}/x.png", png(seed))
    first, second = (
        pl.read_parquet(explain_folder(f"memory://{folder}", tmp_path / "out", methods=["rollout"]))["probability"][0]
        for folder in "ab"
    )
    assert first != second


def test_audit_reads_the_images_of_a_source(tmp_path):
    write_tar("memory://shards/a.tar", range(2))
    explain_folder("memory://shards/a.tar", tmp_path / "out", methods=["rollout"])
    images = AuditImages(open_maps(tmp_path / "out"))
    image = images.read({"image": "a.tar/001.png", "model": None}).image
    expected = images.model({"model": None}).preprocess(Image.open(BytesIO(png(1))))
    assert image.equal(expected)
    with pytest.raises(DataError, match=r"b.tar/0.png is no longer in memory://shards/a.tar"):
        images.read({"image": "b.tar/0.png", "model": None})
