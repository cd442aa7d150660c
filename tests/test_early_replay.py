"""Recorded passes that are replayed before it is checked that they are the right ones."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from test_fast_paths import Replay, graphs  # noqa: F401
from vitrail.capture.early_replay import EarlyReplay
from vitrail.capture.layout import index_tensor
from vitrail.capture.merged_adapters import merged_linears
from vitrail.errors import InputError, MapWarning, ModelError, TargetError
from vitrail.fast import recordings
from vitrail.fast.module_state import module_state
from vitrail.fast.module_walk import weights_of
from vitrail.testing import tiny_vit


class Adapted(nn.Module):
    """A linear layer with an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Scaled(nn.Module):
    """A model whose output depends on attributes: a number, a tensor and a configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.offset, self.settings = tiny_vit(), torch.zeros(3, 1, 1), Settings()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.settings.factor * x + self.offset)


class Halved(nn.Module):
    """A model that says the same of every image that is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * x.abs().amax((1, 2, 3))[:, None]


class Settings:
    """A configuration object."""

    factor = 1.0

    def __init__(self) -> None:
        self.factor = 1.0


def hook(model: Scaled) -> None:
    model.inner.blocks[0].register_forward_hook(lambda _, __, output: 2 * output)


def attribute(model: Scaled) -> None:
    model.settings.factor = -3.0


def tensor_replaced(model: Scaled) -> None:
    model.offset = torch.randn(3, 1, 1)


def tensor_written(model: Scaled) -> None:
    model.offset += torch.randn(3, 1, 1)


def weight_replaced(model: Scaled) -> None:
    model.inner.blocks[0].norm1.weight = nn.Parameter(3 + torch.randn_like(model.inner.blocks[0].norm1.weight))


def weight_written(model: Scaled) -> None:
    with torch.no_grad():
        model.inner.blocks[0].norm1.weight.add_(3)


def module_replaced(model: Scaled) -> None:
    model.inner.blocks[1] = model.inner.blocks[0]


def function_replaced(model: Scaled) -> None:
    block = model.inner.blocks[1]
    block.forward = lambda x: 2 * type(block).forward(block, x)


CHANGES = [hook, attribute, tensor_replaced, tensor_written, weight_replaced, weight_written, module_replaced,
           function_replaced]  # fmt: skip


@pytest.fixture
def stale(graphs: list[Replay], monkeypatch: pytest.MonkeyPatch) -> list[Replay]:  # noqa: F811
    """Replays that say what they said when they were recorded, whatever the model is now."""

    def replay(self: Replay, _: Any) -> Any:
        if not self.results:
            self.results, self.extra = self.compute(self.inputs)  # type: ignore[attr-defined]
        self.replays += 1
        return [t.clone() for t in self.results], self.extra  # type: ignore[attr-defined]

    monkeypatch.setattr(Replay, "replay", replay)
    return graphs


