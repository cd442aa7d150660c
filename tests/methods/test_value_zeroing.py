"""Value zeroing against a replica that runs each block alone with one row of its values set to zero, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.battery.decoders import decoder, words
from vitrail.capture.block_modules import block_modules
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError
from vitrail.models.plain_vit import PlainViT
from vitrail.testing import tiny_vit

pytest.importorskip("transformers")
POSITION = 4


def replica(model, ids, position):
    """Relevance of the words, shape (n,), by running the layers of a Llama one at a time."""
    layers, calls = model.model.layers, []
    handles = [
        layer.register_forward_pre_hook(lambda _, a, k: calls.append((a, k)), with_kwargs=True) for layer in layers
    ]
    model(ids, use_cache=False)
    for handle in handles:
        handle.remove()
    n = ids.shape[1]
    v = torch.zeros(n, dtype=torch.float64)
    v[position] = 1
    for layer, (args, kwargs) in reversed(list(zip(layers, calls, strict=True))):
        first = lambda out: out if isinstance(out, torch.Tensor) else out[0]  # noqa: E731
        whole = first(layer(*args, **kwargs))[0]
        C = torch.zeros(n, n, dtype=torch.float64)
        for j in range(n):

            def zero(_, __, out, j=j):
                changed = out.clone()
                changed[:, j] = 0
                return changed

            handle = layer.self_attn.v_proj.register_forward_hook(zero)
            C[:, j] = 1 - F.cosine_similarity(first(layer(*args, **kwargs))[0], whole, dim=-1)
            handle.remove()
        reached = torch.arange(n) <= position
        C = C * reached * reached[:, None]
        v = v @ (C / C.sum(-1, keepdim=True).clamp_min(1e-300))
    return v


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_the_map_is_that_of_the_replica(family):
    model, ids = decoder(family).double(), words()
    with torch.no_grad():
        expected = replica(model, ids, POSITION)
    found = vitrail.explain(
        model, {"input_ids": ids}, "value_zeroing", target=lambda o: o.logits[:, POSITION, 5], batch_size=4
    ).grid[0, 0]
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert float(expected.max()) > 0
    assert float(found.sum()) == pytest.approx(1), "shares of all words, as the page says"


def test_inputs_of_a_batch_do_not_mix_and_the_model_is_left_as_it_was():
    model, ids = decoder("GPT2").double(), words(3)
    target = lambda o: o.logits[:, -1, 5]  # noqa: E731
    together = vitrail.explain(model, {"input_ids": ids}, "value_zeroing", target=target).grid
    for i in range(3):
        alone = vitrail.explain(model, {"input_ids": ids[i : i + 1]}, "value_zeroing", target=target).grid
        assert torch.allclose(together[i : i + 1], alone, rtol=1e-9, atol=1e-12)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_images_have_a_map_that_sums_to_one_with_the_prefix():
    explanation = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "value_zeroing", target=0)
    assert explanation.grid.shape == (1, 1, 4, 4)
    assert 0 < float(explanation.grid.sum()) <= 1 + 1e-5
    last = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "value_zeroing:last", target=0)
    assert not torch.allclose(last.grid, explanation.grid)


def test_a_model_whose_blocks_are_no_list_is_refused():
    model, inputs = tiny_vit(), ModelInputs((torch.randn(1, 3, 32, 32),))
    structure = read_structure(model, inputs)
    assert block_modules(model, structure) == tuple(model.blocks)
    unnamed = replace(structure, layers=tuple(replace(layer, projection=None) for layer in structure.layers))
    with pytest.raises(NotApplicableError, match="was not found"):
        block_modules(model, unnamed)


class BlocksWithoutCalls(PlainViT):
    """A vision transformer that calls the layers of its blocks and never the blocks."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(images)
        for block in self.blocks:
            q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + block.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return self.head(self.norm(x)[:, 0])


def test_blocks_that_are_not_called_have_the_map_of_blocks_that_are():
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    plain, inline = PlainViT().double().eval(), BlocksWithoutCalls().double().eval()
    inline.load_state_dict(plain.state_dict())
    for method in ("value_zeroing", "value_zeroing:last"):
        expected = vitrail.explain(plain, images, method, target=0).grid
        assert float(expected.max()) > 0
        assert torch.allclose(vitrail.explain(inline, images, method, target=0).grid, expected, rtol=1e-9)
