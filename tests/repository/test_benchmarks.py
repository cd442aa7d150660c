"""The cases of `benchmarks/run.py`: names, settings, README, and a rehearsal of some of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from vitrail.methods import find

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import run

        yield run  # cases import their modules when they are described
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_tables_name_methods_modes_and_precisions_that_exist(bench):
    for case in bench.calls.CASES.values():
        assert all(find(spec) for methods in case.calls.values() for spec in methods)
        assert set(case.modes) <= bench.calls.MODES.keys()
        assert {shape.partition(":")[0] for shape in case.shapes} <= bench.agreement.PRECISIONS.keys()
    for case in bench.agreement.CASES.values():
        assert all(find(spec) for call in case.calls for spec in call.split("+"))
        for way in (case.reference, *case.ways):
            precision, _, mode = way.partition(", ")
            assert precision in bench.agreement.PRECISIONS
            assert mode in bench.calls.MODES


def test_readme_has_every_case(bench):
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = "".join(line for line in text.splitlines() if line.startswith("| `"))
    assert not [name for name in bench.CASES if f"`{name}`" not in table]


def test_goals_of_one_image_are_called_missed_where_they_are():
    content = json.loads((ROOT / "benchmarks" / "results" / "latency-h200.json").read_text(encoding="utf-8"))
    rows = content["results"][0]["rows"]
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = text.partition("| goal of the default |")[2].partition("\n\n")[0].splitlines()[2:]
    names, missed = set(), set()
    for line in table:
        first, *_, goal = (cell.strip() for cell in line.strip("|").split("|"))
        name = first.replace("`", "").removesuffix(" (over F)")
        ratio = rows[name]["over_forward" if first.endswith("(over F)") else "over_forward_backward"]
        assert ("missed" in goal) == (ratio > float(goal.split()[0])), line
        names.add(name)
        missed |= {name} if "missed" in goal else set()
    assert names == {name for name in rows if "," not in name and not name.startswith("bare")}
    sentence = text.partition("## Time of one image\n\n**")[2].partition("**")[0]
    assert missed == {name for name in names if f"`{name}`" in sentence} | {"gradtoken"}


def test_readme_of_the_studies_has_every_script_plan_and_result():
    text = (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    missing = [p.name for kind in ("*.py", "plans/*.toml") for p in ROOT.glob(f"studies/{kind}") if p.name not in text]
    named = [p for p in ROOT.glob("studies/results/*") if f"results/{p.name}" in text]
    results = tuple(p.stem for p in named if p.suffix in (".json", ".csv"))
    # Values of each image are named by the result they belong to: NAME.json, NAME-MODEL.parquet.
    values = [p for p in ROOT.glob("studies/results/*.parquet") if p.stem.startswith(results)]
    missing += [p.name for p in ROOT.glob("studies/results/*") if p not in (*named, *values)]
    assert not missing


def test_settings_have_the_type_of_their_defaults(bench):
    words = ["images=8", "compile=yes", "plans=table", "dtype=float16", "seconds=2"]
    assert bench.settings_of(["dataset"], words) == {
        "dataset": {"images": 8, "compile": True, "plans": ("table",), "dtype": "float16", "seconds": 2.0}
    }
    found = bench.settings_of(["speed", "table"], ["shapes=float32:8,tf32:4x50", "setups=converted;plan, tf32"])
    assert found == {"speed": {"shapes": ("float32:8", "tf32:4x50")}, "table": {"setups": ("converted", "plan, tf32")}}
    with pytest.raises(SystemExit, match="colour is no setting of speed: choose from"):
        bench.settings_of(["speed"], ["colour=red"])


def test_ratios_are_to_the_passes_of_the_same_run(bench, tmp_path, monkeypatch):
    words = ["run.py", "speed", "--tiny", "--set", "shapes=float32:8", "--set", "methods=gradtoken,vtranm"]
    monkeypatch.setattr(sys, "argv", [*words, "--set", "modes=default,plain", "--out", str(tmp_path)])
    bench.main()
    written = json.loads((tmp_path / "speed-cpu.json").read_text(encoding="utf-8"))
    assert written["manifest"]["shapes"] == ["float32:8"]
    (found,) = written["results"]
    assert found["batch"] == 2
    assert not found["failed"]
    rows = found["rows"]
    assert {"gradtoken", "gradtoken, plain", "vtranm", "vtranm, plain"} < rows.keys()
    for row in rows.values():
        assert row["over_forward"] == row["seconds"] / rows["bare forward"]["seconds"]


def test_later_calls_are_measured_on_a_model_that_is_known(bench, monkeypatch):
    """First calls in between have copies of their own, each measured once, and none of the time goes into copying."""
    from vitrail.capture import structure

    measured, measure = [], structure._measure

    def counting(model, *args, **kwargs):
        measured.append(model)
        return measure(model, *args, **kwargs)

    monkeypatch.setattr(structure, "_measure", counting)
    run = bench.calls.Run(torch.device("cpu"), repeats=3, tiny=True)
    case = bench.calls.case_with(bench.calls.CASES["selfcheck"], {"models": ("vit_tiny_patch16_224",)})
    (found,) = bench.calls.run_case(case, run)
    assert found["rows"].keys() > {"structure", "structure, first", "transformer_mm", "transformer_mm, first"}
    known = measured[0]
    assert all(model is not known for model in measured[-6:]), "a later call measured the structure again"
    others = [id(model) for model in measured if model is not known]
    assert len(others) == len(set(others)) == 2 * (2 + 3)  # two warm-up calls and three repeats of each first call


def test_preparation_of_a_call_is_not_timed(bench, monkeypatch):
    import measuring

    clock = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])

    def spend(seconds):
        clock[0] += seconds
        return seconds

    rows, _ = (
        bench.calls.Run(torch.device("cpu")).timer(3).compare({"one": measuring.Prepared(lambda: spend(5), spend)})
    )
    assert rows["one"]["seconds"] == 5
    assert clock[0] == 50, "five runs, each with its preparation"


def test_a_call_that_fails_is_reported_and_the_others_are_measured(bench):
    timer = bench.calls.Run(torch.device("cpu"), tiny=True).timer(3)
    rows, failed = timer.compare({"works": lambda: None, "fails": lambda: 1 / 0})
    assert list(rows) == ["works"]
    assert "ZeroDivisionError" in failed["fails"]


def test_maps_of_a_lower_precision_are_compared_with_the_reference(bench):
    run = bench.calls.Run(torch.device("cpu"), tiny=True)
    case = bench.agreement.AgreementCase("", "float64", ("float64, plain", "bfloat16"), ("rollout", "transformer_mm"))
    found = bench.agreement.run_case(case, run)
    for row in found.values():
        assert row["float64, plain"]["difference"] < 1e-9
        assert 1e-6 < row["bfloat16"]["difference"] < 0.5


def test_rate_of_a_source_is_that_of_its_parts(bench):
    """Parts of four images that take two seconds each, by a clock that only they move: two images per second."""
    from source_rates import steady_rate

    from vitrail.bench.engines.local import LocalEngine

    clock = [0.0]

    class Part:
        name, maps, folder = "part", 1, ""

        def prepare(self, _device):
            pass

        def compute(self, _device):
            clock[0] += 2
            return Path

    times: list[float] = []
    LocalEngine(1).run([Part() for _ in range(6)], lambda _: times.append(clock[0]))
    assert times == [4, 6, 8, 10, 12, 12], "each is reported after the next, and the last two together"
    assert steady_rate(times, times, 4, 1, one_late=True) == (2.0, 0.5)
    in_processes = [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]  # of two workers
    assert steady_rate(in_processes, in_processes, 4, 2, one_late=False) == (4.0, 0.25)
