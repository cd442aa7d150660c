"""The demo: which methods it runs, and what it writes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from vitrail.cli.app import app
from vitrail.methods import METHODS
from vitrail.tools import demo


def test_expensive_methods_run_only_if_all_are_asked_for():
    chosen, expensive = demo.demo_methods("scenes")
    assert next(iter(chosen)) == "leadlight"
    assert {"rise", "occlusion", "shapley"} <= set(expensive)
    assert {"vtranm", "attnlrp", "random"} <= chosen.keys()
    every, none = demo.demo_methods("scenes", every=True)
    assert none == []
    assert every.keys() == chosen.keys() | set(expensive) == METHODS.keys()


@pytest.mark.slow
def test_the_command_names_its_files_and_what_was_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "demo_methods", lambda *_: ({"rollout": {}, "vtranm": {}}, ["rise"]))
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for name in ("figure.png", "index.html"):
        assert str(tmp_path / name) in done.stdout
        assert (tmp_path / name).stat().st_size > 10_000
    assert "Left out, since they evaluate many images: rise" in done.stdout
