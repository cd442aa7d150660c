"""Plans are checked as a whole before anything runs, and say what they would take."""

from __future__ import annotations

import re

import pytest
from PIL import Image

from benching import ONE, TINY, store_of
from vitrail.bench.dry_run import about, overview, trial
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.engines.shard import parse_shard, share
from vitrail.bench.estimate import estimate, scoring_cost
from vitrail.bench.plan import CONTROLS, PlanError, PlanOverrides, parse, plans
from vitrail.bench.validate import _methods, _protocols, read_plan
from vitrail.errors import NotApplicableError
from vitrail.methods import METHODS, Method
from vitrail.papers import tables

pl = pytest.importorskip("polars")


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
    def check(method, structure, options, stitch=False):
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


def test_key_counts_what_decides_the_numbers_and_not_where_files_lie(tmp_path):
    stage = store_of(TINY, tmp_path, tmp_path).stage
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


def test_chunks_cover_everything_once_and_shards_share_them(tmp_path):
    store = store_of(TINY, tmp_path, tmp_path)
    assert [c.methods for c in store.chunks[:3]] == [("smoothgrad:samples=1",)] * 3
    assert store.chunks[-1].methods == ("rollout", "random")
    assert len({c.name for c in store.chunks}) == len(store.chunks) == 2 * (2 + 1)
    shares = [share(store.chunks, parse_shard(f"{i}/4")) for i in (1, 2, 3, 4)]
    assert sorted(c.name for some in shares for c in some) == sorted(c.name for c in store.chunks)
    slurm = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "4"}
    assert parse_shard("env", slurm) == (1, 4)


def test_every_table_of_the_papers_has_a_plan_that_is_sound():
    found = {}
    for name, path in plans().items():
        plan, _, problems = parse(path.read_text(encoding="utf-8"), path.parent, PlanOverrides(home=None))
        assert plan is not None, problems
        assert [*problems, *_methods(plan), *_protocols(plan)] == [], name
        assert about(name)
        found[name] = plan.paper
    assert {name for name in tables() if name != "004_fig1"} <= set(found), "one picture each is not a benchmark"
    own = {"imagenet1000", "imagenet1000_many", "scenes", "smoke"}
    assert {paper for paper in found.values() if paper} == set(found) - own
    with pytest.raises(PlanError, match=r"line 2: paper = '000_table9': take one of 000_table1, "):
        check_text('name = "a"\npaper = "000_table9"\nmodels = "scenes"\nmethods = "tam"\nprotocols = "complexity"\n'
                   'dataset = { name = "scenes", limit = 1 }')  # fmt: skip


def test_the_two_halves_of_imagenet1000_differ_in_their_methods_only():
    halves = [parse(plans()[n].read_text(encoding="utf-8"), plans()[n].parent, PlanOverrides(home=None))[0]
              for n in ("imagenet1000", "imagenet1000_many")]  # fmt: skip
    one, many = (half.model_dump(exclude={"name", "methods"}) for half in halves)
    assert one == many
    shared = set(halves[0].specs()) & set(halves[1].specs())
    assert shared == {"leadlight", *CONTROLS}
    names = {spec.partition(":")[0] for half in halves for spec in half.specs()}
    assert set(METHODS) - names == {"inverted"}, "every method is in one of them"


def check_text(text, given=None):
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return read_plan(path, given=given)[0]


def test_folders_and_weights_are_given_beside_a_plan(tmp_path, monkeypatch):
    with pytest.raises(PlanError) as caught:
        read_plan("003_table1", given=PlanOverrides({"pets": "/x"}, {"deit-b": "/y"}, home=None))
    said = str(caught.value)
    assert "cannot be run, 4 problems" in said, "weights are not fetched where something else is wrong"
    assert re.search(r"line 20: imagenet-segmentation is read from files.*--data imagenet-segmentation=FOLDER", said)
    assert re.search(r"line 24: voc2012 is read from files.*VITRAIL_DATA.*root = ", said)
    assert "--data pets=…: the plan has no such name, only imagenet-segmentation, voc2012" in said
    assert "--weights deit-b=…: the plan has no such name, only timm:vit_base" in said
    for part, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / "pets" / part).mkdir(parents=True)
        for name in "xy":
            Image.new(mode, (40, 40)).save(tmp_path / "pets" / part / f"{name}.png")
    text = ('name = "a"\nmodels = "scenes"\nmethods = "rollout"\nprotocols = "segmentation"\n'
            'dataset = { name = "masks", label = "pets" }')  # fmt: skip
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    by_home, said = (
        check_text(text),
        check_text(text, PlanOverrides({"masks": str(tmp_path / "pets")}, limit=1, home=None)),
    )
    assert by_home.dataset[0].root == said.dataset[0].root == str(tmp_path / "pets")
    assert (by_home.dataset[0].limit, said.dataset[0].limit) == (None, 1)


def test_a_trial_needs_neither_data_nor_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.bench.validate.at_hand", lambda name: False)
    found = trial("004_table1", tmp_path, 2, given=PlanOverrides(home=None))
    assert found.folder is None
    assert found.found.images == 5000
    assert len(found.notes) == 4, "three models and the pictures"
    swin = 2 + 1 + 55 + 28  # what is looked at for a map of Swin, less than of the others, which more methods fit
    assert found.found.forwards > 5000 * swin
    assert found.found.maps == 5000 * (2 * 17 + 10)
    rows = dict(overview(1, given=PlanOverrides(home=None)))
    assert rows["003_table2"].found.images == 50_000
    assert rows["smoke"].notes == ()
    assert all(trial.found.seconds > 0 and trial.found.memory > 1 << 20 for trial in rows.values())


def test_dry_run_counts_what_the_evaluator_counts(tmp_path):
    store = store_of(TINY, tmp_path, tmp_path)
    found = estimate(store.stage, store.chunks, 2)
    assert (found.images, found.maps, found.left) == (3, 9, 1.0)
    assert found.forwards > found.explaining > 0
    assert found.memory > 1 << 20
    from vitrail.bench.cost import measured

    plan, last = store.stage.plan, store.chunks[-1]
    assert last.data == 1
    body = measured(store.stage, store.stage.model(0))
    cost = scoring_cost(plan, plan.dataset[1], last.methods, body)
    assert cost == 1 + 2 * 18 * 0.5, "two methods blind to classes, half a forward a level"
