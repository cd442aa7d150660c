"""Checks of maps over other axes than those of images: verdicts where the truth is known, removal, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from vitrail.data import render_tones
from vitrail.errors import InputError, OptionError
from vitrail.trust import Budget
from vitrail.trust.null import moved_signals
from vitrail.trust.signal_removal import spread_cells

SHORT = Budget(copies=39, levels=(0.1,), draws=1, reruns=60)


class LoudCells(nn.Module):
    """Logits of a waveform: class 1 has evidence where the first 160 of 640 samples are loud."""

    main_input_name = "input_values"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        evidence = self.weight * input_values[:, :160].mean(1)
        return torch.stack([torch.zeros_like(evidence), 8 * (evidence - 0.35)], 1)


def test_moved_signals_have_the_same_values_elsewhere():
    values = torch.arange(6.0 * 8 * 4).view(6, 8, 4)
    moved = moved_signals(values, 30, seed=3)
    assert all(torch.equal(m.flatten().sort().values, values.flatten()) for m in moved)
    assert not any(torch.equal(m, values) for m in moved)
    assert torch.equal(moved_signals(values, 30, seed=3), moved)
    # One entry of a single axis moves by at least two cells, or is mirrored.
    one = torch.zeros(1, 12)
    one[0, 5] = 1
    assert {int(m.argmax()) for m in moved_signals(one, 40)} > {0, 8, 11}


def test_cells_cover_the_input_once():
    cells = torch.eye(4, dtype=torch.bool).view(4, 2, 2)
    assert torch.equal(spread_cells(cells, (5, 7)).sum(0), torch.ones(5, 7, dtype=torch.long))


def test_a_map_on_the_evidence_is_faithful_and_one_beside_it_is_not():
    sound = torch.zeros(1, 640)
    sound[:, 40:120] = 1.0
    sound[:, 300:600] = 0.7  # loud as well, and not read
    e = vitrail.explain(LoudCells(), sound, "occlusion", target=1)
    check = e.check(tests=["removal"], budget=SHORT)
    assert check.verdict == "faithful"
    assert check.removal == "mean"
    assert check.removed[0] < check.null_removed[0] - 0.1
    inverted = replace(e, maps=-e.maps, grid=-e.grid).check(tests=["removal"], budget=SHORT)
    assert inverted.verdict == "no better than chance"


def test_the_mask_of_a_tone_is_faithful_on_the_included_model():
    model, sound = vitrail.load("tones"), render_tones(0, 2, pairs=True, split="test")
    levels = torch.from_numpy(sound.levels)[None].float() / 127.5 - 1
    e = vitrail.explain(model, levels, "raw_attention", target=[[sound.tones[0]]])
    mask = torch.from_numpy(sound.masks[0].astype(np.float32))[None, None]
    grid = nn.functional.adaptive_avg_pool2d(mask, e.grid.shape[-2:])
    true = replace(e, maps=mask, grid=grid).check(tests=["removal"], budget=SHORT)
    wrong = replace(e, maps=-mask, grid=-grid).check(tests=["removal"], budget=SHORT)
    assert true.removal == "tokens"
    assert true.verdict == "faithful", str(true)
    assert wrong.verdict == "no better than chance"


def test_what_cannot_be_checked_says_why():
    e = vitrail.explain(nn.Linear(5, 3), torch.ones(1, 5), "gradient_x_input", target=0)
    with pytest.raises(InputError, match=r"5 patches.*at least 20.*occlusion"):
        e.check()
    e = vitrail.explain(LoudCells(), torch.ones(1, 640), "gradient_x_input", target=1)
    with pytest.raises(OptionError, match="'tokens' or 'mean'"):
        e.check(removal="blur")
