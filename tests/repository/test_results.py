"""The committed results: completeness of the CSV, agreement with the page, and collection of runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.bench.plan import CONTROLS
from vitrail.bench.plan_file import PlanOverrides, parse_plan, plans
from vitrail.errors import DataError

pl = pytest.importorskip("polars")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results"


@pytest.fixture
def scripts(monkeypatch):
    """The two scripts in results/, which are not part of the package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import collect
    import show

    return collect, show


def read():
    with (FOLDER / "imagenet1000.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_method_and_control_of_the_plan_has_every_score():
    specs = {
        spec
        for name in ("imagenet1000", "imagenet1000_many")
        for spec in parse_plan(plans()[name].read_text(encoding="utf-8"), ROOT, PlanOverrides(home=None))[0].specs()
    }
    scores = {
        ("imagenet", "chefer21"): {"positive(black)", "negative(black)"},
        ("imagenet", "vtranm"): {"aopc(black)", "lodds(black)"},
        ("imagenet", "srg"): {"srg(black)"},
        ("imagenet", "srg-tokens"): {"srg(tokens)", "negative(tokens)"},
        ("imagenet", "pointing"): {"hit@0", "hit@15", "energy"},
        ("pets", "segmentation"): {"pixel_accuracy", "map", "miou"},
    }
    rows = read()
    there = {(r["dataset"], r["protocol"], r["score"], r["target"], r["method"]): r for r in rows}
    assert len(there) == len(rows), "duplicate rows"
    wanted = [(d, p, s, t, m) for (d, p), names in scores.items() for s in names for t in ("predicted", "label")
              for m in specs]  # fmt: skip
    for key in wanted:
        row = there[key]
        assert float(row["low"]) <= float(row["value"]) <= float(row["high"]), key
        assert int(row["images"]) == (300 if key[0] == "pets" else 1000), key
        assert (row["control"] == "True") == (key[-1] in CONTROLS)


def test_the_manifest_has_hashes_and_no_paths():
    text = (FOLDER / "imagenet1000-manifest.json").read_text(encoding="utf-8")
    found = json.loads(text)
    assert {data: one["images"] for data, one in found["data"].items()} == {"imagenet": 1000, "pets": 300}
    assert found["rows_without_a_score"] == 0
    assert all(len(model["weights_sha256"]) == 64 for model in found["models"])
    runs = {run["key"]: run for run in found["runs"]}
    assert {row["run"] for row in read()} <= set(runs)
    named = [method for run in runs.values() for method in run["methods"]]
    assert sorted(named) == sorted({row["method"] for row in read()}), "each method must come from one run"
    assert not any(part in text for part in ("/", "\\")), "the manifest has a path"


def test_the_page_agrees_with_the_csv(scripts):
    _, show = scripts
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == show.updated(page, show.ResultsTable(FOLDER / f"{show.NAME}.csv")), "run python results/show.py"
    assert (ROOT / "docs" / show.FIGURE).stat().st_size < 150_000


def make_run(folder, name, methods, seed=0, shift=0.0):
    """Write the folder of a run with twelve images and two scores."""
    folder.mkdir()
    plan = {"name": name, "models": ["scenes"], "dataset": {"name": "scenes", "label": "few"}, "methods": methods,
            "protocols": ["complexity", "pointing"], "targets": ["predicted", "label"], "seed": seed}  # fmt: skip
    manifest = {"key": name, "plan": plan, "weights": {"scenes": "0" * 64}, "accelerator": "none", "machine": "m",
                "versions": {"vitrail": "absent", "torch": "2"}}  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    rows = []
    for index, method in enumerate([*methods, *CONTROLS]):
        noise = np.random.default_rng(index).normal(size=12) / 100
        for target in ("predicted", "label"):
            for i in range(12):
                label_gain = 0.1 if target == "label" and method not in CONTROLS else 0.0
                own = 0.2 if method in CONTROLS else 0.5 + index / 10 + shift + label_gain
                rows += [("few", f"{i:02}", method, target, protocol, score, own + noise[i], 3 + (i == 0) * len(target),
                          None) for protocol, score in (("pointing", "energy"), ("complexity", "gini"))]  # fmt: skip
    columns = ("dataset", "image", "method", "target", "protocol", "score", "value", "explained", "error")
    schema = dict.fromkeys(columns, pl.String) | {"value": pl.Float64, "explained": pl.Int32}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / "scores.parquet")
    return folder


