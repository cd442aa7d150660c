"""A run's table: every score once, and from every engine the same; every protocol on small scenes."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benching import ONE, base, store_of  # noqa: F401 - a fixture
from datafiles import voc_in
from vitrail.bench import explainer as explaining
from vitrail.bench.chunk import products
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.peak import Peak
from vitrail.bench.plan import PlanError
from vitrail.bench.reexplain import Classes
from vitrail.bench.results_store import tally
from vitrail.explain import explain
from vitrail.scores.segmentation import SegmentationScores

pl = pytest.importorskip("polars")


def test_the_table_has_every_score_once(base):  # noqa: F811
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
    own = tally(table, SegmentationScores, **where)
    assert len(own) == 2
    assert 0 < own.summary()["miou"] < 1
    blind = tally(table, dataset="pairs", method="random", protocol="selectivity").summary()
    assert blind["share"] == 0.5, "a method blind to classes is right once in two"


def test_random_maps_differ_by_image_and_not_by_chunk(base):  # noqa: F811
    store, _ = base
    assert explaining.seed_of(store.stage.key, "a", "random") != explaining.seed_of(store.stage.key, "b", "random")
    assert explaining.seed_of(store.stage.key, "a", "random") != explaining.seed_of(store.stage.key, "a", "rise")


def test_the_most_memory_held_is_noted_with_the_map(base):  # noqa: F811
    store, _ = base
    table = store.merge()
    with Peak(torch.device("cpu")) as peak, mmap.mmap(-1, 2**27) as fresh:  # nobody freed these pages before
        fresh.write(b"x" * 2**27)
    explained = pl.col("protocol") == "explain"
    assert table.filter(~explained)["memory"].is_null().all()
    noted = table.filter(explained, pl.col("error").is_null())
    if peak.bytes != peak.bytes:
        assert noted["memory"].is_null().all()
        pytest.skip("this system does not tell how far a process grew")
    assert peak.bytes > 2**26
    assert (noted["memory"] >= 0).all()


def test_memory_that_nobody_knows_is_not_none(base, monkeypatch):  # noqa: F811
    store, _ = base
    held = iter([math.nan, 5.0, math.nan, math.nan])

    class Told(Peak):
        def __exit__(self, *error):
            super().__exit__(*error)
            self.bytes = next(held)

    monkeypatch.setattr(explaining, "Peak", Told)
    explainer = explaining.Explainer(store.stage, store.stage.model(0), "key")
    images, classes = torch.randn(1, 3, 128, 128), torch.tensor([[1, 2]])
    memory = [explainer("a", images, classes, ["rollout"])[0]["rollout"].memory[0] for _ in range(2)]
    assert memory[0] == 5, "of two passes the one that is known"
    assert math.isnan(memory[1])


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


def test_the_command_runs_shards_and_resumes(tmp_path):
    import typer
    from typer.testing import CliRunner

    from vitrail.cli.bench import bench

    app = typer.Typer()
    app.command()(bench)
    (tmp_path / "plan.toml").write_text(ONE.replace("SEED", "5").replace("count = 4", "count = 3"), encoding="utf-8")
    call = [str(tmp_path / "plan.toml"), "--workers", "1", "--out", str(tmp_path / "runs")]
    first = CliRunner().invoke(app, [*call, "--shard", "2/2"])
    assert first.exit_code == 0, first.output
    assert len(list(tmp_path.glob("runs/*/parts/*.parquet"))) == 1
    second = CliRunner().invoke(app, call)
    assert second.exit_code == 0, second.output
    assert len(list(tmp_path.glob("runs/*/results.csv"))) == 1
    assert len(list(Path(tmp_path).glob("runs/*/plan.toml"))) == 1


def test_maps_are_compared_again_with_other_weights_and_for_every_class(tmp_path):
    text = """
