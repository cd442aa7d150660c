"""Long prompts of causal models: no matrix of queries by keys is formed, and the maps stay what they are."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vitrail
from tests.battery.decoders import WORDS, decoder
from vitrail.capture import attention_recorder, attention_storage, row_products
from vitrail.lrp import attention_operations as relevance_attention

pytest.importorskip("transformers")
LENGTH = 200
METHODS = ["transformer_mm", "attnlrp", "conservative_lrp", "rollout"]


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is computed."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.bytes = max(self.bytes, *sizes, 0)
        return result


@pytest.fixture
def linear_memory(monkeypatch):
    """Settings of long prompts on a short one."""
    monkeypatch.setattr(attention_storage, "CAUSAL_ROWWISE_FROM", 0)
    monkeypatch.setattr(attention_storage, "mean_is_smaller", lambda *_: False)
    monkeypatch.setattr(row_products, "PIECE", {"cpu": 2000, "cuda": 2000})
    monkeypatch.setattr(attention_recorder, "CHECKED_UP_TO", 0)
    monkeypatch.setattr(relevance_attention, "FUSED_FROM", 0)


def model_and_words(family, length=LENGTH):
    model = decoder(family, max_position_embeddings=length)
    return model, torch.randint(3, WORDS, (1, length), generator=torch.Generator().manual_seed(2))


def target(output):
    return output.logits[:, -1, 5]


def maps(model, ids):
    return {
        name: vitrail.explain(model, {"input_ids": ids, "logits_to_keep": 1}, name, target=target).grid[0, 0]
        for name in METHODS
    }


def test_no_tensor_grows_with_the_square_of_the_tokens(linear_memory):
    found = []
    for length in (LENGTH, 2 * LENGTH):
        model, ids = model_and_words("Llama", length)
        with Largest() as largest:
            maps(model, ids)
        found.append(largest.bytes)
    assert found[0] > 0
    assert found[1] <= 2 * found[0]


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_maps_agree_with_those_by_matrices(family, linear_memory, monkeypatch):
    """A sliding window reaches the fused function as a mask."""
    model, ids = model_and_words(family)
    model = model.double()
    found = maps(model, ids)
    monkeypatch.undo()
    for name, expected in maps(model, ids).items():
        assert torch.allclose(found[name], expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max())), name
