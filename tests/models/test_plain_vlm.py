"""PlainVLM: causal, padding on either side changes nothing, and image tokens must fit."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import InputError
from vitrail.models.plain_vlm import PlainVLM


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return PlainVLM(size=32, width=16, depth=1, heads=2, words=20, length=8, text_depth=2).double().eval()


WORDS = torch.tensor([[1] * 16 + [2, 5, 6, 7]])
IMAGE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@torch.no_grad()
def test_later_words_change_nothing_before_them(model):
    base, other = model(WORDS, IMAGE)["logits"], WORDS.clone()
    other[0, -1] = 9
    changed = model(other, IMAGE)["logits"]
    assert torch.equal(base[:, :-1], changed[:, :-1])
    assert not torch.allclose(base[:, -1], changed[:, -1])


@torch.no_grad()
@pytest.mark.parametrize("sides", [(3, 0), (0, 3)])
def test_padding_changes_nothing(model, sides):
    padded = torch.nn.functional.pad(WORDS, sides)
    found = model(padded, IMAGE, (padded != 0).long())["logits"][:, sides[0] : sides[0] + WORDS.shape[1]]
    assert torch.allclose(found, model(WORDS, IMAGE)["logits"])


@torch.no_grad()
def test_what_does_not_fit_is_named(model):
    with pytest.raises(InputError, match="one image token for each patch"):
        model(WORDS[:, 1:], IMAGE)
    with pytest.raises(InputError, match="10 words beside the image tokens"):
        model(torch.cat([WORDS, torch.full((1, 6), 5)], 1), IMAGE)
