"""Removal of what a map marks on models whose value is known."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.bench.world_removal import CellRemoval, PromptWordRemoval, compare_removals
from vitrail.bench.world_tasks import WorldBatch, words
from vitrail.models import describe, load
from vitrail.targets import prompt


class CornerSums(nn.Module):
    """The mean of the first and of the last patch of 8×8 pixels, as two classes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pixel_values):
        first, last = pixel_values[:, :, :8, :8], pixel_values[:, :, -8:, -8:]
        return self.scale * torch.stack([first.mean((1, 2, 3)), last.mean((1, 2, 3))], 1)


def corners():
    images = torch.zeros(2, 3, 32, 32)
    images[:, :, :8, :8], images[:, :, -8:, -8:] = 1, 2
    maps = torch.zeros(2, 2, 32, 32)
    maps[:, 0, :8, :8], maps[:, 1, -8:, -8:] = 1, 1
    pairs = WorldBatch(images, [[0, 1]] * 2, maps > 0, torch.ones(2, 2, dtype=torch.bool), cells=(4, 4))
    return CellRemoval(describe(CornerSums()), pairs, "cpu"), maps


def test_marked_cells_are_replaced_by_the_mean_of_the_input():
    remove, maps = corners()
    assert remove.whole.tolist() == [[1, 2]] * 2
    assert remove.count == 2
    fill = 3 / 16
    torch.testing.assert_close(
        remove.values(torch.tensor([[[0, 1], [5, 6], [15, 3]]] * 2)),
        torch.tensor([[[fill, 2], [1, 2], [1, fill]]] * 2, dtype=torch.float64),
    )
    right, wrong = remove.scores(maps), remove.scores(maps.flip(1))
    assert (right["better"] > 0.9).all()
    assert (right["drop"] > 0).all()
    assert (wrong["better"] < 0.5).all()
    assert (wrong["drop"] < 0).all()


def test_a_constant_map_is_as_good_as_chance():
    remove, maps = corners()
    scores = remove.scores(torch.zeros_like(maps))
    assert (scores["drop"].abs() < 0.5).all()


def test_ties_count_half_and_missing_draws_do_not_count():
    own, chance = torch.tensor([[1.0, 1.0]]), torch.tensor([[[1.0, 2.0, torch.nan], [0.0, 0.0, 3.0]]])
    found = compare_removals(own, chance)
    assert found["better"].item() == (0.75 + 1 / 3) / 2
    assert found["drop"].item() == (0.5 + 0.0) / 2


def test_words_are_left_out_of_the_prompt():
    """The value of a prompt without a word is that of the shorter prompt."""
    loaded = load("scenes-clip")
    batch = words(loaded.module, "val", range(3))
    remove = PromptWordRemoval(loaded, batch, "cpu")
    text = batch.texts[1][0]
    shorter = " ".join(text.split()[:-1])
    pair = WorldBatch(batch.inputs[1:2], [[prompt(shorter)] * 2], batch.masks[1:2], batch.correct[1:2])
    expected = CellRemoval(loaded, pair, "cpu").whole[0, 0]
    torch.testing.assert_close(remove.without[1, 0, len(text.split()) - 1], expected, rtol=1e-6, atol=1e-6)
    named = batch.masks.double()
    assert remove.scores(named)["better"].mean() > remove.scores(-named)["better"].mean()
