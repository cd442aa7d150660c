"""`vitrail explain`: classes that the model does not predict, and names that are checked first."""

from __future__ import annotations

import torch
from typer.testing import CliRunner

import vitrail
from vitrail.cli import explain_directory
from vitrail.cli.app import app
from vitrail.cli.explain import unlikely_targets
from vitrail.testing import tiny_vit


def test_a_class_that_the_model_rejects_is_reported_with_what_it_predicts():
    model = tiny_vit()
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.head.bias[0] += 20.0
    e = vitrail.explain(model, image, "rollout", target=[[0, 1]])
    (sentence,) = unlikely_targets(e)
    assert "does not predict class 1 (less than 0.1 %)" in sentence
    assert "predicts class 0 (100.0 %)" in sentence
    with torch.no_grad():
        model.head.bias[0] -= 20.0
    assert not unlikely_targets(vitrail.explain(model, image, "rollout", target=[[0, 1]]))


def test_an_unknown_method_is_reported_before_a_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(explain_directory, "require_bench", pytest_fail)
    result = CliRunner().invoke(app, ["explain", str(tmp_path), "--method", "nosuch"])
    assert result.exit_code != 0
    assert "nosuch" in str(result.exception) + result.output


def pytest_fail():
    raise AssertionError("the folder was opened first")
