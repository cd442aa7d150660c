"""The benchmark: plans are checked as a whole, and the table is the same however it was made."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pl = pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

from vitrail.bench import explainer as explaining  # noqa: E402
from vitrail.bench import part as parts  # noqa: E402
from vitrail.bench import truth  # noqa: E402
from vitrail.bench.check import read_plan  # noqa: E402
from vitrail.bench.estimate import estimate  # noqa: E402
from vitrail.bench.folder import explain_folder, read_map  # noqa: E402
from vitrail.bench.local import LocalEngine, WorkerError  # noqa: E402
from vitrail.bench.plan import PlanError, plans  # noqa: E402
from vitrail.bench.shard import parse_shard, share  # noqa: E402
from vitrail.bench.stage import open_stage  # noqa: E402
from vitrail.bench.store import Store, failures, tally  # noqa: E402
from vitrail.errors import DataError, NotApplicableError, OutputError  # noqa: E402
from vitrail.methods import Method  # noqa: E402
from vitrail.scores.segmentation import Segmentation  # noqa: E402

#: How often the run is killed, at moments spread over it.
KILLS = 6

TINY = """
name = "tiny"
models = ["scenes"]
methods = ["rollout", "smoothgrad:samples=1", "random"]
controls = false
targets = "both"
protocols = ["segmentation", "pointing", "selectivity", "chefer21-tokens"]
batch = 2
chunk = 1

[[dataset]]
name = "scenes"
label = "pairs"
options = { split = "test", count = 2, pairs = true }
protocols = ["segmentation", "pointing", "selectivity"]

[[dataset]]
name = "scenes"
label = "one"
options = { split = "test", count = 1, objects = 1 }
protocols = ["segmentation", "chefer21-tokens"]
"""


ONE = """
name = "one"
models = ["scenes"]
methods = ["rollout", "gradtoken"]
controls = false
protocols = ["segmentation"]
batch = 4
chunk = 2
seed = SEED
dataset = { name = "scenes", options = { split = "test", count = 4, objects = 1 } }
"""


def store_of(text, folder, tmp):
    """A plan's text as a store in a folder."""
    path = tmp / f"plan-{abs(hash(text))}.toml"
    path.write_text(text, encoding="utf-8")
    plan, _ = read_plan(path)
    return Store.create(open_stage(plan.model_dump_json()), folder, text)


def table_bytes(store):
    return [path.read_bytes() for path in store.export()[:2]]


