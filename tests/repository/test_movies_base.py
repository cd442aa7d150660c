"""The pieces of an encoder that `studies/movies_base.py` writes, joined again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.text.texts import word_pieces

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from movies_base import METHODS, join, read_state, split

from vitrail.methods import find


def test_pieces_are_small_and_join_to_the_same_weights(tmp_path):
    torch.manual_seed(0)
    state = {"embedding": torch.randn(300, 50), "bias": torch.randn(7), "scale": torch.tensor(2.0),
             "ids": torch.arange(40)} | {f"layer.{i}": torch.randn(20, 30) for i in range(20)}  # fmt: skip
    encoder = tmp_path / "encoder"
    word_pieces(model_max_length=384).save_pretrained(encoder)
    (encoder / "config.json").write_text('{"model_type": "bert"}')
    save_file(state, encoder / "model.safetensors")
    paths = split(encoder, tmp_path / "pieces", 10_000)
    assert len(paths) > 4
    assert all(sum(t.nbytes for t in load_file(path).values()) <= 10_000 for path in paths)
    joined = join(tmp_path / "pieces", tmp_path / "joined")
    found = read_state(joined)
    assert found.keys() == state.keys()
    for name, value in state.items():
        expected = value.half().float() if value.is_floating_point() else value
        assert torch.equal(found[name], expected), name
    assert (joined / "config.json").read_text() == '{"model_type": "bert"}'
    assert '"model_max_length": 512' in (joined / "tokenizer_config.json").read_text()
    with pytest.raises(SystemExit, match=r"no piece-NN\.safetensors"):
        join(tmp_path / "encoder", tmp_path / "other")


def test_methods_of_the_figure_apply_to_texts():
    assert all(find(spec)[1].reason_against("text") is None for spec in METHODS)
    assert len(set(METHODS)) == len(METHODS)
