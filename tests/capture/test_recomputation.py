"""Recomputation of blocks: the same maps, with activations of one block at a time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import vitrail
from tests.battery.decoders import decoder, words
from vitrail.capture.recomputation import recomputable_blocks
from vitrail.errors import NotApplicableError
from vitrail.testing import tiny_vit

METHODS = ["gradient_x_input", "transformer_mm", "grad_rollout", "attnlrp", "conservative_lrp", "lrp", "leadlight"]


def logit(output):
    return output.logits[:, -1, 5]


def cases(batch=2):
    images = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    yield tiny_vit().double(), images, None
    yield decoder("Llama").double(), {"input_ids": words(batch)}, logit
    yield decoder("GPT2").double(), {"input_ids": words(batch)}, logit


@pytest.mark.parametrize("case", range(3))
def test_maps_are_those_of_kept_activations(case):
    model, inputs, target = list(cases())[case]
    runs, first = [], recomputable_blocks(model)[0]
    forward = first.forward
    first.forward = lambda *args, **kwargs: (runs.append(1), forward(*args, **kwargs))[1]
    expected = vitrail.explain(model, inputs, methods=METHODS, target=target)
    before = len(runs)
    found = vitrail.explain(model, inputs, methods=METHODS, target=target, recompute=True)
    assert len(runs) - before > before, "blocks run again in backward passes"
    for name in METHODS:
        torch.testing.assert_close(found[name].maps, expected[name].maps, rtol=0, atol=1e-12)
        torch.testing.assert_close(found[name].grid, expected[name].grid, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["gradient_x_input", "transformer_mm", "attnlrp", "conservative_lrp"])
def test_graphs_keep_what_enters_blocks(method):
    model, inputs = decoder("Llama", num_hidden_layers=4), {"input_ids": words()}

    def kept_bytes(recompute):
        seen = {}

        def pack(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor.detach()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            vitrail.explain(model, inputs, method, target=logit, recompute=recompute)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        return sum(t.untyped_storage().nbytes() for at, t in seen.items() if at not in weights)

    assert kept_bytes(True) < 0.5 * kept_bytes(False)


def test_half_precision_models_run_again_in_single():
    model, inputs = decoder("Llama").half(), {"input_ids": words(2)}
    for method in ("lrp", "attnlrp"):
        expected = vitrail.explain(model, inputs, method, target=logit)
        found = vitrail.explain(model, inputs, method, target=logit, recompute=True)
        torch.testing.assert_close(found.grid, expected.grid, rtol=0, atol=1e-6)


def test_training_mode_and_forwards_are_restored():
    model = decoder("GPT2").train()
    plain = vitrail.explain(model, {"input_ids": words()}, "conservative_lrp", target=logit)
    found = vitrail.explain(model, {"input_ids": words()}, "conservative_lrp", target=logit, recompute=True)
    assert torch.allclose(found.grid, plain.grid, rtol=1e-5, atol=1e-7), "no dropout in the second computation"
    assert model.training
    assert not any("forward" in vars(block) for block in recomputable_blocks(model))


def test_offloaded_weights_are_loaded_again():
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    methods = ["transformer_mm", "attnlrp", "gradient_x_input"]
    expected = vitrail.explain(model, {"input_ids": words()}, methods=methods, target=logit)
    placed = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    found = vitrail.explain(placed, {"input_ids": words()}, methods=methods, target=logit, recompute=True)
    for name in methods:
        assert torch.equal(found[name].grid, expected[name].grid), name
    assert all(p.is_meta for p in placed.model.layers.parameters()), "released again"


class Adds(nn.Module):
    """A block that adds to its input in place."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return x.add_(self.block(x.clone()) - x)


def test_blocks_that_change_their_input_are_refused():
    model = tiny_vit()
    model.blocks[1] = Adds(model.blocks[1])
    image = torch.randn(1, 3, 32, 32)
    vitrail.explain(model, image, "gradient_x_input")
    with pytest.raises(NotApplicableError, match=r"recompute=True: a block of PlainViT"):
        vitrail.explain(model, image, "gradient_x_input", recompute=True)


def test_models_without_blocks_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))
    with pytest.raises(NotApplicableError, match=r"recompute=True: Sequential has no list of blocks"):
        vitrail.explain(model, torch.randn(1, 3, 32, 32), "gradient_x_input", recompute=True)


def _running_out(calls):
    """A target whose graph does not fit unless blocks are recomputed."""

    def target(output):
        calls.append(1)
        if not output.grad_fn or "forward" not in vars(target.model.blocks[0]):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return output[:, 3]

    return target


@pytest.mark.parametrize("recompute", [None, False])
def test_one_input_that_does_not_fit_is_recomputed(recompute):
    model, image = tiny_vit(), torch.randn(1, 3, 32, 32)
    calls = []
    target = _running_out(calls)
    target.model = model
    if recompute is False:
        with pytest.raises(torch.OutOfMemoryError):
            vitrail.explain(model, image, "transformer_mm", target=target, recompute=False)
        return
    expected = vitrail.explain(model, image, "transformer_mm", target=lambda output: output[:, 3])
    found = vitrail.explain(model, image, "transformer_mm", target=target)
    assert torch.equal(found.grid, expected.grid)
    assert len(calls) > 1


def test_several_inputs_that_do_not_fit_name_both_remedies():
    model = tiny_vit()
    target = _running_out([])
    target.model = model
    with pytest.raises(torch.OutOfMemoryError) as caught:
        vitrail.explain(model, torch.randn(2, 3, 32, 32), "transformer_mm", target=target)
    assert any("batch_size" in note and "recompute=True" in note for note in caught.value.__notes__)