def assert_same(store, expected):
    """Byte for byte; where that fails, the lines that differ say more than the bytes."""
    found = table_bytes(store)
    pairs = zip(found[1].decode().splitlines(), expected[1].decode().splitlines(), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]][:5] == []
    assert found == expected


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tiny plan, run by two workers; what ran in this process before might change the last bits here."""
    tmp = tmp_path_factory.mktemp("base")
    store = store_of(TINY, tmp / "runs", tmp)
    began = time.perf_counter()
    LocalEngine(2).run(store.missing())
    store.seconds = time.perf_counter() - began
    return store, table_bytes(store)


# -- plans -------------------------------------------------------------------------------------------------------------


def test_all_problems_of_a_plan_are_told_at_once_with_lines_and_fixes(tmp_path):
    masks = tmp_path / "pets"
    for part, mode in (("images", "RGB"), ("masks", "L")):
        (masks / part).mkdir(parents=True)
        Image.new(mode, (40, 40)).save(masks / part / "x.png")
    path = tmp_path / "plan.toml"
    path.write_text(
        'name = "bad"\nmodels = ["scenes", { name = "keras:vit" }]\nmethods = [\n  "rollout",\n  "gradtokn",\n'
        '  "tam:stepz=3",\n]\ntargets = "both"\nprotocols = ["chefer22", "segmentation", "pointing", "selectivity"]\n'
        'chunk = 0\ncolour = "red"\n\n[[dataset]]\nname = "scenes"\noptions = { split = "test", count = 4 }\n'
        'protocols = ["segmentation", "sensitivity"]\n\n[[dataset]]\nname = "imagenet"\nroot = "nowhere"\n\n'
        '[[dataset]]\nname = "masks"\nroot = "pets"\n'
    )  # fmt: skip
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    said = str(caught.value).splitlines()
    assert "cannot be run, 11 problems" in said[0]
    expected = {
        2: "unknown source 'keras'", 5: "did you mean gradtoken", 6: "does not take stepz; it takes", 10: "chunk = 0",
        11: "there is no key 'colour': take one of", 16: "'sensitivity' is not among the plan's", 20: "is not a folder",
    }  # fmt: skip
    for line, text in expected.items():
        assert any(f"line {line}: " in row and text in row for row in said), (line, text, said)
    nine = [row for row in said if "line 9: " in row]
    assert [any(word in row for row in nine) for word in ("chefer22", "no boxes", "two known classes")] == [True] * 3
    assert any("line 8: " in row and "masks has no labels: explain the predicted class" in row for row in said)


def test_a_plan_that_is_not_toml_or_not_there(tmp_path):
    (tmp_path / "plan.toml").write_text('name = "a"\nmodels = [1 2]')
    with pytest.raises(PlanError, match=r"not TOML.*line 2"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(PlanError, match=r"neither a file nor a plan of the package: those are .*scenes.*smoke"):
        read_plan("no-such-plan")


def test_a_method_that_does_not_apply_is_a_stated_row_unless_none_does(tmp_path, monkeypatch):
    def check(method, anatomy, options, stitch=False):
        if method.name == "rollout":
            raise NotApplicableError("rollout does not apply to this model: it attends inside windows")

    monkeypatch.setattr(Method, "check", check)
    text = ONE.replace(', "gradtoken"', "").replace("count = 4", "count = 1")
    with pytest.raises(PlanError, match=r"line 3: no method of the plan applies to scenes: .*inside windows"):
        store_of(text.replace("SEED", "6"), tmp_path, tmp_path)
    store = store_of(text.replace("SEED", "7").replace("controls = false", "controls = true"), tmp_path, tmp_path)
    assert {c.methods for c in store.chunks} == {("random", "centre", "edges")}
    assert "inside windows" in store.manifest()["refused"]["scenes"]["rollout"]
    LocalEngine(1).run(store.missing())
    (row,) = store.merge().filter(pl.col("method") == "rollout").to_dicts()
    assert (row["image"], row["value"]) == ("", None)
    assert "inside windows" in row["error"]


def test_the_plans_of_the_package_have_the_right_form():
    from vitrail.bench.plan import parse

    for path in plans().values():
        plan, _, problems = parse(path.read_text(encoding="utf-8"), path.parent)
        assert plan is not None, problems


def test_key_counts_what_decides_the_numbers_and_not_where_files_lie(base):
    stage = base[0].stage
    plan, ids = stage.plan, [stage.pictures(i).ids for i in range(2)]
    key = plan.key(["w"], ids)
    moved = plan.model_copy(update={"dataset": tuple(d.model_copy(update={"root": "/else"}) for d in plan.dataset)})
    assert moved.key(["w"], ids) == key
    others = [
        plan.key(["v"], ids),
        plan.key(["w"], [ids[0], ids[1][:0]]),
        plan.model_copy(update={"seed": 1}).key(["w"], ids),
    ]
    assert len({key, *others}) == 4


# -- chunks ------------------------------------------------------------------------------------------------------------


def test_chunks_cover_everything_once_and_shards_share_them(base):
    store, _ = base
    assert [c.methods for c in store.chunks[:3]] == [("smoothgrad:samples=1",)] * 3
    assert store.chunks[-1].methods == ("rollout", "random")
    assert len({c.name for c in store.chunks}) == len(store.chunks) == 2 * (2 + 1)
    shares = [share(store.chunks, parse_shard(f"{i}/4")) for i in (1, 2, 3, 4)]
    assert sorted(c.name for some in shares for c in some) == sorted(c.name for c in store.chunks)
    slurm = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "4"}
    assert parse_shard("env", slurm) == (1, 4)


def test_the_table_has_every_score_once(base):
    store, _ = base
    table = store.merge()
    assert table["error"].null_count() == len(table)
    counted = table.group_by("dataset", "method", "target", "protocol").agg(pl.col("image").n_unique())
    found = {tuple(row[:4]): row[4] for row in counted.iter_rows()}
    assert found["pairs", "random", "things", "selectivity"] == 2
    assert found["pairs", "rollout", "label", "segmentation"] == 2
    assert found["one", "smoothgrad:samples=1", "predicted", "chefer21-tokens"] == 1
    curve = table.filter(pl.col("score") == "positive(tokens)").row(0, named=True)
    assert len(curve["removed"]) == len(curve["logp_predicted"]) == len(curve["winner"]) == 10
    where = {"model": "scenes", "dataset": "pairs", "method": "rollout", "target": "label", "protocol": "segmentation"}
    own = tally(table, Segmentation, **where)
    assert len(own) == 2
    assert 0 < own.summary()["miou"] < 1
    blind = tally(table, dataset="pairs", method="random", protocol="selectivity").summary()
    assert blind["share"] == 0.5, "a method blind to classes is right once in two"


def test_random_maps_differ_by_image_and_not_by_chunk(base, tmp_path):
    store, _ = base
    assert explaining.seed_of(store.stage.key, "a", "random") != explaining.seed_of(store.stage.key, "b", "random")
    assert explaining.seed_of(store.stage.key, "a", "random") != explaining.seed_of(store.stage.key, "a", "rise")


# -- the same table, however it was made -------------------------------------------------------------------------------


def test_two_workers_one_of_them_killed_give_the_same_bytes(base, tmp_path):
    store = store_of(TINY, tmp_path, tmp_path)
    engine, killed = LocalEngine(2), []

    def kill_one(_):
        if not killed:
            killed.append(next(p for p in engine.processes if p.is_alive()).pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.run(store.missing(), kill_one)
    assert len(engine.processes) >= 3, "a new worker took its place"
    assert_same(store, base[1])


def test_two_shards_give_the_same_bytes(base, tmp_path):
    store = store_of(TINY, tmp_path, tmp_path)
    LocalEngine(2).run(share(store.chunks, (1, 2)))
    with pytest.raises(DataError, match=r"3 of 6 parts .* are missing"):
        store.merge()
    LocalEngine(2).run(share(store.chunks, (0, 2)))
    assert_same(store, base[1])


KILLED = """
import os, random, signal, sys, time
import PIL.Image, pyarrow.parquet, safetensors.torch, torch._dynamo  # once, and not again in every copy
from pathlib import Path
from vitrail.bench.check import read_plan
from vitrail.bench.local import LocalEngine
from vitrail.bench.stage import open_stage
from vitrail.bench.store import Store

