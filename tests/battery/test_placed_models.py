"""Decoders placed by accelerate and decoders with quantised weights: explained alike, or refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import vitrail
from tests.battery.decoders import decoder, words
from vitrail.errors import NotApplicableError

pytest.importorskip("transformers")
METHODS = ["transformer_mm", "attnlrp", "gradient_x_input"]


def target(output):
    return output.logits[:, -1, 5]


def maps(model, methods=METHODS):
    return vitrail.explain(model, {"input_ids": words()}, methods=methods, target=target)


def test_a_device_map_changes_nothing():
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    placed = accelerate.dispatch_model(copy.deepcopy(model), {"": "cpu"}, force_hooks=True)
    for name, expected in maps(model).items():
        assert torch.equal(maps(placed)[name].grid, expected.grid), name


def test_offloaded_weights_change_nothing():
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    placed = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    for name, expected in maps(model).items():
        assert torch.equal(maps(placed)[name].grid, expected.grid), name


@pytest.mark.parametrize("recompute", [False, True])
def test_a_device_map_may_leave_some_blocks_on_disk(tmp_path, recompute):
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    placed = accelerate.dispatch_model(copy.deepcopy(model), places, offload_dir=str(tmp_path), force_hooks=True)
    assert all(p.is_meta for p in placed.model.layers[1].parameters())
    found = vitrail.explain(placed, {"input_ids": words()}, methods=METHODS, target=target, recompute=recompute)
    for name, expected in maps(model).items():
        assert torch.equal(found[name].grid, expected.grid), name


class _Product(torch.autograd.Function):
    """A product with weights of eight bits, which no torch function shows."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(weight, scale)
        return x @ (weight.to(x.dtype) * scale).T

    @staticmethod
    def backward(ctx, gradient):
        weight, scale = ctx.saved_tensors
        return gradient @ (weight.to(gradient.dtype) * scale), None, None


class EightBits(nn.Module):
    """A linear layer as bitsandbytes has it."""

    def __init__(self, linear):
        super().__init__()
        self.register_buffer("scale", linear.weight.abs().amax() / 127)
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x):
        return _Product.apply(x, self.weight, self.scale)


EightBits.__module__ = "bitsandbytes.nn.modules"


def test_quantised_layers_pass_gradients_and_refuse_other_rules():
    model, rounded = decoder("Llama"), decoder("Llama")
    for layer, other in zip(model.model.layers, rounded.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            small = EightBits(getattr(layer.mlp, name))
            getattr(other.mlp, name).weight.data = small.weight * small.scale
            setattr(layer.mlp, name, small)
    expected = maps(rounded)
    for name, found in maps(model).items():
        assert torch.allclose(found.grid, expected[name].grid, rtol=1e-4, atol=1e-6), name
    for method in ("transformer_attribution", "attnlrp:gamma_linear=0.1"):
        with pytest.raises(NotApplicableError, match="EightBits of bitsandbytes"):
            maps(model, [method])


class Int8Weight(torch.Tensor):
    """A weight as torchao has it: a tensor class that linear maps take, and few other functions."""

    @staticmethod
    def __new__(cls, weight):
        return torch.Tensor._make_wrapper_subclass(cls, weight.shape, dtype=weight.dtype)

    def __init__(self, weight):
        self.scale = weight.abs().amax(-1, keepdim=True) / 127
        self.numbers = (weight / self.scale).round().to(torch.int8)

    def dequantize(self):
        return self.numbers.float() * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight, bias = (*args, None)[:3]
            return func(x, weight.dequantize(), bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"Int8Weight: {func}")


EVERY_KIND = ["rollout", "transformer_mm", "grad_rollout", "attnlrp", "attnlrp:gamma_linear=0.1", "conservative_lrp",
              "lrp", "transformer_attribution", "gradient_x_input", "leadlight", "attcat", "atman"]  # fmt: skip


def _check_dequantised(model, rounded, methods, recompute):
    for layer, other in zip(_linears(model), _linears(rounded), strict=True):
        other.weight = nn.Parameter(layer.weight.dequantize().detach(), requires_grad=False)
    inputs = {"input_ids": words()}
    expected = vitrail.explain(rounded, inputs, methods=methods, target=target)
    for name, found in vitrail.explain(model, inputs, methods=methods, target=target, recompute=recompute).items():
        torch.testing.assert_close(found.grid, expected[name].grid, rtol=1e-4, atol=2e-5, msg=name)


def _linears(model):
    return [m for n, m in model.named_modules() if isinstance(m, nn.Linear) and "layers" in n]


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_of_a_tensor_class_are_dequantised_where_rules_read_them(recompute):
    model = decoder("Llama").requires_grad_(False)
    for linear in _linears(model):
        linear.weight = nn.Parameter(Int8Weight(linear.weight.detach()), requires_grad=False)
    with pytest.raises(NotImplementedError):
        _ = _linears(model)[0].weight.T
    _check_dequantised(model, decoder("Llama"), EVERY_KIND, recompute)


def test_torchao_weights_give_the_maps_of_dequantised_ones():
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = decoder("Llama", hidden_size=32, intermediate_size=64, head_dim=16)
    rounded = copy.deepcopy(model)

    def in_blocks(module, name):
        return isinstance(module, nn.Linear) and "layers" in name

    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(), filter_fn=in_blocks)
    assert type(_linears(model)[0].weight) is not nn.Parameter
    _check_dequantised(model, rounded, EVERY_KIND, recompute=False)


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_layers_pass_gradients_and_refuse_other_rules(bits):
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    model = decoder("Llama", hidden_size=64, intermediate_size=64, head_dim=32).requires_grad_(False)
    rounded = copy.deepcopy(model)
    for layer, other in zip(model.model.layers, rounded.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            settings = {"has_fp16_weights": False} if bits == 8 else {"compute_dtype": torch.float32}
            kind = bnb.nn.Linear8bitLt if bits == 8 else bnb.nn.Linear4bit
            small = kind(linear.in_features, linear.out_features, bias=False, **settings)
            small.load_state_dict(linear.state_dict())
            setattr(layer.mlp, name, small.to("cpu").eval().requires_grad_(False))
            columns = torch.eye(linear.in_features)  # each unit vector is exact in eight bits
            getattr(other.mlp, name).weight = nn.Parameter(small(columns).detach().T.clone(), requires_grad=False)
    embedded = model.get_input_embeddings()(words()).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(target(model(inputs_embeds=embedded)).sum(), embedded)
    found = maps(model)
    torch.testing.assert_close(found["gradient_x_input"].grid[0, 0], (embedded * gradient).sum(-1)[0].detach())
    if bits == 4:  # eight bits round what enters the layers too
        for name, expected in maps(rounded).items():
            torch.testing.assert_close(found[name].grid, expected.grid, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotApplicableError, match="of bitsandbytes"):
        maps(model, ["lrp"])