@pytest.mark.parametrize("change", CHANGES)
def test_results_of_a_replay_that_was_wrong_are_dropped(
    change: Callable[[Scaled], None], stale: list[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = Scaled().eval(), torch.randn(1, 3, 32, 32)
    before = [vitrail.explain(model, images, "gradtoken", target=0).grid for _ in range(4)]
    assert [one.replays for one in stale] == [3]  # one each, although two of them came before the checks
    change(model)
    after = vitrail.explain(model, images, "gradtoken", target=0).grid
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    expected = vitrail.explain(model, images, "gradtoken", target=0).grid
    assert torch.allclose(after, expected, atol=1e-6)
    assert not torch.allclose(after, before[-1], rtol=1e-3)


def test_nothing_is_replayed_whose_weights_lie_elsewhere(graphs: list[Replay]) -> None:  # noqa: F811
    for change in (lambda m: m.double(), lambda m: setattr(m.blocks[0], "norm1", nn.LayerNorm(32).eval())):
        model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
        for _ in range(3):
            vitrail.explain(model, images, "rollout", target=0)
        replays = graphs[-1].replays
        change(model)
        gc.collect()
        vitrail.explain(model, images, "rollout", target=0)
        assert graphs[-1].replays == replays


def test_calls_like_an_earlier_one_are_replayed_first(
    graphs: list[Replay],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, order = tiny_vit().double(), list[str]()
    results, look = EarlyReplay.results, recordings.module_state
    monkeypatch.setattr(
        EarlyReplay,
        "results",
        lambda *given: order.append("asked") or results(*given),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(
        recordings,
        "module_state",
        lambda given: order.append("looked") or look(given),  # type: ignore[func-returns-value]
    )
    replay = Replay.replay
    monkeypatch.setattr(
        Replay,
        "replay",
        lambda *given: order.append("replayed") or replay(*given),  # type: ignore[func-returns-value]
    )
    for i, target in enumerate((0, 1, 2, 1)):
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        order.clear()
        fast = vitrail.explain(model, images if i % 2 else images.float(), "gradtoken", target=target)
        assert (
            order
            == [
                ["looked", "looked", "asked"],
                ["looked", "looked", "asked", "replayed"],
                ["looked", "looked", "asked", "replayed"],  # other inputs: not yet known
                ["replayed", "looked", "looked", "asked"],
            ][i]
        )
        assert torch.equal(fast.targets, torch.full((2, 1), target))
        monkeypatch.setenv("VITRAIL_PLAIN", "1")
        slow = vitrail.explain(model, images if i % 2 else images.float(), "gradtoken", target=target)
        monkeypatch.delenv("VITRAIL_PLAIN")
        assert torch.allclose(fast.grid, slow.grid, rtol=0, atol=1e-10)
        assert fast.seconds > 0


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
@pytest.mark.parametrize("target", [None, "top2", [1, 2], [[0, 1]], 2])
def test_early_replays_explain_the_target_that_is_asked(target: Any, graphs: list[Replay]) -> None:  # noqa: F811
    model = tiny_vit().double()
    for _ in range(4):
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        found = vitrail.explain(model, images, methods=["gradtoken", "rollout"], target=target)
        expected = vitrail.explain(model, images, methods=["gradtoken", "rollout"], target=target, batch_size=1)
        assert torch.equal(found["gradtoken"].targets, expected["gradtoken"].targets)
        assert torch.allclose(found["gradtoken"].grid, expected["gradtoken"].grid, rtol=0, atol=1e-10)


def test_inputs_and_classes_are_checked_before_an_early_replay(graphs: list[Replay]) -> None:  # noqa: F811
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for _ in range(3):
        vitrail.explain(model, images, "rollout", target=0)
    replays = graphs[0].replays
    with pytest.raises(TargetError, match="class 77"):
        vitrail.explain(model, images, "rollout", target=77)
    for wrong in (float("nan"), float("inf")):
        broken = images.clone()
        broken[0, 1, 3, 4] = wrong
        with pytest.raises(InputError, match="NaN or infinite"):
            vitrail.explain(model, broken, "rollout", target=0)
    assert graphs[0].replays == replays


@pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning")
def test_recorded_results_are_checked(graphs: list[Replay]) -> None:  # noqa: F811
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for _ in range(3):
        vitrail.explain(model, images, "rollout", target=0)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    for _ in range(4):
        with pytest.warns(MapWarning, match="constant"):
            vitrail.explain(model, images, "gradtoken", target=0)
    model.head.bias.data.fill_(float("nan"))  # without a new version
    for _ in range(3):
        with pytest.raises(ModelError, match=r"head\.bias"):
            vitrail.explain(model, images, "gradtoken", target=0)


@pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning")
def test_constant_maps_are_found_where_some_batches_are_not_recorded(
    graphs: list[Replay],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitrail.pipeline.recorded_batch.pays", lambda _, batch, __: batch == 1)
    images = torch.randn(3, 3, 32, 32)
    images[:2] = 0.0
    model = Halved().eval()
    for _ in range(3):
        with pytest.warns(MapWarning, match=r"2 of 3 maps are constant .* \(0, 0\)"):
            vitrail.explain(model, images, "gradtoken", target=0, batch_size=2)
    assert sum(one.replays for one in graphs) == 2


def test_recordings_keep_what_caches_may_drop() -> None:
    recordings._under_way.kept = kept = []
    try:
        index = index_tensor((0, 3), torch.device("cpu"))
        with merged_linears(Adapted().eval()):
            pass
    finally:
        recordings._under_way.kept = None
    assert any(one is index for one in kept)
    assert any(one.shape == (4, 4) for one in kept)


def test_state_holds_numbers_in_attributes_of_modules() -> None:
    model = Scaled()
    assert any(one is model.offset for one in module_state(model).tensors)
    states = [module_state(model).key]
    for change in (lambda: setattr(model, "table", {"a": 1}), lambda: model.table.update(a=2),
                   lambda: setattr(model, "sizes", [1, (2, 3)]), lambda: model.sizes.append(4),
                   lambda: model.inner.eval() if model.inner.training else model.inner.train()):  # fmt: skip
        change()
        states.append(module_state(model).key)
    assert len(set(states)) == len(states)
    assert states[-1] == module_state(model).key
    assert not module_state(model).hooked
    hook(model)
    assert module_state(model).hooked


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_state_of_modules_without_python_functions() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    assert module_state(model).key == module_state(model).key
    assert len(weights_of(model)) == 2