plan, runs, kills, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def run(begun):
    checked, text = read_plan(plan)
    store = Store.create(open_stage(checked.model_dump_json()), runs, text)
    os.write(begun, b"x")
    LocalEngine(1).run(store.missing())

moments, landed = random.Random(0), 0
for attempt in range(kills + 1):
    begun, begin = os.pipe()
    child = os.fork()  # nothing of torch has run here, so that a copy of this process is a fresh one
    if child == 0:
        try:
            run(begin)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    if attempt < kills:
        os.read(begun, 1)
        time.sleep(moments.uniform(0, 1.2 * seconds / kills))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(begun)
    os.close(begin)
    landed += os.WIFSIGNALED(status)
    if attempt == kills and status:
        sys.exit("the last run failed")
sys.stdout.write(str(landed))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="copies of a process are needed to kill many quickly")
def test_a_run_killed_at_any_moment_goes_on_to_the_same_bytes(base, tmp_path):
    (tmp_path / "plan.toml").write_text(TINY, encoding="utf-8")
    args = [tmp_path / "plan.toml", tmp_path / "runs", KILLS, base[0].seconds]
    command = [sys.executable, "-c", KILLED, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1, "a kill came in time"
    store = store_of(TINY, tmp_path / "runs", tmp_path)
    assert not store.missing()
    assert not list((store.folder / "parts").glob(".*.tmp")), "what was left unfinished is swept away"
    assert_same(store, base[1])


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'vitrail[ray]'")
def test_ray_with_a_killed_actor_gives_the_same_bytes(base, tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's workers stand back otherwise, for ever on a busy machine

    from vitrail.bench.ray import RayEngine

    store = store_of(TINY, tmp_path, tmp_path)
    engine, killed = RayEngine(workers=1), []

    def kill_soon(_):
        if not killed:
            killed.append(ray.get(engine.actors[0].pid.remote()))
            threading.Timer(0.3, os.kill, (killed[0], signal.SIGKILL)).start()

    engine.run(store.missing(), kill_soon)
    assert killed
    assert_same(store, base[1])


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_damaged_part_is_done_again(base):
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
    ids, read, explain = store.stage.pictures(0).ids, truth.read, explaining.explain

    def broken(dataset, index):
        if index == 1:
            raise DataError("x.jpg cannot be read: damaged")
        return read(dataset, index)

    def choosy(model, images, *, methods, **rest):
        if "gradtoken" in methods and (images == third).flatten(1).all(1).any():
            raise RuntimeError("no relevance today\nand more")
        return explain(model, images, methods=methods, **rest)

    third = truth.prepare(store.stage.pictures(0).dataset, 2, store.stage.model(0).view, True).image[None]
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
    same = pl.exclude("value", "seconds", "forwards")
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


def test_work_that_kills_every_worker_is_given_up(tmp_path, monkeypatch):
    from vitrail.bench.local import _Pool

    class Dead:
        name, maps = "part-x", 1

    pool = _Pool(LocalEngine(2), [], lambda _: None)
    monkeypatch.setattr(pool, "_start", lambda device: None)

    class Process:
        exitcode = -9

        def join(self, _):
            pass

    class Pipe:
        def close(self):
            pass

    for attempt in (1, 2, 3):
        pipe = Pipe()
        pool.workers[pipe] = (Process(), "cpu")
        if attempt < 3:
            pool._died(pipe, Dead())
        else:
            with pytest.raises(WorkerError, match=r"3 workers died over part-x .exit code -9"):
                pool._died(pipe, Dead())


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


# -- maps, folders, dry runs -------------------------------------------------------------------------------------------


def test_maps_are_kept_beside_the_part(tmp_path):
    from safetensors import safe_open

    text = ONE.replace("SEED", "4\nkeep_maps = true").replace("count = 4", "count = 2")
    store = store_of(text, tmp_path, tmp_path)
    LocalEngine(1).run(store.missing())
    with safe_open(str(store.chunks[0].path.with_suffix(".safetensors")), framework="pt") as file:
        maps = file.get_tensor("gradtoken/predicted")
        ids = json.loads(file.metadata()["images"])
    assert (maps.dtype, maps.shape) == (torch.float16, (2, 16, 16))
    assert tuple(ids) == store.stage.pictures(0).ids
    assert 0 <= maps.min() < maps.max() <= 1


def test_a_folder_is_explained_and_can_be_queried(tmp_path, monkeypatch):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for i, name in enumerate(("a.png", "b.jpg", "deep/c.png")):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (70, 90, 3), np.uint8)).save(tmp_path / "in" / name)
    (tmp_path / "in" / "broken.png").write_bytes(b"no picture")
    done = []
    ask = {"recursive": True, "methods": ["rollout", "gradtoken"], "target": "top2", "chunk": 3, "done": done.append}
    index = explain_folder(tmp_path / "in", tmp_path / "out", **ask)
    table = pl.read_parquet(index)
    assert len(done) == 2
    assert table.filter(pl.col("error").is_not_null())["image"].unique().to_list() == ["broken.png"]
    good = table.filter(pl.col("image") == "deep/c.png", pl.col("method") == "gradtoken").sort("probability").to_dicts()
    assert len(good) == 2
    assert good[0]["probability"] < good[1]["probability"]
    assert read_map(tmp_path / "out", good[1]).shape == (16, 16)
    assert table.filter(pl.col("offset") >= 0).group_by("part", "method", "offset").len()["len"].max() == 1
    before = index.read_bytes()
    explain_folder(tmp_path / "in", tmp_path / "out", **ask)
    assert len(done) == 2, "nothing is done twice"
    assert index.read_bytes() == before


