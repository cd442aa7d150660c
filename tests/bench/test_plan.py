"""Plans: validation, keys, method groups, chunks, and cost estimates."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from tests.bench.bench_helpers import ONE, TINY, open_store
from vitrail.bench.context import _select_indices, open_context
from vitrail.bench.dry_run import dry_run_all, dry_run_plan, plan_summary
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.engines.shard import parse_shard, select_shard
from vitrail.bench.method_groups import group_methods, single_pass_methods
from vitrail.bench.papers import paper_tables
from vitrail.bench.plan import CONTROLS, DatasetSpec, PlanError
from vitrail.bench.plan_cost import estimate_run, measure_model, scoring_cost
from vitrail.bench.plan_file import PlanOverrides, find_plan, parse_plan, plans
from vitrail.bench.validate import _check_methods, _check_protocols, read_plan
from vitrail.errors import NotApplicableError
from vitrail.methods import METHODS, Method, find

pl = pytest.importorskip("polars")

#: Plans that reproduce no table of a paper.
OWN_PLANS = {
    "gradtoken_fig6", "grid_disconnected", "grid_pointing", "imagenet1000", "imagenet1000_many", "lm_recall",
    "lm_recall_many", "scenes",
    "scenes_clip", "scenes_detr", "scenes_seg", "scenes_video", "scenes_vlm", "smoke", "tones", "vitcx_appendix_b",
    "vitcx_appendix_c", "vitcx_appendix_d", "vitcx_appendix_f",
}  # fmt: skip
#: Plans that reproduce a part of a table, and the table.
PARTS_OF_TABLES = {"vtranm_table1_cifar100": "vtranm_table1", "vtranm_table1_distilled": "vtranm_table1"}
#: Former names of the plans, and the keys their runs had, for made-up weights, images and versions.
FORMER_KEYS = {
    "000_table1": "23020e35048aa90d", "000_table2": "fa243f4bdf168009", "000_table3": "7d28e7e87b8a1884",
    "000_table4": "47d1d88809124fd7", "003_fig11": "8dd03fae060e3354", "003_table1": "e21c54ee87eefd81",
    "003_table2": "823235c8d6ac5c00", "003_table3": "82ce05a6bd9c9a72", "003_table4": "731aad35053c8fc6",
    "004_table1": "7d87641bfae132ae", "004_table2": "76c58fa8fb200677",
}  # fmt: skip


def parse_packaged(name):
    plan, _, problems = parse_plan(plans()[name].read_text("utf-8"), plans()[name].parent, PlanOverrides(home=None))
    assert plan is not None, problems
    return plan


def read_text(text, overrides=None):
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return read_plan(path, overrides=overrides)[0]


# -- validation --------------------------------------------------------------------------------------------------------


def test_all_problems_of_a_plan_are_reported_at_once_with_lines_and_fixes(tmp_path):
    masks = tmp_path / "pets"
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (masks / folder).mkdir(parents=True)
        Image.new(mode, (40, 40)).save(masks / folder / "x.png")
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
    rows = str(caught.value).splitlines()
    assert "cannot be run, 11 problems" in rows[0]
    expected = {
        2: "unknown source 'keras'", 5: "did you mean gradtoken", 6: "does not take stepz; it takes", 10: "chunk = 0",
        11: "unknown key 'colour': choose one of", 16: "'sensitivity' is not among the plan's", 20: "is not a folder",
    }  # fmt: skip
    for line, text in expected.items():
        assert any(f"line {line}: " in row and text in row for row in rows), (line, text, rows)
    line_9 = [row for row in rows if "line 9: " in row]
    assert [any(word in row for row in line_9) for word in ("chefer22", "no boxes", "two known classes")] == [True] * 3
    assert any("line 8: " in row and "masks has no labels: explain the predicted class" in row for row in rows)


def test_plan_that_is_not_toml_or_does_not_exist_is_an_error(tmp_path):
    (tmp_path / "plan.toml").write_text('name = "a"\nmodels = [1 2]')
    with pytest.raises(PlanError, match=r"not valid TOML.*line 2"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(PlanError, match=r"neither a file nor a plan of the package; the plans are .*scenes.*smoke"):
        read_plan("no-such-plan")


def test_method_that_does_not_apply_is_a_row_unless_none_applies(tmp_path, monkeypatch):
    def check(method, structure, options, stitch=False, model=None):
        if method.name == "rollout":
            raise NotApplicableError("rollout does not apply to this model: it attends inside windows")

    monkeypatch.setattr(Method, "check", check)
    text = ONE.replace(', "gradtoken"', "").replace("count = 4", "count = 1")
    with pytest.raises(PlanError, match=r"line 3: no method of the plan applies to scenes: .*inside windows"):
        open_store(text.replace("SEED", "6"), tmp_path, tmp_path)
    store = open_store(text.replace("SEED", "7").replace("controls = false", "controls = true"), tmp_path, tmp_path)
    assert {c.methods for c in store.chunks} == {("random", "centre", "edges")}
    assert "inside windows" in store.manifest()["refused"]["scenes"]["rollout"]
    LocalEngine(1).run(store.missing())
    (row,) = store.merge().filter(pl.col("method") == "rollout").to_dicts()
    assert (row["image"], row["value"]) == ("", None)
    assert "inside windows" in row["error"]


def test_folders_and_weights_can_be_given_in_addition_to_a_plan(tmp_path, monkeypatch):
    with pytest.raises(PlanError) as caught:
        read_plan("gradtoken_table1", overrides=PlanOverrides({"pets": "/x"}, {"deit-b": "/y"}, home=None))
    message = str(caught.value)
    assert "cannot be run, 4 problems" in message, "weights are not downloaded if there is another problem"
    assert re.search(r"line 20: the folder of imagenet-segmentation.*--data imagenet-segmentation=FOLDER", message)
    assert re.search(r"line 24: the folder of voc2012 is not given.*VITRAIL_DATA.*root = ", message)
    assert "--data pets=…: the plan has no such name, only imagenet-segmentation, voc2012" in message
    assert "--weights deit-b=…: the plan has no such name, only timm:vit_base" in message
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / "pets" / folder).mkdir(parents=True)
        for name in "xy":
            Image.new(mode, (40, 40)).save(tmp_path / "pets" / folder / f"{name}.png")
    text = ('name = "a"\nmodels = "scenes"\nmethods = "rollout"\nprotocols = "segmentation"\n'
            'dataset = { name = "masks", label = "pets" }')  # fmt: skip
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    from_home = read_text(text)
    from_option = read_text(text, PlanOverrides({"masks": str(tmp_path / "pets")}, limit=1, home=None))
    assert from_home.dataset[0].root == from_option.dataset[0].root == str(tmp_path / "pets")
    assert (from_home.dataset[0].limit, from_option.dataset[0].limit) == (None, 1)


# -- plans of the package ----------------------------------------------------------------------------------------------


def test_every_table_of_the_papers_has_a_valid_plan():
    papers = {}
    for name in plans():
        plan = parse_packaged(name)
        assert [*_check_methods(plan), *_check_protocols(plan)] == [], name
        assert plan_summary(name)
        assert plan.name == name
        papers[name] = plan.paper
    assert set(paper_tables()) - {"vitcx_fig1"} <= set(papers), "the figure shows four single images"
    assert papers == {name: None if name in OWN_PLANS else PARTS_OF_TABLES.get(name, name) for name in papers}
    with pytest.raises(PlanError, match=r"line 2: paper = 'vtranm_table9': choose one of vtranm_table1, "):
        read_text('name = "a"\npaper = "vtranm_table9"\nmodels = "scenes"\nmethods = "tam"\n'
                  'protocols = "complexity"\ndataset = { name = "scenes", limit = 1 }')  # fmt: skip


@pytest.mark.slow
def test_cifar100_runs_with_a_distilled_classifier_of_the_user(tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    classifier = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=100)
    save_file({k: v.contiguous() for k, v in classifier.state_dict().items()}, tmp_path / "deit.safetensors")
    records = np.random.default_rng(0).integers(0, 256, (10_000, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = 0, np.arange(10_000) % 100
    (tmp_path / "test.bin").write_bytes(records.tobytes())
    text = plans()["vtranm_table1_cifar100"].read_text("utf-8").replace("deit-b-d", "timm:deit_tiny_d").replace(
        "tiny_distilled", "tiny_distilled_patch16_224")  # fmt: skip
    overrides = PlanOverrides({"cifar100": str(tmp_path)}, {"classifier": str(tmp_path / "deit.safetensors")}, limit=2)
    plan = read_text(text, overrides)
    context = open_context(plan.model_dump_json())
    assert context.model(0).classes == 100
    assert context.model(0).structure.layout.readout == "distilled"
    assert context.same_classes(0, 0)
    assert len(context.images(0).ids) == 2
    with pytest.raises(PlanError, match=r"has 1000 classes and cifar100 has 100"):
        read_text(text.replace('label = "classifier"', 'label = "classifier", weights = "random"'),
                  PlanOverrides({"cifar100": str(tmp_path)}, limit=2))  # fmt: skip


def test_plans_keep_their_former_names_and_keys(monkeypatch):
    monkeypatch.setattr("vitrail.bench.plan.library_versions", lambda: {"vitrail": "0"})
    current = {"000": "vtranm", "003": "gradtoken", "004": "vitcx"}
    for former, key in FORMER_KEYS.items():
        name = current[former[:3]] + former[3:]
        assert find_plan(former) == plans()[name]
        plan = parse_packaged(name)
        assert plan.key(["w"] * len(plan.models), [["a", "b"]] * len(plan.dataset)) == key, name
        renamed = plan.model_copy(update={"name": former})
        assert renamed.key(["w"] * len(plan.models), [["a", "b"]] * len(plan.dataset)) == key
        assert type(plan).model_validate(plan.model_dump() | {"paper": former}).paper == name
    assert {current[former[:3]] + former[3:] for former in FORMER_KEYS} | OWN_PLANS | {*PARTS_OF_TABLES} == set(plans())


def test_imagenet1000_and_imagenet1000_many_differ_in_their_methods_only():
    halves = [parse_packaged(name) for name in ("imagenet1000", "imagenet1000_many")]
    one, many = (half.model_dump(exclude={"name", "methods"}) for half in halves)
    assert one == many
    shared = set(halves[0].specs()) & set(halves[1].specs())
    assert shared == {"leadlight", *CONTROLS}
    names = {spec.partition(":")[0] for half in halves for spec in half.specs()}
    assert set(METHODS) - names == {"inverted", "vit_shapley"}, "every other method is in one of them"


#: Families of methods that evaluate images of their own.
OWN_IMAGES = ("path", "input", "perturbation", "trained")


# -- method groups and chunks ------------------------------------------------------------------------------------------


def runs_alone(spec):
    """Whether a method, or the method it inverts, belongs to a family that evaluates images of its own."""
    name, _, rest = spec.partition(":of=")
    return runs_alone(rest) if name == "inverted" and rest else find(spec)[1].family in OWN_IMAGES


@pytest.mark.parametrize("name", plans())
def test_groups_of_every_plan_are_those_of_the_families(name):
    specs = parse_packaged(name).specs()
    alone = [(spec,) for spec in specs if runs_alone(spec)]
    assert group_methods(specs) == [*alone, tuple(spec for spec in specs if not runs_alone(spec))]


def test_groups_of_every_method_and_variant_are_those_of_the_families():
    specs = [spec for name, m in METHODS.items() for spec in (name, *(f"{name}:{variant}" for variant in m.variants))]
    specs += ["tam:steps=1", "smoothgrad:samples=1", "rise:masks=1"]
    specs += [f"inverted:of={name}" for name in METHODS if name != "inverted"]
    for spec in specs:
        assert group_methods([spec, "rollout"]) == (
            [(spec,), ("rollout",)] if runs_alone(spec) else [(spec, "rollout")]
        ), spec
    expected = [name for name, m in METHODS.items() if m.family != "control" and not runs_alone(name)]
    assert list(single_pass_methods()) == expected


def test_key_depends_on_weights_images_and_settings_and_not_on_paths(tmp_path):
    context = open_store(TINY, tmp_path, tmp_path).context
    plan, ids = context.plan, [context.images(i).ids for i in range(2)]
    key = plan.key(["w"], ids)
    moved = plan.model_copy(update={"dataset": tuple(d.model_copy(update={"root": "/else"}) for d in plan.dataset)})
    assert moved.key(["w"], ids) == key
    others = [
        plan.key(["v"], ids),
        plan.key(["w"], [ids[0], ids[1][:0]]),
        plan.model_copy(update={"seed": 1}).key(["w"], ids),
        plan.model_copy(update={"models": (plan.models[0].model_copy(update={"scores": "sigmoid"}),)}).key(["w"], ids),
    ]
    assert len({key, *others}) == 5


def test_images_are_spread_evenly_or_drawn_at_random_with_a_seed():
    ids = [f"image{i:04d}" for i in range(1000)]

    def select(**options):
        return _select_indices(DatasetSpec(name="imagenet", **options), ids)

    assert select(limit=4) == (0, 250, 500, 750)
    drawn = select(limit=200, draw=0)
    assert drawn == select(limit=200, draw=0) == tuple(sorted(set(drawn)))
    assert len(drawn) == 200
    assert set(select(limit=50, draw=0)) < set(drawn), "a smaller limit takes images of the same draw"
    assert 20 < len(set(drawn) & set(select(limit=200, draw=1))) < 60, "two draws share one image in five"
    assert 400 < sum(drawn) / 200 < 600
    assert select(limit=2000, draw=3) == tuple(range(1000))
    assert all(data.draw == 0 for name in ("vitcx_table1", "vitcx_table2") for data in parse_packaged(name).dataset)


def test_chunks_cover_everything_once_and_are_split_over_shards(tmp_path):
    store = open_store(TINY, tmp_path, tmp_path)
    assert [c.methods for c in store.chunks[:3]] == [("smoothgrad:samples=1",)] * 3
    assert store.chunks[-1].methods == ("rollout", "random")
    assert len({c.name for c in store.chunks}) == len(store.chunks) == 2 * (2 + 1)
    shards = [select_shard(store.chunks, parse_shard(f"{i}/4")) for i in (1, 2, 3, 4)]
    assert sorted(c.name for shard in shards for c in shard) == sorted(c.name for c in store.chunks)
    slurm = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "4"}
    assert parse_shard("env", slurm) == (1, 4)


# -- cost estimates ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dry_run_needs_neither_data_nor_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.bench.validate.weights_cached", lambda name: False)
    found = dry_run_plan("vitcx_table1", tmp_path, 2, overrides=PlanOverrides(home=None))
    assert found.folder is None
    assert found.estimate.images == 5000
    assert len(found.notes) == 4, "three models and one data set"
    swin = 2 + 1 + 55 + 28  # forward passes for an image on Swin, fewer than on the others, where more methods apply
    assert found.estimate.forwards > 5000 * swin
    assert found.estimate.maps == 5000 * (2 * 17 + 10)
    rows = dict(dry_run_all(1, overrides=PlanOverrides(home=None)))
    assert rows["gradtoken_table2"].estimate.images == 50_000
    assert rows["smoke"].notes == ()
    assert all(row.estimate.seconds > 0 and row.estimate.memory > 1 << 20 for row in rows.values())


def test_estimate_counts_what_the_evaluator_counts(tmp_path):
    store = open_store(TINY, tmp_path, tmp_path)
    estimate = estimate_run(store.context, store.chunks, 2)
    assert (estimate.images, estimate.maps, estimate.left) == (3, 9, 1.0)
    assert estimate.forwards > estimate.explaining > 0
    assert estimate.memory > 1 << 20
    plan, last = store.context.plan, store.chunks[-1]
    assert last.dataset == 1
    cost = scoring_cost(plan, plan.dataset[1], last.methods, measure_model(store.context, store.context.model(0)))
    assert cost == 1 + 2 * 18 * 0.5, "two class-agnostic methods, half a forward pass per level"
