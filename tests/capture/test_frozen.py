"""The model is left as it was, whatever happens inside."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL, TENSOR_KINDS
from vitrail.errors import ModelError, TargetError
from vitrail.testing import quick, tiny_vit


def untidy() -> nn.Module:
    """A model in a state nobody would guess: partly frozen, partly training, with hooks, buffers and gradients."""
    model = tiny_vit()
    model.register_buffer("seen", torch.arange(3.0))
    model.embed.weight.requires_grad_(False)
    model.blocks[1].train()
    model.blocks[0].mlp.append(nn.Dropout(0.5))
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.norm.register_forward_hook(lambda module, args, result: None)
    model.blocks[2].register_forward_pre_hook(lambda module, args: None)
    model.head.register_full_backward_hook(lambda module, before, after: None)
    return model


def state(model: nn.Module) -> dict[str, object]:
    """Everything about a model and about torch that an explanation could have changed."""
    return {
        "values": {k: (v.clone(), v._version, id(v)) for k, v in model.state_dict(keep_vars=True).items()},
        "trainable": [(n, p.requires_grad, p.is_leaf) for n, p in model.named_parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "training": [(n, m.training) for n, m in model.named_modules()],
        "hooks": [(n, list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks))
                  for n, m in model.named_modules()],
        "attributes": [(n, sorted(vars(m))) for n, m in model.named_modules()],
        "flags": (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu"),
            len(_get_current_function_mode_stack()),
        ),
        "stance": str(torch._dynamo.eval_frame._stance),
        "generator": torch.get_rng_state(),
    }  # fmt: skip


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [key for key in before if not same(before[key], after[key])]


@pytest.mark.parametrize("method", list(vitrail.methods()))
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_explaining_changes_nothing(method):
    if method not in quick():
        pytest.skip("needs weights trained for the model: tests/methods/test_vit_shapley.py")
    model, images = untidy(), torch.randn(2, 3, 32, 32)
    model.eval()
    bare = model(images)
    for index in (1, 2):
        model.blocks[index].train()
    before = state(model)
    vitrail.explain(model, images, method, target=[1, 2], **quick()[method])
    assert changes(before, state(model)) == []
    model.eval()
    assert torch.equal(model(images), bare)


def test_an_error_inside_changes_nothing():
    model, images = untidy(), torch.randn(2, 3, 32, 32)
    before = state(model)

    def refuse(output):
        raise ZeroDivisionError("not today")

    with pytest.raises(TargetError, match="ZeroDivisionError: not today"):
        vitrail.explain(model, images, target=refuse)
    model_inputs = ModelInputs((images,))
    with (
        pytest.raises(KeyboardInterrupt),
        forward_pass(model, model_inputs, read_structure(model, model_inputs), [dict.fromkeys(TENSOR_KINDS, ALL)]),
    ):
        raise KeyboardInterrupt
    assert changes(before, state(model)) == []


def test_a_broken_forward_changes_nothing():
    model, model_inputs = untidy(), ModelInputs((torch.randn(1, 3, 32, 32),))
    read_structure(model, model_inputs)
    before = state(model)

    def fail(*args):
        raise RuntimeError("out of memory, say")

    handle = model.blocks[1].norm2.register_forward_pre_hook(fail)
    with (
        pytest.raises(ModelError, match="out of memory, say"),
        forward_pass(model, model_inputs, read_structure(model, model_inputs), [{"A": ALL}]),
    ):
        pass
    handle.remove()
    assert changes(before, state(model)) == []


def test_the_check_itself_sees_changes():
    model = untidy()
    before = state(model)
    with frozen(model):
        assert set(changes(before, state(model))) >= {"trainable", "training"}
    model.head.bias.data.add_(1)
    assert changes(before, state(model)) == ["values"]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(context):
    images = torch.randn(1, 3, 32, 32)
    expected = vitrail.explain(tiny_vit(), images, "transformer_mm", target=1)
    model = tiny_vit()
    with context():
        found = vitrail.explain(model, images.clone(), "transformer_mm", target=1)
        assert torch.is_inference_mode_enabled() == (context is torch.inference_mode)
        assert not torch.is_grad_enabled()
    assert torch.equal(found.grid, expected.grid)


@pytest.mark.parametrize("method", ["transformer_mm", "attnlrp", "integrated_gradients"])
def test_weights_of_inference_mode_are_named_and_the_model_restored(method):
    with torch.inference_mode():
        model = tiny_vit().train()
    with pytest.raises(ModelError, match=r"made under torch.inference_mode\(\)"):
        vitrail.explain(model, torch.randn(1, 3, 32, 32), method, target=1)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_wrappers_are_stepped_over():
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    expected = vitrail.explain(model, images, "transformer_mm", target=1)
    for wrapped in (nn.DataParallel(model), torch.compile(model), torch.compile(nn.DataParallel(model))):
        assert unwrap(wrapped) is model
        found = vitrail.explain(wrapped, images, "transformer_mm", target=1).grid.cpu()  # DataParallel moves to CUDA
        assert torch.allclose(found, expected.grid, rtol=1e-3)
    inside = tiny_vit()
    inside.compile()
    inside.blocks[0] = torch.compile(inside.blocks[0])
    inside.blocks[1].forward = torch.compile(inside.blocks[1].forward)
    assert torch.equal(vitrail.explain(inside, images, "transformer_mm", target=1).grid, expected.grid)


def test_a_compiled_forward_is_stepped_over():
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    expected = vitrail.explain(model, images, "transformer_mm", target=1)

    def refuse(graph, _):
        raise AssertionError(f"compiled: {graph}")

    model.forward = torch.compile(model.forward, backend=refuse)
    assert torch.equal(vitrail.explain(model, images, "transformer_mm", target=1).grid, expected.grid)


def test_torchscript_is_refused():
    traced = torch.jit.trace(tiny_vit(), torch.randn(1, 3, 32, 32))
    with pytest.raises(ModelError, match="TorchScript"):
        vitrail.explain(traced, torch.randn(1, 3, 32, 32))


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_nothing_is_left_behind():
    """Memory is given back at once, not when the garbage collector gets to it: a loop over a dataset must not grow."""
    model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
    vitrail.explain(model, images, methods=quick(), target="top2")
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
        vitrail.explain(model, images, methods=quick(), target="top2")
        after = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    finally:
        gc.enable()
    assert after == before


def test_the_graph_starts_where_it_must():
    """GradToken needs the last block's queries: nothing before them may be in the graph, nothing else may be kept.

    The readout needs the output of the last attention, and nothing before it.
    """
    model, model_inputs = tiny_vit(), ModelInputs((torch.randn(1, 3, 32, 32),))
    needs = vitrail.methods()["gradtoken"].needed(vitrail.methods()["gradtoken"].options)
    structure = read_structure(model, model_inputs)
    for confirm in (False, True):
        with forward_pass(model, model_inputs, structure, [needs], confirm=confirm) as one:
            assert list(one.nodes) == [("dQ", 2), ("dZ", 2)]
            assert one.nodes["dQ", 2].is_leaf
        with forward_pass(model, model_inputs, structure, [{"A_mean": ALL}], confirm=confirm) as one:
            assert list(one.nodes) == [("dZ", 2)]
            assert one.nodes["dZ", 2].is_leaf
    with forward_pass(model, model_inputs, structure, [needs]) as one:
        assert [set(vars(block)) - {"pool"} for block in one.blocks] == [{"A_mean"}, {"A_mean"}, {"K"}]
        assert not any(t.requires_grad for b in one.blocks for t in vars(b).values() if isinstance(t, torch.Tensor))
