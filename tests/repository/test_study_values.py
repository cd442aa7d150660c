"""Studies compute their rows from values of each image, which are kept; a later run of other methods keeps both."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Import a module of the studies; recomputed tables are those of a temporary folder."""
    monkeypatch.syspath_prepend(str(STUDIES))
    before = set(sys.modules)
    monkeypatch.setattr(importlib.import_module("recompute"), "RESULTS", tmp_path)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(STUDIES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def compared(study, table: str) -> dict[str, bool | None]:
    """Whether each row is the same again; None without values."""
    recompute = study("recompute")
    rows = recompute.TABLES[table](recompute.RESULTS)
    return {what: None if again is None else recompute.is_same(own, again) for what, own, again in rows}


def shift(study, path: Path, score: str, method: str, by: float = 0.001) -> None:
    """Change the values of a score of a method in a file."""
    tables = study("value_tables")
    values = tables.read_values(path)
    values[score][method] = [v + by for v in values[score][method]]
    tables.save_values(path, values)


def segmented(study, found: tuple[int, ...], prefix: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """Values of images with four object pixels of eight, some of which a map of zeros and ones marks."""
    from vitrail.scores import SegmentationScores, score_segmentation

    masks = torch.tensor([[[1, 1, 1, 1, 0, 0, 0, 0]]] * len(found))
    maps = torch.tensor([[[float(k < n) for k in range(8)]] for n in found])
    scores, values = SegmentationScores(), {}
    scores.add([f"{i}" for i in range(len(found))], score_segmentation(maps, masks))
    study("score_values").add_scores(values, "m", scores, names, prefix)
    return {score: own["m"] for score, own in values.items()}


def measure_twice(study, monkeypatch, out: Path, runs: dict[str, dict[str, list[float]]], name: str) -> list[dict]:
    """Measure one method after the other with a study of masked images; the results after each."""
    images, module = study("masked_images"), study(name)
    loaded = argparse.Namespace(name="timm:tiny")
    monkeypatch.setattr(images, "open_dataset", lambda *_: None)
    monkeypatch.setattr(images, "open_model", lambda *_: (loaded, "tiny.safetensors"))
    args = argparse.Namespace(data="masks", root=Path("pets"), out=out, device="cpu", count=2, models=["timm:tiny"])
    found = []
    for method, own in runs.items():
        values = {score: {method: column} for score, column in own.items()}
        rows = module.summarise(values)
        if name == "vitcx_combinations":
            rows = {"combinations": [{"spec": s, "name": "", **row} for s, row in rows.items()]}
        images.measure_models(args, lambda *_, r=rows, v=values: ({"images": 2, **r}, v), lambda _: None)
        found.append(json.loads(out.read_text(encoding="utf-8"))["results"][0])
    return found


def test_readings_of_gradtoken(study, tmp_path, monkeypatch):
    module = study("gradtoken_readings")
    kept = module.SEGMENTATION, module.SEGMENTATION_SCORES
    runs = {
        "gradtoken:0": {**segmented(study, (4, 2), *kept), "pairs share": [1.0, 0.5], "pairs flat": [0.0, 1.0]},
        "gradtoken:4": {**segmented(study, (1, 1), *kept), "pairs share": [0.0, 0.5], "pairs flat": [0.0, 0.0]},
    }
    first, second = measure_twice(study, monkeypatch, tmp_path / "gradtoken-readings.json", runs, module.__name__)
    row = first["segmentation"]["gradtoken:0"]
    # 6 of 8 object pixels are found, and all 8 of the background beside the 2 that are missed.
    expected = 100 * 14 / 16, 100 * (6 / 8 + 8 / 10) / 2
    assert (row["PAcc (%)"], row["mIoU (%)"], row["images"]) == (*map(pytest.approx, expected), 2)
    assert first["pairs"]["gradtoken:0"] == {"accuracy": 75.0, "constant": 1, "maps": 4}
    for table in ("segmentation", "pairs"):
        assert second[table].keys() == runs.keys()
        assert second[table]["gradtoken:0"] == first[table]["gradtoken:0"]
    assert list(compared(study, "gradtoken").values()) == [True] * 4
    path = tmp_path / "gradtoken-readings-tiny.parquet"
    shift(study, path, "segmentation ap", "gradtoken:0")
    shift(study, path, "pairs share", "gradtoken:4")
    differ = [what for what, same in compared(study, "gradtoken").items() if not same]
    assert differ == ["timm:tiny segmentation gradtoken:0", "timm:tiny pairs gradtoken:4"]
    path.unlink()
    assert set(compared(study, "gradtoken").values()) == {None}


def test_combinations_of_vitcx(study, tmp_path, monkeypatch):
    module = study("vitcx_combinations")

    def run(found: tuple[int, int], impact: float) -> dict[str, list[float]]:
        own = segmented(study, found, module.SEGMENTATION, module.SEGMENTATION_SCORES)
        own |= {"deletion(mean)": [0.25, 0.5], "insertion(mean)": [0.5, 1.0], "insertion(blur)": [0.5, 0.5]}
        own |= {"impact mean": [impact, 0.5], "impact variance": [0.125, 0.5], "impact masks": [10.0, 20.0]}
        return own | {"seconds": [1.0, 3.0], "msim before": [0.5, 1.0], "msim after": [0.25, 0.5]}

    runs = {"vit_cx": run((4, 2), 0.95), "vit_cx:paper": run((1, 1), 0.25)}
    out = tmp_path / "vitcx-combinations-h200.json"
    first, second = measure_twice(study, monkeypatch, out, runs, module.__name__)
    (row,) = first["combinations"]
    assert [row[name][0] for name in ("deletion(mean)", "pixel_accuracy", "miou")] == [0.375, 0.875, 0.775]
    assert (row["masks"], row["seconds"], row["msim"]) == ([15.0, 5.0], [2.0, 1.0], {"before": 0.75, "after": 0.375})
    assert (row["overdetermined"], row["variance"], row["images"]) == (0.5, 0.125, 2)
    assert second["combinations"][0] == row
    assert [one["spec"] for one in second["combinations"]] == list(runs)
    assert second["combinations"][1]["variance"] is None, "no image has a mean impact above the threshold"
    assert list(compared(study, "vitcx").values()) == [True, True]
    shift(study, tmp_path / "vitcx-combinations-h200-tiny.parquet", "insertion(blur)", "vit_cx:paper")
    assert compared(study, "vitcx") == {"timm:tiny vit_cx": True, "timm:tiny vit_cx:paper": False}


def test_scores_from_values_are_those_that_were_kept(study):
    values = segmented(study, (3, 1), "s ", ("true", "ap"))
    assert set(values) == {"s ap", *(f"s true/{k}" for k in range(11))}
    tables = {score: {"m": own} for score, own in values.items()} | {"other": {"m": [9.0, 9.0]}}
    from vitrail.scores import SegmentationScores

    scores = study("score_values").scores_of(SegmentationScores, tables, "m", "s ")
    assert np.array_equal(scores.column("true")[:, 0], [3.0, 1.0])
    assert scores.column("true").shape == (2, 11)


def test_rows_of_shapley_values(study, tmp_path):
    rows = study("srg_rows")
    out = tmp_path / "shapley.csv"
    prior, other, few = ("shapley", 512, "prob", "uniform"), ("rollout", 0, "", ""), ("shapley", 64, "prob", "None")
    first = {prior: np.array([0.5, 0.75]), other: np.array([0.25, 0.25])}
    about = {"images": 2, "budgets": [512]}
    rows.save_rows(out, {"tiny": first}, about)
    found = study("study").read_csv(out)
    assert [(row["method"], row["srg"], row["images"]) for row in found] == [
        ("shapley", "0.625", "2"), ("rollout", "0.25", "2")
    ]  # fmt: skip
    rows.save_rows(out, {"tiny": {few: np.array([0.0, 0.5])}, "base": first}, {**about, "budgets": [64]})
    again = study("study").read_csv(out)
    assert again[:2] == found
    assert [(row["model"], row["forwards"]) for row in again[2:]] == [("tiny", "64"), ("base", "512"), ("base", "0")]
    content = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert content["budgets"] == [64, 512]
    gaps = {(one["model"], one["form"][1]): (one["against"][0], one["value"]) for one in content["comparison"]}
    expected = ("rollout", 0.375)
    # The form of the second run is compared with a method of the first.
    assert gaps == {("tiny", 512): expected, ("tiny", 64): ("rollout", 0.0), ("base", 512): expected}
    assert set(compared(study, "shapley").values()) == {True}
    shift(study, tmp_path / "shapley-tiny.parquet", rows.SRG, "shapley|64|prob|None")
    differ = [what for what, same in compared(study, "shapley").items() if not same]
    assert differ == ["tiny shapley 64 prob None", "comparison tiny shapley 64 prob None"]
    (tmp_path / "shapley-base.parquet").unlink()
    without = [what for what, same in compared(study, "shapley").items() if same is None]
    assert without == ["base shapley 512 prob uniform", "base rollout 0  ", "comparison base shapley 512 prob uniform"]
    with pytest.raises(SystemExit, match="has rows of 2 images, this run 3"):
        rows.check_same_images(out, 3)


def test_overdetermination(study, tmp_path, monkeypatch):
    """A stand-in for ViT-CX, whose masks of every image have the impacts that its name says."""
    module = study("overdetermination")
    impacts = {"high": [0.95, 1.0], "low": [0.25, 0.75]}

    def explain(model, images, method, **_):
        own = [torch.tensor([impacts[method]]) for _ in range(len(images))]
        return argparse.Namespace(intermediates={"impact": [own]})

    class Photographs(list):
        def __init__(self, _):
            super().__init__(argparse.Namespace(id=f"{i}", image=i) for i in range(4))

    monkeypatch.setattr(module.vitrail, "explain", explain)
    monkeypatch.setattr(module, "ImageNet", Photographs)
    monkeypatch.setattr(module, "load", lambda *_: (None, lambda _: torch.zeros(3, 2, 2)))
    out = tmp_path / "overdetermination.json"
    for method in impacts:
        words = ["--assets", tmp_path, "--models", "vit-t", "--images", 4, "--methods", method, "--out", out]
        monkeypatch.setattr(sys, "argv", ["overdetermination.py", *map(str, words)])
        module.main()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]["vit-t"]
    assert [(rows[m]["images"], rows[m]["share"], rows[m]["masks"]) for m in impacts] == [(4, 1.0, 2.0), (4, 0.0, 2.0)]
    assert rows["high"]["mean"] == pytest.approx(0.975)
    assert rows["low"]["variance"] is None
    assert compared(study, "overdetermination") == {"vit-t high": True, "vit-t low": True}
    shift(study, tmp_path / "overdetermination-vit-t.parquet", "mean", "low")
    assert compared(study, "overdetermination") == {"vit-t high": True, "vit-t low": False}


def test_values_of_cards(study, tmp_path):
    module, tables = study("card_values"), study("value_tables")
    nan = float("nan")
    values = {"constant": [0.0, 0.0, 1.0], "repeat": [1.0, 1.0, nan], "repeat equal": [1.0, 1.0, 0.0],
              "noise": [0.25, 0.75, nan], "options discard=0": [0.5, 0.5], "completeness": [0.125, 0.5, 0.25],
              "head": [nan, nan, nan]}  # fmt: skip
    row = module.summarise(values)
    assert row["noise"] == {"rho": 0.5, "error": 0.25, "maps": 2}, "constant maps have no rank correlation"
    assert row["head"] == {"rho": None, "maps": 0}
    assert row["repeat"] == {"rho": 1.0, "error": 0.0, "maps": 2, "equal": pytest.approx(2 / 3)}
    assert (row["constant"], row["options"]["discard=0"]["rho"]) == (1, 0.5)
    assert row["completeness"] == {"median": 0.25, "largest": 0.5, "maps": 3}
    path = tmp_path / "cards-scenes.parquet"
    pairs = {"wins": [1.0, 0.5], "mass": [0.5, 0.25]}
    for method in ("rollout", "legrad"):  # one after the other, as the rows are measured
        tables.save_values(path, {test: {method: own} for test, own in values.items()})
        tables.save_values(path, {f"pairs {score}": {method: own} for score, own in pairs.items()})
    published = study("pairs").summarise({score: {"legrad": own} for score, own in pairs.items()})
    content = {"rows": {"scenes": {"rollout": row, "legrad": row}, "vit-t": {"rollout": row}}, "pairs": published}
    (tmp_path / "cards.json").write_text(json.dumps(content), encoding="utf-8")
    found = compared(study, "cards")
    assert {what.startswith("vit-t") for what, same in found.items() if same is None} == {True}
    assert all(same for what, same in found.items() if not what.startswith("vit-t"))
    shift(study, path, "options discard=0", "legrad")
    shift(study, path, "pairs mass", "legrad")
    differ = [what for what, same in compared(study, "cards").items() if same is False]
    assert differ == ["scenes legrad discard=0", "pairs legrad mass"]


def test_agreement_with_sampled_shapley_values(study, tmp_path):
    module, tables = study("shapley_references"), study("value_tables")
    maps = torch.tensor([[[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]], [[1.0, 2.0, 4.0], [4.0, 2.0, 1.0]]])
    reference = torch.tensor([[[2.0, 4.0, 8.0]] * 2] * 2)
    found = module.agreement(maps, reference)
    # Both maps of the first image agree; the second map of the other image has the reverse order.
    assert found["spearman"] == [pytest.approx(1.0), pytest.approx(0.0)]
    against = np.corrcoef([4.0, 2.0, 1.0], [2.0, 4.0, 8.0])[0, 1]
    assert found["pearson"] == [pytest.approx(1.0), pytest.approx((1 + against) / 2)]
    values: dict[str, dict[str, list[float]]] = {"kl 0.5": {"model": [0.5, 1.0], "surrogate": [0.25, 0.25]}}
    for game in module.GAMES:
        for method in ("leadlight", module.HALVES, f"{module.PERMUTATIONS}2"):
            module.add_agreement(values, game, method, maps, reference)
    evaluation = module.summarise(values)
    assert evaluation["kl_by_visible_share"] == {"0.5": {"model": 0.75, "surrogate": 0.25}}
    row = evaluation["games"]["model"]
    assert (row["methods"].keys(), row["by_permutations"].keys()) == ({"leadlight"}, {"2"})
    assert row["methods"]["leadlight"]["spearman"] == pytest.approx(0.5)
    for name in ("tiny", "base"):
        text = json.dumps({"evaluation": evaluation})
        (tmp_path / f"vit_shapley-{name}.json").write_text(text, encoding="utf-8")
    path = tables.values_path(tmp_path / "vit_shapley-tiny.json", "tiny")
    tables.save_values(path, values)
    found = compared(study, "vit_shapley")
    assert {what.split()[0]: same for what, same in found.items()} == {
        "vit_shapley-base": None,
        "vit_shapley-tiny": True,
    }
    assert len(found) == 2 * (1 + 2 * 3)
    shift(study, path, "model pearson", "leadlight")
    shift(study, path, "kl 0.5", "surrogate")
    differ = [what for what, same in compared(study, "vit_shapley").items() if same is False]
    assert differ == ["vit_shapley-tiny divergence 0.5", "vit_shapley-tiny model methods leadlight"]


def test_runs_of_a_file_name_the_methods_they_measured_last(study):
    joined_runs = study("study").joined_runs
    gpu, cpu = {"device": "H200"}, {"device": "cpu"}
    runs = joined_runs([], gpu, ["rollout", "vtranm"])
    runs = joined_runs(runs, cpu, ["vtranm"])
    assert runs == [{**gpu, "methods": ["rollout"]}, {**cpu, "methods": ["vtranm"]}]
    runs = joined_runs(runs, cpu, ["lrp"])
    assert runs == [{**gpu, "methods": ["rollout"]}, {**cpu, "methods": ["lrp", "vtranm"]}]
    assert joined_runs(runs, cpu, ["rollout"]) == [{**cpu, "methods": ["lrp", "rollout", "vtranm"]}]
