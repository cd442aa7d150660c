"""The results of a run: every score once, costs, saved maps, the command, and every protocol on small scenes."""

from __future__ import annotations

import json
import math
import mmap
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import vitrail.bench
from tests.bench.bench_helpers import ONE, open_store
from tests.data.datafiles import write_voc
from vitrail.bench import explainer as explainer_module
from vitrail.bench.chunk import matmul_precision
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.ground_truth import prepare_ground_truth
from vitrail.bench.multiclass_protocols import PresentClassScores
from vitrail.bench.plan import PlanError
from vitrail.bench.results_table import collect_scores, read_results
from vitrail.bench.run import run_plan
from vitrail.errors import DataError
from vitrail.pipeline.explain import explain
from vitrail.pipeline.memory import PeakMemory
from vitrail.scores.pointing import box_masks, score_box_pointing
from vitrail.scores.segmentation import SegmentationScores
from vitrail.scores.wsol import WsolScores, score_wsol

pl = pytest.importorskip("polars")


def test_table_has_every_score_once(tiny_run):
    store, _ = tiny_run
    table = store.merge()
    assert table["error"].null_count() == len(table)
    counts = table.group_by("dataset", "method", "target", "protocol").agg(pl.col("image").n_unique())
    found = {tuple(row[:4]): row[4] for row in counts.iter_rows()}
    assert found["pairs", "random", "things", "selectivity"] == 2
    assert found["pairs", "rollout", "label", "segmentation"] == 2
    assert found["one", "smoothgrad:samples=1", "predicted", "chefer21-tokens"] == 1
    curve = table.filter(pl.col("score") == "positive(tokens)").row(0, named=True)
    assert len(curve["removed"]) == len(curve["logp_predicted"]) == len(curve["winner"]) == 10
    where = {"model": "scenes", "dataset": "pairs", "method": "rollout", "target": "label", "protocol": "segmentation"}
    scores = collect_scores(table, SegmentationScores, **where)
    assert len(scores) == 2
    assert 0 < scores.summary()["miou"] < 1
    agnostic = collect_scores(table, dataset="pairs", method="random", protocol="selectivity").summary()
    assert agnostic["share"] == 0.5, "a class-agnostic method is right for one of two classes"


def test_random_maps_differ_by_image_and_not_by_chunk(tiny_run):
    store, _ = tiny_run
    assert explainer_module.map_seed(store.context.key, "a", "random") != explainer_module.map_seed(
        store.context.key, "b", "random"
    )
    assert explainer_module.map_seed(store.context.key, "a", "random") != explainer_module.map_seed(
        store.context.key, "a", "rise"
    )


def test_peak_memory_is_recorded_with_the_map(tiny_run):
    store, _ = tiny_run
    table = store.merge()
    with PeakMemory(torch.device("cpu")) as peak, mmap.mmap(-1, 2**27) as fresh:  # pages that were not in use before
        fresh.write(b"x" * 2**27)
    explained = pl.col("protocol") == "explain"
    assert table.filter(~explained)["memory"].is_null().all()
    maps = table.filter(explained, pl.col("error").is_null())
    if peak.bytes != peak.bytes:
        assert maps["memory"].is_null().all()
        pytest.skip("this system does not report the memory of a process")
    assert peak.bytes > 2**26
    assert (maps["memory"] >= 0).all()


def test_unknown_memory_is_nan(tiny_run, monkeypatch):
    store, _ = tiny_run
    measured = iter([math.nan, 5.0, math.nan, math.nan])

    class FakePeakMemory(PeakMemory):
        def __exit__(self, *error):
            super().__exit__(*error)
            self.bytes = next(measured)

    monkeypatch.setattr(explainer_module, "PeakMemory", FakePeakMemory)
    explainer = explainer_module.ChunkExplainer(store.context, store.context.model(0), "key")
    images, classes = torch.randn(1, 3, 128, 128), torch.tensor([[1, 2]])
    memory = [explainer("a", images, classes, ["rollout"])[0]["rollout"].memory[0] for _ in range(2)]
    assert memory[0] == 5, "the maximum of the passes whose memory is known"
    assert math.isnan(memory[1])


