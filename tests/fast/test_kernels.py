"""Kernels by name: which tensors they support, and what happens where they fail or are switched off."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail import fast
from vitrail.fast import elementwise_kernels, kernels
from vitrail.lrp import elementwise, elementwise_gradients
from vitrail.models.plain_vit import PlainViT


@pytest.fixture
def on_cpu(monkeypatch):
    """Kernels as if they computed on the CPU, and none has failed."""
    monkeypatch.setattr(kernels, "DEVICES", ("cpu",))
    monkeypatch.setattr(kernels, "_INSTALLED", True)
    monkeypatch.setattr(kernels, "_failed", {})


def broken(monkeypatch, error):
    """A kernel that fails, and the tensors it was called with."""
    tried = []

    def fail(x):
        tried.append(x)
        raise error

    monkeypatch.setattr(elementwise_kernels, "halves", fail)
    return tried


def test_every_kernel_has_a_function_and_a_plain_one():
    for module, names in kernels.KERNELS.items():
        functions = import_module(f"vitrail.fast.{module}")
        for name in names:
            assert callable(getattr(functions, name))
            plain = getattr(elementwise, name, None) or getattr(elementwise_gradients, name, None)
            assert module == "row_kernels" or hasattr(plain, "__wrapped__"), name


def test_a_kernel_computes_what_it_supports(on_cpu, monkeypatch):
    monkeypatch.setattr(elementwise_kernels, "halves", lambda x: (x + 1, x + 2))
    assert [t.item() for t in elementwise.halves(torch.tensor([3.0]))] == [4, 5]
    assert [t.item() for t in elementwise.halves(torch.tensor([3.0]).double())] == [3, 0]
    monkeypatch.setattr(elementwise_kernels, "halves", lambda _: None)  # not these
    assert [t.item() for t in elementwise.halves(torch.tensor([3.0]))] == [3, 0]


def test_constants_reach_the_kernel(on_cpu, monkeypatch):
    monkeypatch.setattr(elementwise_kernels, "share", lambda R, _, factor=1.0, *, eps: R * factor + eps)
    assert elementwise.share(torch.ones(1), torch.ones(1), 0.5) == 0.5 + elementwise.EPS


def test_a_kernel_that_fails_is_replaced_and_not_run_again_on_such_tensors(on_cpu, monkeypatch, caplog):
    tried = broken(monkeypatch, RuntimeError("no C compiler"))
    x = torch.tensor([1.0, -2.0])
    for _ in range(2):
        one, two = elementwise.halves(x)
        assert torch.equal(one + two, x)
    assert len(tried) == 1
    assert len(caplog.records) == 1
    assert "halves" in caplog.text
    assert "no C compiler" in caplog.text


def test_a_failure_is_that_of_one_kernel_and_one_kind_of_tensors(on_cpu, monkeypatch):
    tried = broken(monkeypatch, RuntimeError("no such instruction"))
    x = torch.tensor([1.0, -2.0])
    for other in (x, x + 1, x[None], x.bfloat16()):
        elementwise.halves(other)
    assert [(t.dtype, t.dim()) for t in tried] == [(torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1)]
    monkeypatch.setattr(elementwise_kernels, "signed_parts", lambda _: "kernel")
    assert elementwise.signed_parts(x) == "kernel"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), MemoryError()])
def test_running_out_of_memory_is_no_failure(on_cpu, monkeypatch, error):
    tried = broken(monkeypatch, error)
    for _ in range(2):
        with pytest.raises(type(error)):
            elementwise.halves(torch.ones(1))
    assert len(tried) == 2


def test_without_triton_nothing_is_tried(on_cpu, monkeypatch):
    monkeypatch.setattr(kernels, "_INSTALLED", False)
    tried = broken(monkeypatch, RuntimeError())
    elementwise.halves(torch.ones(1))
    assert not tried
    assert not kernels._failed


def test_which_tensors_kernels_support(on_cpu):
    single = torch.ones(2)
    assert kernels.supports(single, single.bfloat16())
    assert not kernels.supports(single, single.double())
    assert not kernels.supports(single[:0])
    assert kernels.supports(torch.nn.Parameter(single))
    assert not kernels.supports(single.as_subclass(type("Quantised", (torch.Tensor,), {})))
    assert not kernels.supports(single.to("meta"))


def test_the_switch_turns_kernels_off(on_cpu, monkeypatch):
    monkeypatch.setattr(elementwise_kernels, "halves", lambda _: "kernel")
    assert fast.kernel("halves", torch.ones(1)) == "kernel"
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    assert fast.kernel("halves", torch.ones(1)) is None


@pytest.mark.parametrize("method", ["attnlrp", "transformer_attribution", "lrp"])
def test_the_plain_path_runs_no_kernel_code(on_cpu, monkeypatch, method):
    """Whatever device the tensors are on: with the switch, no line of a module with kernels is run."""
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    files = {str(Path(kernels.__file__).parent / f"{module}.py") for module in (*kernels.KERNELS, "split_kernels")}
    run = []

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_filename in files:
            run.append(frame.f_code.co_qualname)

    model, images = PlainViT().eval(), torch.randn(1, 3, 32, 32)
    sys.setprofile(watch)
    try:
        vitrail.explain(model, images, method, target=1)
    finally:
        sys.setprofile(None)
    assert not run
