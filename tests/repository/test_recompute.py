"""`studies/recompute.py` on made-up values with known answers, and on the committed results."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = "vit_tiny_patch16_224"


@pytest.fixture
def studies(monkeypatch):
    """Scripts of studies/, which are not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    import check_values
    import compare
    import recompute
    import trust
    import value_tables

    return SimpleNamespace(
        checks=check_values, compare=compare, recompute=recompute, trust=trust, tables=value_tables
    )  # fmt: skip


def check(verdict="faithful", statistic=1.0, p_value=0.01, **more):
    """The fields of a `MapCheck` that studies read."""
    fields = dict.fromkeys(("class", "noise", "seed", "head", "block"))
    similarities = {f"{name}_similarity": value for name, value in fields.items()} | more
    return SimpleNamespace(
        verdict=verdict, statistic=statistic, p_value=p_value, controls={"centre": 0.5}, forwards=100, **similarities
    )


def change_value(studies, path, score, method):
    """Change one value of a file."""
    values = studies.tables.read_values(path)
    values[score][method][0] += 0.5
    studies.tables.write_values(path, values)


def test_areas_and_shares_of_known_maps(studies):
    statistics = {"right: truth": [3.0, 2.0, 4.0, 1.0], "noise: noise": [1.0, 0.0, 0.5, 0.0]}
    # In single precision 0.05 is above 0.05; such a map passes all the same.
    maps = [(name, check(statistic=own[i], p_value=0.05 if name[0] == "r" else 0.06))
            for i in range(4) for name, own in statistics.items()]  # fmt: skip
    values = studies.tables.in_single_precision(studies.checks.removal_values(maps))
    found = studies.checks.summarise_scenes(values)
    assert found["scenes"] == 2
    assert found["roc_auc"] == found["roc_auc_against"]["noise"] == (15 + 0.5) / 16
    assert found["passes"] == {"right: truth": 1, "noise: noise": 0}
    # One of 16 pairs is equal, and it is of two scenes: draws of the same scene twice have none.
    assert found["roc_auc_interval"] == [15.5 / 16, 1]


