"""Fast paths against the plain path, which ``VITRAIL_PLAIN=1`` selects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.battery.changed_maps import stale_methods
from tests.battery.changed_vit import changed_vit
from tests.battery.model_changes import CHANGES
from tests.combinations import combinations
from vitrail import fast
from vitrail.fast import recordings
from vitrail.fast.module_walk import modules_of
from vitrail.methods import METHODS
from vitrail.testing import tiny_vit

RECORDED = [m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance")]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


class Replay:
    """A stand-in for a recording: the pass is computed again from the recorded inputs, without the model's call."""

    capturing = False

    def __init__(self, compute: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        self.compute, self.inputs, self.replays = compute, [t.clone() for t in inputs], 0
        self.size = 1
        self.confirmed_in: Any = None
        self.noted: Any = None
        self.results: list[Tensor] = []

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.replays += 1
        self.results, extra = self.captured(self.inputs)
        return self.results, extra

    def captured(self, inputs: Sequence[Tensor]) -> Any:
        """Compute the pass as a GPU does while it records: no result is read."""
        Replay.capturing = True
        try:
            return self.compute(inputs)
        finally:
            Replay.capturing = False


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Record on the CPU, by `Replay`."""
    made: list[Replay] = []

    def record(compute: Callable[..., Any], inputs: Sequence[Tensor]) -> Replay:
        made.append(Replay(compute, inputs))
        return made[-1]

    monkeypatch.setattr(recordings, "_record", record)
    monkeypatch.setattr(recordings, "_Recording", Replay)
    monkeypatch.setattr(recordings, "_bound", lambda *_: None)
    monkeypatch.setattr(recordings, "_drawn", lambda _: 0)
    monkeypatch.setattr(recordings, "_DEVICES", ("cpu",))
    monkeypatch.setattr(fast, "capturing", lambda: Replay.capturing)
    return made


def test_recording_can_be_switched_off(graphs: list[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(recordings.SWITCH, "0")
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for _ in range(3):
        vitrail.explain(model, images, "rollout", target=0)
    assert not graphs


def test_recordings_serve_other_images_and_classes(graphs: list[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_vit().double()
    methods = ["leadlight", "conservative_lrp"]
    for i in range(3):
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        target = [[i, 2], [1, i]]
        replayed = vitrail.explain(model, images, methods=methods, target=target)
        with monkeypatch.context() as plain:
            plain.setenv("VITRAIL_PLAIN", "1")
            slow = vitrail.explain(model, images, methods=methods, target=target)
        for name, expected in slow.items():
            assert torch.allclose(replayed[name].grid, expected.grid, rtol=0, atol=1e-10)
            assert torch.equal(replayed[name].targets, expected.targets)
            assert torch.equal(replayed[name].images, images)
    assert [one.replays for one in graphs] == [2]


def test_recordings_are_not_used_with_hooks_or_autocast(graphs: list[Replay]) -> None:
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)

    def replayed() -> bool:
        before = sum(one.replays for one in graphs)
        vitrail.explain(model, images, "rollout", target=0)
        return sum(one.replays for one in graphs) > before

    assert [replayed() for _ in range(3)] == [False, True, True]
    handle = model.blocks[0].register_forward_hook(lambda *_: None)
    assert not replayed()
    handle.remove()
    assert replayed()
    with torch.autocast("cpu", torch.bfloat16):
        assert not replayed()
    with pytest.raises(vitrail.errors.TargetError, match="class 77"):
        vitrail.explain(model, images, "rollout", target=77)


class FixedReplay(Replay):
    """A stand-in that returns the results of the recording whatever became of the model, as a GPU does."""

    def __init__(self, compute: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        super().__init__(compute, inputs)
        self.fixed = self.captured(self.inputs)

    def replay(self, _: Sequence[Tensor]) -> Any:
        self.replays += 1
        results, extra = self.fixed
        self.results = [t.clone() for t in results]
        return self.results, extra


@pytest.fixture
def fixed_graphs(graphs: list[Replay], monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Record on the CPU, by `FixedReplay`."""

    def record(compute: Callable[..., Any], inputs: Sequence[Tensor]) -> Replay:
        graphs.append(FixedReplay(compute, inputs))
        return graphs[-1]

    monkeypatch.setattr(recordings, "_record", record)
    return graphs


FACTOR = {"value": 1.0}


class Scaled(nn.Module):
    """A model whose output depends on a global variable, a numpy array and a nested setting."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit(depth=2)
        self.array = np.ones(2)
        self.settings = {"nested": [SimpleNamespace(scale=1.0)]}

    def forward(self, x: Tensor) -> Tensor:
        scale = FACTOR["value"] * float(self.array[1]) * self.settings["nested"][0].scale
        return self.inner(x) * scale


def _write_data(model: Scaled) -> None:
    model.inner.head.weight.data.mul_(-1)


def _write_array(model: Scaled) -> None:
    model.array[1] = -1


def _write_setting(model: Scaled) -> None:
    model.settings["nested"][0].scale = -2.0


def _replace_forward(model: Scaled) -> None:
    inner = model.inner
    model.forward = lambda x: -inner(x)


def _swap_activation(model: Scaled) -> None:
    model.inner.blocks[0].mlp[1] = nn.ReLU()


@pytest.mark.parametrize(
    ("change", "method"),
    combinations(
        [_write_data, _write_array, _write_setting, _replace_forward, _swap_activation],
        ["gradtoken", "rollout", "attnlrp"],
    ),
)
def test_a_recording_of_a_changed_model_is_dropped(change, method, fixed_graphs: list[Replay]) -> None:
    model, images = Scaled(), torch.randn(1, 3, 32, 32)
    for _ in range(3):
        vitrail.explain(model, images, method, target=0)
    assert [one.replays for one in fixed_graphs] == [2]
    change(model)
    fresh = copy.deepcopy(model)
    if change is _replace_forward:
        _replace_forward(fresh)
    found = vitrail.explain(model, images, method, target=0)
    expected = vitrail.explain(fresh, images, method, target=0)
    assert torch.allclose(found.grid, expected.grid, rtol=0, atol=1e-6 * float(expected.grid.abs().max()))
    assert torch.allclose(found.logits, expected.logits, atol=1e-6)


@pytest.mark.slow
def test_no_change_of_a_model_leaves_a_recorded_map(fixed_graphs: list[Replay]) -> None:
    stale = {
        name: found
        for name, change in CHANGES.items()
        if (found := stale_methods(changed_vit, change, ("transformer_mm", "conservative_lrp"), calls=4))
    }
    assert not stale
    assert sum(one.replays for one in fixed_graphs) >= 2 * len(CHANGES)


def test_a_promise_spares_the_comparison_after_the_first_replay(
    fixed_graphs: list[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.capture import recorded_forward

    compared: list[int] = []
    compare = recorded_forward.same_to_rounding
    monkeypatch.setattr(recorded_forward, "same_to_rounding", lambda *a: compared.append(1) or compare(*a))
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for _ in range(3):
        vitrail.explain(model, images, "gradtoken", target=0)
    assert len(compared) == 3  # once where the pass is first computed
    with vitrail.unchanged(model):
        for _ in range(3):
            vitrail.explain(model, images, "gradtoken", target=0)
    assert len(compared) == 4
    model.head.weight.data.mul_(-1)
    with vitrail.unchanged(model):  # the promise begins here: what was recorded before is compared once
        found = vitrail.explain(model, images, "gradtoken", target=0)
    assert torch.allclose(found.logits, model(images), atol=1e-5)


def test_recordings_give_their_memory_back(graphs: list[Replay], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for _ in range(2):
        vitrail.explain(model, images, "rollout", target=0)
    expected = vitrail.explain(model, images, "rollout", target=0).maps

    def no_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(graphs[0], "replay", no_memory)
    assert torch.equal(vitrail.explain(model, images, "rollout", target=0).maps, expected)
    assert set(recordings._passes[model].values()) == {recordings.RUNS_AFTER_DROPPED}
    monkeypatch.setattr("vitrail.pipeline.recorded_batch.compute_batch", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        vitrail.explain(model, images, "gradtoken", target=0, recompute=False)


@pytest.mark.parametrize("method", ["occlusion", "vit_cx", "vit_cx:paper"])
def test_passes_of_perturbed_images_are_recorded(
    method: str, graphs: list[Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_vit().double()
    for target in (0, 1, None):
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
        replayed = vitrail.explain(model, images, method, target=target, batch_size=11)
        with monkeypatch.context() as plain:
            plain.setenv("VITRAIL_PLAIN", "1")
            slow = vitrail.explain(model, images, method, target=target, batch_size=11)
        assert torch.allclose(replayed.grid, slow.grid, rtol=0, atol=1e-10)
        assert torch.allclose(replayed.logits, slow.logits)
    assert {len(one.inputs[0]) for one in graphs} <= {2, 8, 16}
    assert sum(one.replays for one in graphs) > 2


def test_modules_are_walked_in_order() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ModuleList([nn.ReLU(), shared]), tiny_vit())
    assert modules_of(model) == list(model.modules())


@needs_gpu
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
@pytest.mark.parametrize("method", RECORDED)
def test_replayed_maps_are_those_of_the_plain_path(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_vit().double().cuda()
    for target in (0, 1, 2, None):
        images = torch.randn(2, 3, 32, 32, dtype=torch.float64, device="cuda")
        replayed = vitrail.explain(model, images, method, target=target)
        with monkeypatch.context() as plain:
            plain.setenv("VITRAIL_PLAIN", "1")
            slow = vitrail.explain(model, images, method, target=target)
        assert torch.allclose(replayed.grid, slow.grid, rtol=1e-10, atol=1e-10 * float(slow.grid.abs().max()))
    kept = recordings._passes[model].values()
    assert any(isinstance(one, recordings._Recording) for one in kept)


@needs_gpu
def test_a_model_that_waits_for_its_results_is_not_recorded() -> None:
    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x if float(x.sum()) < 1e9 else -x)

    model = Waiting().cuda()
    images = torch.randn(1, 3, 32, 32, device="cuda")
    maps = [vitrail.explain(model, images, "rollout", target=0).maps for _ in range(3)]
    assert torch.equal(maps[0], maps[2])
    assert set(recordings._passes[model].values()) == {recordings.NOT_RECORDABLE}
    torch.randn(2, device="cuda")  # a recording that failed leaves the generator usable
    free = torch.cuda.memory_reserved()
    torch.empty(2**28, device="cuda").sum().item()
    torch.cuda.empty_cache()  # the allocator gives memory back after a recording that failed
    assert torch.cuda.memory_reserved() <= free + 2**26


@needs_gpu
def test_a_model_that_draws_numbers_is_not_recorded() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_vit()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + torch.randn_like(x))

    model = Noisy().cuda()
    images = torch.randn(1, 3, 32, 32, device="cuda")
    maps = [vitrail.explain(model, images, "rollout", target=0).maps for _ in range(4)]
    assert not torch.equal(maps[2], maps[3])


@needs_gpu
@pytest.mark.parametrize("method", ["raw_attention", "leadlight", "attnlrp"])
def test_indices_may_be_on_the_cpu(method: str) -> None:
    class Ordered(nn.Module):
        def __init__(self, device: str) -> None:
            super().__init__()
            self.inner = tiny_vit()
            self.columns = torch.arange(32, device=device).roll(8)  # no buffer: stays where it is
            self.rows = torch.arange(32, device="cuda").roll(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x[..., self.columns][..., self.rows, :])

    images = torch.randn(1, 3, 32, 32, device="cuda")
    mixed, same = Ordered("cpu").cuda(), Ordered("cuda").cuda()
    same.inner.load_state_dict(mixed.inner.state_dict())
    for _ in range(3):  # computed, recorded, replayed
        maps = [vitrail.explain(model, images, method, target=0).grid for model in (mixed, same)]
        assert torch.allclose(*maps, atol=1e-5 * float(maps[1].abs().max()))
