"""The store of what is known of models."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import vitrail
from vitrail.fast import known_model
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_table_drops_its_oldest_entry():
    model = nn.Linear(2, 2)
    for i in range(40):
        known_model.remember(model, "structure", i, i)
        known_model.recall(model, "structure", 0)  # used again, so it stays
    assert known_model.sizes(model) == {"structure": known_model.TABLES["structure"].entries}
    assert known_model.recall(model, "structure", 0) == 0
    assert known_model.recall(model, "structure", 1) is None


def test_what_is_known_goes_with_the_model():
    model = nn.Linear(2, 2)
    known_model.remember(model, "outputs", "scores")
    with known_model.known_models() as models:
        before = len(models)
    del model
    gc.collect()
    with known_model.known_models() as models:
        assert len(models) < before


def test_forget_drops_everything_of_a_model():
    model = tiny_vit()
    first = vitrail.explain(model, IMAGES, "transformer_mm", target=1).grid
    assert known_model.sizes(model)["structure"] == 1
    vitrail.forget(torch.nn.DataParallel(model))
    assert known_model.sizes(model) == {}
    assert torch.equal(vitrail.explain(model, IMAGES, "transformer_mm", target=1).grid, first)


def test_threads_share_the_store():
    model, errors = nn.Linear(2, 2), []

    def work(start: int) -> None:
        try:
            for i in range(200):
                known_model.remember(model, "structure", i, (start, i % 40))
                known_model.recall(model, "structure", (start, i % 7))
                known_model.sizes()
        except Exception as error:  # noqa: BLE001 - any error fails the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert known_model.sizes(model)["structure"] == known_model.TABLES["structure"].entries


def test_an_unknown_table_is_an_error():
    with pytest.raises(KeyError):
        known_model.remember(nn.Linear(1, 1), "anything", 1)