def test_a_changed_value_is_named_and_missing_ones_are_counted(studies, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(studies.checks, "SCENE_DRAWS", 50)
    maps = [
        (f"{kind}: truth", check(statistic=s + 0.1 * i)) for i in range(6) for kind, s in (("right", 1), ("noise", 0))
    ]
    values = studies.tables.in_single_precision(studies.checks.removal_values(maps))
    scenes = studies.checks.summarise_scenes(values)
    (tmp_path / "trust.json").write_text(json.dumps({"manifest": {}, "scenes": scenes}))
    main = studies.recompute.main
    arguments = ["trust", "--folder", str(tmp_path)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "trust: 6 rows, 0 differ, 6 without values\n"
    assert main([*arguments, "--strict"]) == 1
    path = tmp_path / "trust-scenes.parquet"
    studies.tables.write_values(path, values)
    capsys.readouterr()
    assert main([*arguments, "--strict"]) == 0
    assert capsys.readouterr().out == "trust: 6 rows, 0 differ, 0 without values\n"
    change_value(studies, path, "passes", "noise: truth")
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "6 rows, 1 differ" in printed
    assert "scenes passes noise: truth: [1.0] published, [1.08" in printed


def test_later_methods_join_rows_and_values_of_photographs(studies, tmp_path, monkeypatch, capsys):
    own = {"a": [check(class_similarity=0.25), check("unstable", statistic=0.0, p_value=0.5)], "b": [check(), check()]}

    def measured(name, methods, assets, count, device):
        values = studies.checks.verdict_values(
            {m: own[m][:count] for m in methods}, {f"{methods[0]} inverted": [True, False][:count]}
        )
        values = studies.tables.in_single_precision(values)
        rows, passes = studies.checks.summarise_verdicts(values)
        return {"model": name, "images": count, "methods": rows, "wrong_maps_pass": passes}, values

    monkeypatch.setattr(studies.trust, "study_photographs", measured)
    monkeypatch.setattr(studies.trust, "MaskFolder", lambda _: range(studies.trust.CHOICE + 2))

    def run(*arguments):
        fixed = ["--scenes", "0", "--assets", "none", "--models", MODEL, "--out", str(tmp_path / "trust.json")]
        monkeypatch.setattr(sys, "argv", ["trust.py", *fixed, *arguments])
        studies.trust.main()
        return json.loads((tmp_path / "trust.json").read_text())[MODEL]

    run("--methods", "a", "--images", "2")
    found = run("--methods", "b", "--images", "2")
    assert found["methods"].keys() == {"a", "b"}
    assert found["methods"]["a"]["verdicts"] == {
        "no better than chance": 0, "unstable": 0.5, "not class-specific": 0, "faithful": 0.5
    }  # fmt: skip
    numbers = ("better_than_chance", "better_than_centre", "class_similarity", "forwards")
    assert [found["methods"]["a"][key] for key in numbers] == [0.5, 0.5, 0.25, 100]
    assert "noise_similarity" not in found["methods"]["a"]
    assert found["wrong_maps_pass"] == {"a inverted": 0.5, "b inverted": 0.5}
    capsys.readouterr()
    assert studies.recompute.main(["trust", "--folder", str(tmp_path), "--strict"]) == 0
    assert capsys.readouterr().out == "trust: 4 rows, 0 differ, 0 without values\n"
    change_value(studies, tmp_path / f"trust-{MODEL}.parquet", "class_similarity", "a")
    assert studies.recompute.main(["trust", "--folder", str(tmp_path)]) == 1
    assert f"  {MODEL} a: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="a would be lost"):
        run("--methods", "b", "--images", "1")
    assert run("--methods", "a", "b", "--images", "1")["images"] == 1
    assert studies.recompute.main(["trust", "--folder", str(tmp_path), "--strict"]) == 0


def comparison(values, ids=("x", "y", "z", "w") * 4):
    """What the study makes of one model, before methods are joined."""
    rows = [{"method": method, "forwards": 3.0} for method in values]
    return {"model": MODEL, "ids": list(ids), "rows": rows, "refused": {"slow": "costs much"}}, {"faithfulness": values}


def test_compared_methods_are_ranked_with_those_of_an_earlier_run(studies, tmp_path, capsys):
    noise = np.random.default_rng(0).normal(scale=0.01, size=(4, 16))
    levels = {"a": 0.3, "b": 0.5, "centre": 0.1, "random": 0.0}
    values = {name: (level + noise[i]).tolist() for i, (name, level) in enumerate(levels.items())}
    first = studies.compare.joined({}, {}, *comparison({m: values[m] for m in ("a", "centre", "random")}))
    assert first[0]["recommended"] == "a"
    ids = first[0]["ids"]
    assert studies.compare.reason_not_joined(*first, ids, ["b"]) == ""
    assert "no values of a" in studies.compare.reason_not_joined(first[0], {}, ids, ["b"])
    assert "other images" in studies.compare.reason_not_joined(*first, ids[1:], ["b"])
    assert studies.compare.reason_not_joined(first[0], {}, ids[1:], ["a", "centre", "random"]) == ""
    both, kept = studies.compare.joined(*first, *comparison({m: values[m] for m in ("b", "centre", "random")}))
    assert [row["method"] for row in both["rows"]] == ["b", "a", "centre", "random"]
    assert both["recommended"] == "b"
    a = both["rows"][1]
    assert a["to_best"][0] == pytest.approx(np.mean(values["a"]) - np.mean(values["b"]), abs=1e-6)
    assert not a["tied_with_best"]
    assert a["class_similarity"] is None
    (tmp_path / "compare.json").write_text(json.dumps({"manifest": {}, MODEL: both, "old": both}))
    studies.tables.write_values(tmp_path / f"compare-{MODEL}.parquet", kept)
    arguments = ["compare", "--folder", str(tmp_path)]
    assert studies.recompute.main(arguments) == 0
    assert capsys.readouterr().out == "compare: 8 rows, 0 differ, 4 without values\n"
    change_value(studies, tmp_path / f"compare-{MODEL}.parquet", "faithfulness", "a")
    assert studies.recompute.main(arguments) == 1
    printed = capsys.readouterr().out
    assert f"{MODEL} a: " in printed
    assert f"{MODEL} b: " not in printed


def test_checks_of_worlds_are_collected_with_their_values(studies, tmp_path, capsys):
    pytest.importorskip("polars")
    sys.path.insert(0, str(ROOT / "results"))
    spec = importlib.util.spec_from_file_location("results_worlds", ROOT / "results" / "worlds.py")
    worlds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worlds)
    sys.path.remove(str(ROOT / "results"))
    maps = [
        (f"{kind}: truth", check(statistic=s * i)) for i in range(4) for kind, s in (("right", 1), ("shuffled", -1))
    ]
    values = studies.tables.in_single_precision(studies.checks.removal_values(maps))
    row = {"model": "scenes-clip", **studies.checks.summarise_known(values, studies.checks.WORLD_DRAWS)}
    run, all_tasks = tmp_path / "checks.json", tmp_path / "worlds-checks.json"
    run.write_text(json.dumps({"captions": row}))
    studies.tables.write_values(tmp_path / "checks-captions.parquet", values)
    assert studies.recompute.main(["worlds", "--folder", str(tmp_path), "--strict"]) == 0
    assert capsys.readouterr().out == "worlds: 6 rows, 0 differ, 0 without values\n"
    all_tasks.write_text(json.dumps({"boxes": {"model": "scenes-detr"}, "captions": {"model": "old"}}))
    worlds.add_checks(run, all_tasks)
    found = json.loads(all_tasks.read_text())
    assert list(found) == ["boxes", "captions"]
    assert found["captions"] == row
    copy = tmp_path / "worlds-checks-captions.parquet"
    assert studies.tables.read_values(copy) == values
    (tmp_path / "checks-captions.parquet").unlink()
    worlds.add_checks(run, all_tasks)
    assert not copy.exists(), "values of a row that was replaced are not those of the new one"


@pytest.mark.slow
def test_committed_results_are_those_of_their_values(studies, capsys):
    assert studies.recompute.main(["--strict", "--show"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  scenes roc_auc: ") and line.endswith(" recomputed") for line in shown)
    tables = [line for line in shown if not line.startswith(" ")]
    assert len(tables) == len(studies.recompute.TABLES)
