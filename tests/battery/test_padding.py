"""Padding in front of a prompt changes no map of a language model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.battery.changed_maps import ONE_PASS
from vitrail.data import draw_recall, recall_tokenizer
from vitrail.errors import VitrailError

PADDING = 6
pytestmark = pytest.mark.filterwarnings("ignore")


def next_word(output: Any) -> Tensor:
    best: Tensor = output["logits"][:, -1].amax(-1)
    return best


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """In double precision, as sums cancel in relevance rules; rotary positions are computed in single precision."""
    return vitrail.load("lm-recall").module.double()


@pytest.mark.parametrize("method", ONE_PASS)
def test_padding_changes_nothing(method: str, model: nn.Module) -> None:
    tokenizer = recall_tokenizer()
    plain = dict(tokenizer([draw_recall(0, 0, task="lookup", split="test")[0].text], return_tensors="pt"))
    front = {"input_ids": torch.full((1, PADDING), tokenizer.pad_token_id), "attention_mask": torch.zeros(1, PADDING)}
    padded = {name: torch.cat([front[name].long(), value], 1) for name, value in plain.items()}
    try:
        expected = vitrail.explain(model, plain, method, target=next_word).grid[0, 0]
    except VitrailError as refused:
        with pytest.raises(type(refused)):
            vitrail.explain(model, padded, method, target=next_word)
        return
    found = vitrail.explain(model, padded, method, target=next_word).grid[0, 0]
    assert not found[:PADDING].any()
    assert torch.allclose(found[PADDING:], expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
