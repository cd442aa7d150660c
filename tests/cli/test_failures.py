"""The command line: Ctrl-C, extras that are missing, and what it says about the model and the image."""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from PIL import Image

from tests.cli.test_app import MODEL, vitrail
from vitrail.cli import common
from vitrail.errors import GuessWarning, OutputError
from vitrail.models.preprocess import Preprocess

command = import_module("vitrail.cli.explain")


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.effect_noise((300, 200), 90).convert("RGB").save(path, exif=exif)
    return path


def test_every_missing_file_is_named_before_anything_is_loaded(photo, tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.models.load", no_work)
    for command in ("explain", "check", "compare"):
        done = vitrail(command, photo, tmp_path / "one.jpg", tmp_path / "two.jpg")
        assert done.returncode == 2
        assert f"{tmp_path / 'one.jpg'}, {tmp_path / 'two.jpg'} do not exist: check the paths" in done.stderr
    assert "one.jpg does not exist: check the path\n" in vitrail("explain", photo, tmp_path / "one.jpg").stderr


def test_a_warning_is_one_line_without_a_file_of_the_source(photo, tmp_path, monkeypatch):
    explain = import_module("vitrail.pipeline.explain")
    explained = explain.explain

    def warn_first(*args, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for _ in range(2):
                warnings.warn("the layout\nis a [guess]", GuessWarning, stacklevel=1)
        return explained(*args, **options)

    monkeypatch.setattr(explain, "explain", warn_first)
    done = vitrail("explain", photo, *MODEL, "--method", "rollout", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "warning: the layout is a [guess]\n"


OUTPUTS = [
    ("explain", "{photo}", "folder"), ("explain", "--text", "a b", "folder"), ("explain", "folder"),
    ("check", "{photo}", "folder"), ("demo", "folder"), ("audit", "folder"), ("report", "folder"),
    ("compare", "{photo}", "file"), ("figure", "gradtoken-10", "{photo}", "file"),
    ("train-explainer", "--data", "scenes", "file"),
]  # fmt: skip


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_results_that_cannot_be_written_are_refused_before_anything_is_loaded(words, photo, tmp_path, monkeypatch):
    *command, kind = (word.format(photo=photo) for word in words)
    for module in ("vitrail.bench.audit", "vitrail.bench.report", "vitrail.tools.demo"):  # whose names stay as they are
        import_module(module)
    for work in ("vitrail.tools.demo.load", "vitrail.models.load", "vitrail.bench.report.find_run"):
        monkeypatch.setattr(work, no_work)
    to = photo / "new" / "found.png"
    done = vitrail(*command, "--out", to)
    assert done.returncode == 2
    assert f"cannot write {to} ({photo} is a file): choose another {kind} with --out" in done.stderr
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setattr(common.os, "access", lambda path, _: Path(path) != closed)
    done = vitrail(*command, "--out", closed / "new" / "found.png")
    assert f"(no permission to write to {closed}): choose another {kind} with --out" in done.stderr
    assert not list(closed.iterdir())
    monkeypatch.undo()
    if kind == "file":
        monkeypatch.setattr("vitrail.models.load", no_work)
        (closed / "found.png").mkdir()
        done = vitrail(*command, "--out", closed / "found.png")
        assert f"({closed / 'found.png'} is a folder)" in done.stderr


def test_a_file_that_exists_is_written_in_a_folder_without_permission(tmp_path, monkeypatch):
    written, kept = tmp_path / "pipe", tmp_path / "kept.json"
    written.touch()
    kept.touch()
    monkeypatch.setattr(common.os, "access", lambda path, _: path == written)
    common.require_output(written, folder=False)
    with pytest.raises(OutputError, match=r"no permission to write to .*kept\.json"):
        common.require_output(kept, folder=False)


def test_a_missing_folder_of_a_comparison_is_made(photo, tmp_path, monkeypatch):
    compare = import_module("vitrail.tools.compare")
    monkeypatch.setattr(compare, "compare", lambda *_, **__: SimpleNamespace(
        table=list, recommended=None, reason="", to_dict=lambda: {"found": 1},
    ))  # fmt: skip
    done = vitrail("compare", photo, *MODEL, "-o", tmp_path / "new" / "found.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "new" / "found.json").read_text()) == {"found": 1}


def test_more_targets_than_a_figure_shows_are_saved_without_one(photo, tmp_path):
    folder = tmp_path / "out"
    given = ["explain", photo, *MODEL, "--method", "raw_attention", "-o", folder]
    assert vitrail(*given).returncode == 0
    assert (folder / "photo" / "figure.png").exists()
    done = vitrail(*given, "--target", "top60", "--no-original")
    assert done.returncode == 0, done.stderr
    assert "figure.png is left out: 60 targets do not fit into one figure" in done.stdout
    assert not (folder / "photo" / "figure.png").exists(), "the figure of the first run was kept"
    assert "; 54 more" in " ".join(done.stdout.split())
    assert len(list((folder / "photo").rglob("overlay*.png"))) == 60


def no_work(*_, **__):
    raise AssertionError("the fault was not noticed before the work began")


def hidden(monkeypatch, *modules):
    """Make modules impossible to import, as if they were not installed."""
    for name in list(sys.modules):
        if name.partition(".")[0] in modules:
            monkeypatch.setitem(sys.modules, name, None)
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(("module", "extra", "args"), [
    ("matplotlib", "plot", ["figure", "gradtoken-10", "{photo}"]),
    ("matplotlib", "plot", ["check", "{photo}", "--out", "{folder}/out"]),
    ("polars", "bench", ["bench", "smoke"]),
    ("pyarrow", "bench", ["bench", "smoke", "--dry-run"]),
    ("pyarrow", "bench", ["explain", "{folder}"]),
    ("polars", "bench", ["report"]),
    ("fastapi", "web", ["serve"]),
    ("uvicorn", "web", ["serve"]),
    ("transformers", "hf", ["explain", "--text", "A film.", "--model", "hf:someone/model"]),
])  # fmt: skip
def test_missing_extras_are_noticed_before_any_work(module, extra, args, photo, tmp_path, monkeypatch):
    (tmp_path / "runs" / "0123").mkdir(parents=True)
    (tmp_path / "runs" / "0123" / "manifest.json").write_text("{}")
    hidden(monkeypatch, module)
    monkeypatch.setattr("vitrail.models.load", no_work)
    done = vitrail(*(one.format(photo=photo, folder=tmp_path) for one in args), cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert f'pip install "vitrail[{extra}]"' in done.stderr
    assert module in done.stderr


@pytest.mark.slow
def test_demo_without_matplotlib_says_so_first_and_writes_the_page(tmp_path, monkeypatch):
    hidden(monkeypatch, "matplotlib")
    done = vitrail("explain", "--method", "rollout", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'pip install "vitrail[plot]"' in done.stderr
    assert (tmp_path / "index.html").is_file()
    assert not (tmp_path / "figure.png").exists()


@pytest.mark.parametrize("command", [["explain", "{photo}"], ["doctor"], ["compare", "{photo}"], ["check", "{photo}"]])
def test_ctrl_c_is_one_line_and_status_130(command, photo):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with patch("vitrail.models.load", interrupt):
        done = vitrail(*(one.format(photo=photo) for one in command))
    assert done.returncode == 130
    assert done.stderr.strip().splitlines() == ["interrupted; files that were finished are complete"]


@pytest.mark.slow
def test_explain_says_that_the_toy_model_was_used(photo, tmp_path):
    done = vitrail("explain", photo, "--method", "rollout", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "the embedded toy model, which only knows drawn shapes" in done.stdout
    assert "Choose a model with --model" in done.stdout


@pytest.mark.slow
def test_explain_writes_an_overlay_on_the_photograph_and_says_what_was_seen(photo, tmp_path):
    done = vitrail("explain", photo, *MODEL, "--method", "rollout", "--out", tmp_path / "out")
    assert "photo.jpg: the model saw" in done.stdout
    assert "turned by 90°" in done.stdout
    assert "Model: timm:vit_tiny_patch16_224, weights: random" in done.stdout
    assert "toy model" not in done.stdout
    written = tmp_path / "out" / "photo" / "rollout" / "overlay-original.jpg"
    assert Image.open(written).size == (200, 300)
    done = vitrail("explain", photo, *MODEL, "--method", "rollout", "--out", tmp_path / "out", "--no-original")
    assert done.returncode == 0, done.stderr
    assert not written.exists()


def test_many_cropped_images_are_counted(capsys, monkeypatch):
    geometry = Preprocess((32, 32)).geometry(300, 200, orientation=6)
    monkeypatch.setattr(command, "MAX_SENTENCES", 1)
    command._print_geometries({Path("a.jpg"): geometry, Path("b.jpg"): geometry, Path("c.jpg"): None})
    assert "Of 3 images 2 were cropped and 2 turned" in " ".join(capsys.readouterr().out.split())


def test_model_sentence_of_embedded_models():
    assert "toy model" in common.model_sentence("scenes-tagged", "pretrained")
    assert common.model_sentence("cifar10", "pretrained") == "Model: cifar10, weights: pretrained"