name = "again"
models = ["scenes"]
methods = ["raw_attention", "transformer_mm"]
controls = false
protocols = ["sanity", "multiclass"]
dataset = { name = "scenes", options = { split = "test", count = 2, pairs = true } }
"""
    store = store_of(text, tmp_path, tmp_path)
    before = [p.detach().clone() for p in store.stage.model(0).about.module.parameters()]
    LocalEngine(1).run(store.missing())
    after = store.stage.model(0).about.module.parameters()
    assert all(map(torch.equal, before, after)), "weights are put back"
    table = store.merge()
    assert table["error"].null_count() == len(table)
    head = table.filter(pl.col("protocol") == "sanity", pl.col("score") == "head|spearman")
    alike = {row["method"]: row["value"] for row in head.to_dicts()}
    assert alike["raw_attention"] == pytest.approx(1), "attention does not rest on the head"
    assert alike["transformer_mm"] < 0.99
    found = tally(table, Classes, method="transformer_mm", protocol="multiclass", target="things")
    assert len(found) == 2
    summary = found.summary()
    assert 0 < summary["best_miou"] < 1
    blind = tally(table, Classes, method="raw_attention", protocol="multiclass").summary()
    assert blind["best_miou"] < summary["best_miou"], "one map for two classes names one of them wrongly"
    size = store.stage.model(0).view.size
    assert 0 < found.column("labelled").max() <= size[0] * size[1]


def test_a_plan_says_how_matrices_are_multiplied_and_nothing_stays_behind():
    torch.set_float32_matmul_precision("medium")
    try:
        for matmul, wanted in (("tf32", "high"), ("float32", "highest")):
            with products(matmul):
                assert torch.get_float32_matmul_precision() == wanted
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_class_that_is_asked_for_twice_is_explained_once(base, monkeypatch):  # noqa: F811
    store, _ = base
    model = store.stage.model(0)
    images, classes = torch.randn(3, 3, 128, 128), torch.tensor([[1, 1], [2, 5], [3, 3]])
    shown = []

    def watched(about, given, **rest):
        shown.append((len(given), rest["target"].tolist(), list(rest["methods"])))
        return explain(about, given, **rest)

    monkeypatch.setattr(explaining, "explain", watched)
    made, bad = explaining.Explainer(store.stage, model, "key")(
        ["a", "b", "c"], images, classes, ["gradtoken", "occlusion", "rollout"]
    )
    assert not bad
    together = (3, classes.tolist(), ["occlusion"])  # all classes from the same pictures
    assert shown == [together, (3, [[1], [2], [3]], ["gradtoken", "rollout"]), (1, [[5]], ["gradtoken", "rollout"])]
    whole = explain(model.about, images, methods=["gradtoken", "occlusion", "rollout"], target=classes)
    for name, own in made.items():
        assert torch.allclose(own.maps, whole[name].maps, atol=1e-4), name
        assert torch.allclose(own.grid, whole[name].grid, atol=1e-5), name
        assert torch.equal(own.flat, whole[name].flat), name


def test_outputs_of_imagenet_stand_for_the_classes_of_voc(tmp_path):
    text = """
name = "voc"
models = [{ name = "MODEL", weights = "random" }]
methods = ["raw_attention", "gradcam"]
controls = false
protocols = ["multiclass"]
dataset = { name = "voc2012" , root = "." }
"""
    voc_in(tmp_path)
    store = store_of(text.replace("MODEL", "timm:vit_tiny_patch16_224"), tmp_path / "runs", tmp_path)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert table["error"].null_count() == len(table)
    scores = {image: set() for image in table["image"]}
    for row in table.filter(pl.col("protocol") == "multiclass").to_dicts():
        scores[row["image"]].add(row["score"].partition("/")[0])
    assert scores["2007_000033"] == {"common:0", "union:0", "common:1", "union:1", "labelled", "flat"}
    assert scores["2007_000042"] >= {"common:12", "union:15"}
    seen = tally(table, Classes, method="gradcam", protocol="multiclass")
    assert seen.regions().intersection.shape == (2, 10, 4)
    with pytest.raises(PlanError, match=r"multiclass cannot be run with cifar10 on voc2012: a model of 10 classes"):
        store_of(text.replace('{ name = "MODEL", weights = "random" }', '"cifar10"'), tmp_path / "runs", tmp_path)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cuda:0"] * 4, "4 workers share one GPU"), (["cuda:0", "cuda:1"] * 2, "4 workers share 2 GPUs"),
        (["cuda:0", "cuda:1"], ""), (["cpu"] * 4, ""), (["cuda:0"], ""),
    ],
)  # fmt: skip
def test_workers_that_share_a_gpu_are_told(capsys, devices, said):
    from vitrail.cli.bench import _crowd

    _crowd(SimpleNamespace(devices=devices))
    assert capsys.readouterr().err.partition(": ")[2].partition(" and")[0] == said
