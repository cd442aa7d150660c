"""Timing methods on random inputs, and checking models of texts."""

from __future__ import annotations

import pytest
import torch

from tests.text.texts import text_model
from vitrail import Preprocess
from vitrail.cli.app import main
from vitrail.inputs.random_inputs import random_inputs
from vitrail.models import LoadedModel
from vitrail.testing import tiny_vit
from vitrail.tools.diagnose import diagnose
from vitrail.tools.speed import FORWARD, FORWARD_BACKWARD, speed_rows


def tiny() -> LoadedModel:
    return LoadedModel(tiny_vit(), Preprocess((32, 32)), name="tiny")


def test_speed_is_measured_and_the_model_is_restored() -> None:
    loaded = tiny()
    model = loaded.module
    model.head.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    rows = list(speed_rows(loaded, ["rollout", "vit_shapley", "gradtoken"], repeats=1))
    assert [row.call for row in rows] == [FORWARD, FORWARD_BACKWARD, "rollout", "gradtoken"]  # no explainer given
    assert rows[0].over_forward == rows[1].over_forward_backward == 1
    assert all(row.seconds > 0 for row in rows)
    assert [p.requires_grad for p in model.parameters()] == before
    assert all(p.grad is None for p in model.parameters())


def test_a_row_comes_before_the_next_call_starts_and_time_is_bounded() -> None:
    order: list[str] = []
    loaded = tiny()
    runs: list[int] = []
    loaded.module.register_forward_hook(lambda *_: runs.append(1))
    rows = speed_rows(loaded, ["rollout"], repeats=10**6, seconds=0, starting=order.append)
    order.extend(f"row {row.call}" for row in rows)
    assert order[-2:] == ["rollout", "row rollout"]
    assert len(runs) < 20  # one timed run of each call, in spite of the repeats asked for


def test_random_texts_fit_the_model_and_hold_no_special_tokens() -> None:
    module, _ = text_model("roberta")
    ids = random_inputs(LoadedModel(module), batch=3).kwargs["input_ids"]
    assert ids.shape == (3, module.config.max_position_embeddings - 2)
    assert not torch.isin(ids, torch.tensor([module.config.pad_token_id, module.config.eos_token_id])).any()
    module(input_ids=ids)


def test_a_model_of_texts_can_be_checked_and_timed() -> None:
    loaded = LoadedModel(text_model("bert")[0], name="bert")
    diagnosis = diagnose(loaded)
    works = {name: ok for name, ok, _ in diagnosis.methods}
    assert works["transformer_mm"]
    assert not works["rise"]
    assert dict(diagnosis.properties)["vocabulary"] == f"{loaded.module.config.vocab_size} tokens"
    assert [row.call for row in list(speed_rows(loaded, ["rollout", "abslrp"], repeats=1))][2:] == ["rollout"]


def test_the_command_prints_each_batch_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.tools.speed.FAMILIES", ("attention",))
    monkeypatch.setattr("sys.argv", ["vitrail", "doctor", "--speed", "--batch", "1", "--batch", "2"])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    printed = capsys.readouterr()
    assert [word in printed.out for word in ("1 image ", "2 images", "rollout", "× F+B")] == [True] * 4
    assert "Timing methods on random images" in printed.err


def test_a_batch_without_speed_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["vitrail", "doctor", "--batch", "2"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code
    assert "--batch goes with --speed" in capsys.readouterr().err