def test_runs_are_merged_and_the_last_one_wins(scripts, tmp_path):
    collect, _ = scripts
    one = collect.CollectedRun(make_run(tmp_path / "a", "a", ["rollout", "gradtoken"]))
    two = collect.CollectedRun(make_run(tmp_path / "b", "b", ["gradtoken", "tam"], shift=0.3))
    merged, source = collect.merge([one, two])
    collect.store_values(merged, tmp_path / "values.parquet")
    stored = collect.read_values(tmp_path / "values.parquet")
    assert stored.height == merged.height
    rows = list(collect.csv_rows(stored, source, ["few"], ["complexity", "pointing"]))
    energy = {r["method"]: r for r in rows if (r["score"], r["target"]) == ("energy", "label")}
    from_second = dict.fromkeys(("gradtoken", "tam", *CONTROLS), "b")
    assert {name: r["run"] for name, r in energy.items()} == {"rollout": "a"} | from_second
    assert list(energy)[:3] == ["tam", "gradtoken", "rollout"]
    assert (energy["tam"]["to_best"], energy["rollout"]["p_to_control"] < "0.05") == ("", True)
    assert float(energy["gradtoken"]["value"]) == pytest.approx(90, abs=1), "in percent, from the second run"
    assert float(energy["tam"]["to_predicted"]) == pytest.approx(10, abs=0.001)
    assert not {"to_predicted"} & (energy["random"].keys() | energy["rollout"].keys()), "class-agnostic"
    gini = [r for r in rows if r["score"] == "gini"]
    assert {(r["unit"], r["to_best"], r["to_control"]) for r in gini} == {("", "", "")}, "no better direction"
    manifest = collect.manifest([one, two])
    assert [run["methods"] for run in manifest["runs"]] == [
        ["rollout"],
        ["gradtoken", "random", "centre", "edges", "tam"],
    ]
    assert manifest["data"]["few"] | {"ids_sha256": ""} == {"images": 12, "right": 11, "ids_sha256": ""}
    assert manifest["runs"][0]["versions"]["vitrail"] == "from source"


def test_runs_with_different_settings_are_not_merged(scripts, tmp_path):
    collect, _ = scripts
    runs = [collect.CollectedRun(make_run(tmp_path / f"{seed}", "a", ["tam"], seed=seed)) for seed in (0, 1)]
    with pytest.raises(DataError, match="differ in seed"):
        collect.merge(runs)
    (tmp_path / "0" / "scores.parquet").unlink()
    with pytest.raises(DataError, match=r"neither results.parquet nor scores.parquet"):
        collect.CollectedRun(tmp_path / "0")


def test_three_models_are_collected(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    import three_models

    def write_run(folder, methods, images):
        folder.mkdir()
        for shift, model in enumerate(three_models.TITLES):
            rows = []
            for level, method in methods.items():
                for image in (f"{i:02}" for i in range(images)):
                    values = {(c.dataset, c.protocol, c.score): level + rng.normal() / 10 for c in three_models.SCORES
                              if c.dataset == "imagenet"}  # fmt: skip
                    values |= {("pets", "segmentation", name): float(rng.integers(1, 90)) for name in regions}
                    values |= {("pets", "segmentation", n): 90.0 for n in ("foreground", "background")}
                    values["pets", "segmentation", "ap"] = 0.1 * level if shift else 0.5 - 0.1 * level
                    rows += [(model, d, image, method, "predicted", p, s, v)
                             for (d, p, s), v in values.items()]  # fmt: skip
            names = ("model", "dataset", "image", "method", "target", "protocol", "score", "value")
            schema = dict.fromkeys(names, pl.String) | {"value": pl.Float64}
            pl.DataFrame(rows, schema=schema, orient="row").write_parquet(folder / f"scores-{model}.parquet")
        plan = {"models": [{"label": m, "name": m} for m in three_models.TITLES], "view": "", "precision": "",
                "matmul": "", "seed": 0, "targets": ["predicted"]}  # fmt: skip
        about = {"plan": plan, "weights": dict.fromkeys(three_models.TITLES, "0"), "refused": {}, "key": folder.name,
                 "methods": list(methods.values()), "images": {"imagenet": images, "pets": images}, "accelerator": "",
                 "machine": "", "versions": {}}  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(about), encoding="utf-8")

    rng = np.random.default_rng(0)
    regions = [f"{kind}/{i}" for kind in ("true", "false") for i in range(11)]
    write_run(tmp_path / "first", {0: "random", 1: "centre", 9: "tam"}, 12)
    write_run(tmp_path / "again", {3: "tam", 4: "rollout"}, 12)
    write_run(tmp_path / "few", {5: "rise"}, 6)
    monkeypatch.setattr(three_models, "HERE", tmp_path)
    three_models.collect([tmp_path / name for name in ("first", "again", "few")])
    found = {}
    for name, stem in three_models.SETS.items():
        with (tmp_path / f"{stem}.csv").open(encoding="utf-8", newline="") as file:
            found[name] = list(csv.DictReader(file))
    assert {row["method"] for row in found["single"]} == {"random", "centre", "tam", "rollout"}
    assert {row["method"] for row in found["all"]} == {"random", "centre", "tam", "rollout", "rise"}
    assert [{row["images"] for row in rows} for rows in found.values()] == [{"12"}, {"6"}]
    tam = [float(r["value"]) for r in found["single"] if (r["method"], r["score"]) == ("tam", "srg(black)")]
    assert all(abs(value - 3) < 0.2 for value in tam), "the method must come from the last run that has it"
    table = three_models.read_table(tmp_path / "three_models_single.csv")
    ranks = three_models.ranks(table)
    assert ranks["rollout"]["vit-t", three_models.show.SRG_BLACK] == 1
    assert ranks["rollout"]["vit-t", three_models.show.POSITIVE] == 2, "lower is better"
    claims = three_models.claims_table(table)
    assert "| SRG, tokens ↑ | `rollout` " in claims
    assert "`rollout` | 2 of 2 |" in next(line for line in claims.splitlines() if line.startswith("| SRG, black"))
    m_ap = next(line for line in claims.splitlines() if line.startswith("| mAP"))
    assert m_ap.split(" | ")[1:3] == ["`tam` 20.0", "`rollout` 40.0"]