def test_maps_are_saved_with_the_part(tmp_path):
    from safetensors import safe_open

    text = ONE.replace("SEED", "4\nkeep_maps = true").replace("count = 4", "count = 2")
    store = open_store(text, tmp_path, tmp_path)
    LocalEngine(1).run(store.missing())
    with safe_open(str(store.chunks[0].path.with_suffix(".safetensors")), framework="pt") as file:
        maps = file.get_tensor("gradtoken/predicted")
        ids = json.loads(file.metadata()["images"])
    assert (maps.dtype, maps.shape) == (torch.float16, (2, 16, 16))
    assert tuple(ids) == store.context.images(0).ids
    assert 0 <= maps.min() < maps.max() <= 1


def test_command_runs_shards_and_resumes(tmp_path):
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


def test_command_accepts_the_former_name_of_a_plan(tmp_path):
    from typer.testing import CliRunner

    from vitrail.cli.app import app

    found = CliRunner().invoke(app, ["bench", "000_table1", "--dry-run", "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "note: the plan 000_table1 is now called vtranm_table1" in found.output
    new = CliRunner().invoke(app, ["bench", "vtranm_table1", "--dry-run", "--out", str(tmp_path)])
    assert "is now called" not in new.output


@pytest.mark.slow
def test_run_made_under_a_former_name_opens_resumes_and_reports(tmp_path):
    from vitrail.bench.papers import find_table
    from vitrail.bench.report import Run, write_report

    text = ONE.replace("SEED", "8").replace("count = 4", "count = 3")
    former = text.replace('name = "one"', 'name = "003_table3"\npaper = "003_table3"')
    store = open_store(former, tmp_path, tmp_path)
    LocalEngine(1).run(store.chunks[:1])
    manifest = store.folder / "manifest.json"
    written = json.loads(manifest.read_text(encoding="utf-8"))
    written["plan"]["paper"] = "003_table3"  # as earlier versions wrote it
    manifest.write_text(json.dumps(written), encoding="utf-8")
    assert Run(store.folder).paper == "gradtoken_table3"
    current = open_store(former.replace("003_", "gradtoken_"), tmp_path, tmp_path)
    assert current.folder == store.folder
    assert [chunk.name for chunk in current.missing()] == [chunk.name for chunk in store.chunks[1:]]
    LocalEngine(1).run(current.missing())
    current.export()
    page = write_report(current.folder).read_text(encoding="utf-8")
    assert find_table("gradtoken_table3").about in page, "the report shows the paper's numbers"


@pytest.mark.slow
def test_public_names_are_imported_at_first_use():
    code = (
        "import sys, vitrail.bench as bench\n"
        "print(sorted({'pydantic', 'polars', 'pyarrow', 'ray'} & set(sys.modules)))\n"
        "print(all(getattr(bench, name) is not None for name in bench.__all__), set(bench.__all__) == set(dir(bench)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.stdout.split() == ["[]", "True", "True"], done.stderr
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        vitrail.bench.no_such_name  # noqa: B018


def test_run_plan_computes_the_missing_parts_and_writes_the_tables(tmp_path):
    (tmp_path / "plan.toml").write_text(ONE.replace("SEED", "9").replace("count = 4", "count = 2"), encoding="utf-8")
    store = run_plan(tmp_path / "plan.toml", tmp_path / "runs")
    assert read_results(store.folder).equals(store.merge().drop("seconds", "forwards", "memory"))
    assert run_plan(tmp_path / "plan.toml", tmp_path / "runs").missing() == []
    (store.folder / "results.parquet").unlink()
    with pytest.raises(DataError, match="run the plan to its end first"):
        read_results(store.folder)


@pytest.mark.slow
def test_sanity_and_multiclass_protocols(tmp_path):
    text = """
name = "reexplain"
models = ["scenes"]
methods = ["raw_attention", "transformer_mm"]
controls = false
protocols = ["sanity", "multiclass"]
dataset = { name = "scenes", options = { split = "test", count = 2, pairs = true } }
"""
    store = open_store(text, tmp_path, tmp_path)
    before = [p.detach().clone() for p in store.context.model(0).loaded.module.parameters()]
    LocalEngine(1).run(store.missing())
    after = store.context.model(0).loaded.module.parameters()
    assert all(map(torch.equal, before, after)), "weights are restored"
    table = store.merge()
    assert table["error"].null_count() == len(table)
    head = table.filter(pl.col("protocol") == "sanity", pl.col("score") == "head|spearman")
    similarity = {row["method"]: row["value"] for row in head.to_dicts()}
    assert similarity["raw_attention"] == pytest.approx(1), "attention does not depend on the head"
    assert similarity["transformer_mm"] < 0.99
    scores = collect_scores(table, PresentClassScores, method="transformer_mm", protocol="multiclass", target="things")
    assert len(scores) == 2
    summary = scores.summary()
    assert 0 < summary["best_miou"] < 1
    agnostic = collect_scores(table, PresentClassScores, method="raw_attention", protocol="multiclass").summary()
    assert agnostic["best_miou"] < summary["best_miou"], "one map for two classes labels one of them wrongly"
    size = store.context.model(0).preprocess.size
    assert 0 < scores.column("labelled").max() <= size[0] * size[1]


@pytest.mark.slow
def test_box_protocols_equal_the_score_functions(tmp_path):
    text = """
name = "boxes"
models = ["scenes"]
methods = ["transformer_mm", "centre"]
controls = false
targets = "both"
protocols = ["pointing", "box_pointing", "wsol"]
dataset = { name = "scenes", options = { split = "test", count = 3, pairs = true } }
"""
    store = open_store(text, tmp_path, tmp_path)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert table["error"].null_count() == len(table)
    model, images = store.context.model(0), store.context.images(0)
    for index, name in zip(images.indices, images.ids, strict=True):
        truth = prepare_ground_truth(images.dataset, index, model.preprocess, by_class=True)
        label = truth.label
        boxes = truth.boxes_of(label)
        assert boxes.tolist() == images.dataset[index].boxes_of(label).tolist(), "scenes are not resized"
        assert truth.box_mask_of(label).bool().equal(box_masks([boxes], truth.image.shape[1:])[0])
        maps = explain(model.loaded, truth.image[None], "transformer_mm", target=label).maps[:, 0]
        expected = score_box_pointing(maps, [boxes]) | score_wsol(maps, [boxes])
        own = table.filter(pl.col("image") == name, pl.col("method") == "transformer_mm", pl.col("target") == "label")
        found = {(row["protocol"], row["score"]): row["value"] for row in own.to_dicts()}
        assert found["box_pointing", "hits"] == expected["hits"].item()
        assert found["box_pointing", "boxes"] == len(boxes)
        iou = [found["wsol", f"iou/{j}"] for j in range(20)]
        assert iou == pytest.approx(expected["iou"][0].tolist())
    wsol = collect_scores(table, WsolScores, method="transformer_mm", protocol="wsol", target="label").summary()
    top1 = [row["value"] for row in table.filter(pl.col("score") == "top1", pl.col("target") == "label").to_dicts()]
    assert 0 <= wsol["top1_loc"] <= wsol["max_box_acc"] <= 1
    assert set(top1) <= {0.0, 1.0}


def test_matmul_precision_is_set_and_restored():
    torch.set_float32_matmul_precision("medium")
    try:
        for matmul, wanted in (("tf32", "high"), ("float32", "highest")):
            with matmul_precision(matmul):
                assert torch.get_float32_matmul_precision() == wanted
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_repeated_class_is_explained_once(tiny_run, monkeypatch):
    store, _ = tiny_run
    model = store.context.model(0)
    images, classes = torch.randn(3, 3, 128, 128), torch.tensor([[1, 1], [2, 5], [3, 3]])
    calls, occlusion = [], "occlusion:window=8,stride=8"

    def recorded(model, images, **rest):
        calls.append((len(images), rest["target"], list(rest["methods"])))
        return explain(model, images, **rest)

    monkeypatch.setattr(explainer_module, "explain", recorded)
    explanations, failures = explainer_module.ChunkExplainer(store.context, model, "key")(
        ["a", "b", "c"], images, classes, ["gradtoken", occlusion, "rollout"]
    )
    assert not failures
    together = (3, classes.tolist(), [occlusion])  # the same perturbed images serve all classes
    assert calls == [together, (3, [[1], [2], [3]], ["gradtoken", "rollout"]), (1, [[5]], ["gradtoken", "rollout"])]
    whole = explain(model.loaded, images, methods=["gradtoken", occlusion, "rollout"], target=classes)
    for name, own in explanations.items():
        assert torch.allclose(own.maps, whole[name].maps, atol=1e-4), name
        assert torch.allclose(own.grid, whole[name].grid, atol=1e-5), name
        assert torch.equal(own.constant, whole[name].constant), name


@pytest.mark.slow
def test_imagenet_outputs_stand_for_voc_classes(tmp_path):
    text = """
name = "voc"
models = [{ name = "MODEL", weights = "random" }]
methods = ["raw_attention", "gradcam"]
controls = false
protocols = ["multiclass", "multiclass_original"]
view = "squash"
dataset = { name = "voc2012" , root = "." }
"""
    write_voc(tmp_path)
    store = open_store(text.replace("MODEL", "timm:vit_tiny_patch16_224"), tmp_path / "runs", tmp_path)
    LocalEngine(1).run(store.missing())
    table = store.merge()
    assert table["error"].null_count() == len(table)
    scores = {image: set() for image in table["image"]}
    for row in table.filter(pl.col("protocol") == "multiclass").to_dicts():
        scores[row["image"]].add(row["score"].partition("/")[0])
    assert scores["2007_000033"] == {"common:0", "union:0", "common:1", "union:1", "labelled", "flat"}
    assert scores["2007_000042"] >= {"common:12", "union:15"}
    labelled = {row["protocol"]: row["value"] for row in table.filter(pl.col("score") == "labelled").to_dicts()}
    assert labelled["multiclass_original"] < 8 * 6 + 1 < labelled["multiclass"], "pixels of the file, and of the input"
    collected = collect_scores(table, PresentClassScores, method="gradcam", protocol="multiclass")
    assert collected.regions().intersection.shape == (2, 10, 4)
    with pytest.raises(PlanError, match=r"multiclass cannot be run with cifar10 on voc2012: the model has 10 classes"):
        open_store(text.replace('{ name = "MODEL", weights = "random" }', '"cifar10"'), tmp_path / "runs", tmp_path)
    cropped = text.replace("MODEL", "timm:vit_tiny_patch16_224").replace('view = "squash"', 'view = "model"')
    with pytest.raises(PlanError, match=r'multiclass_original needs maps of whole images.*view = "squash"'):
        open_store(cropped, tmp_path / "runs", tmp_path)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["cuda:0"] * 4, "4 workers share one GPU"), (["cuda:0", "cuda:1"] * 2, "4 workers share 2 GPUs"),
        (["cuda:0", "cuda:1"], ""), (["cpu"] * 4, ""), (["cuda:0"], ""),
    ],
)  # fmt: skip
def test_workers_that_share_a_gpu_print_a_note(capsys, devices, expected):
    from vitrail.cli.bench import warn_shared_gpu

    warn_shared_gpu(SimpleNamespace(devices=devices))
    assert capsys.readouterr().err.partition(": ")[2].partition(";")[0] == expected