def test_dry_run_counts_what_the_evaluator_counts(base):
    store, _ = base
    found = estimate(store.stage, store.chunks, 2)
    assert (found.images, found.maps, found.left) == (3, 9, 0.0)
    assert found.forwards > found.explaining > 0
    assert found.memory > 1 << 20
    from vitrail.bench.estimate import scoring_cost

    last = store.chunks[-1]
    assert last.data == 1
    assert scoring_cost(store.stage, last) == 1 + 2 * 18 * 0.5, "two methods blind to classes, half a forward a level"


def test_the_command_runs_shards_and_resumes(tmp_path, monkeypatch):
    import typer
    from typer.testing import CliRunner

    from vitrail.bench.command import bench

    app = typer.Typer()
    app.command()(bench)
    (tmp_path / "plan.toml").write_text(ONE.replace("SEED", "5").replace("count = 4", "count = 3"), encoding="utf-8")
    call = [str(tmp_path / "plan.toml"), "--workers", "1", "--out", str(tmp_path / "runs")]
    random.seed(0)
    first = CliRunner().invoke(app, [*call, "--shard", "2/2"])
    assert first.exit_code == 0, first.output
    assert len(list(tmp_path.glob("runs/*/parts/*.parquet"))) == 1
    second = CliRunner().invoke(app, call)
    assert second.exit_code == 0, second.output
    assert len(list(tmp_path.glob("runs/*/results.csv"))) == 1
    assert len(list(Path(tmp_path).glob("runs/*/plan.toml"))) == 1
