"""``explain(progress=…)``, and interrupting methods that evaluate many images."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import vitrail
from vitrail.cli.common import progress_bar
from vitrail.errors import OptionError
from vitrail.methods import METHODS, ModelSize
from vitrail.testing import quick, tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
#: Methods that evaluate the model beyond the shared pass.
LONG = {
    name: options
    for name, options in quick().items()
    if METHODS[name].cost({**METHODS[name].options, **options}, ModelSize(), 1).evaluations
}


def state(model):
    """What a call must leave as it was."""
    return (
        model.training,
        [p.requires_grad for p in model.parameters()],
        [p.grad is None for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()],
        [m.training for m in model.modules()],
        sorted(vars(model)),
        _get_current_function_mode_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def interruption(after):
    """A function that raises KeyboardInterrupt when it is called for the n-th time."""
    left = after

    def interrupt(*_):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    return interrupt


FAST = ("rise", "integrated_gradients", "vit_cx", "occlusion", "shapley")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in LONG])
def test_an_interrupted_method_leaves_the_model_restored(name):
    """Ctrl-C between two evaluations, and inside the model's own second forward pass, or its only one."""
    model = tiny_vit().train()
    model.embed.weight.requires_grad_(False)
    before, weights = state(model), {k: v.clone() for k, v in model.state_dict().items()}
    calls = []
    given = {"target": 1, "batch_size": 16, **LONG[name]}
    done = vitrail.explain(model, IMAGES, name, advance=calls.append, **given)
    if calls:  # relevance propagation evaluates no further images
        with pytest.raises(KeyboardInterrupt):
            vitrail.explain(model, IMAGES, name, advance=interruption((len(calls) + 1) // 2), progress=True, **given)
        assert state(model) == before
    passes = []
    handle = model.norm.register_forward_hook(lambda *_: passes.append(1))
    vitrail.explain(model, IMAGES, name, **given)
    handle.remove()
    handle = model.norm.register_forward_hook(interruption(min(2, len(passes))))
    with pytest.raises(KeyboardInterrupt):
        vitrail.explain(model, IMAGES, name, **given)
    handle.remove()
    assert state(model) == before
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    assert torch.equal(vitrail.explain(model, IMAGES, name, **given).maps, done.maps)


def test_progress_counts_to_the_expected_number():
    model = tiny_vit()
    for method, expected in (
        ("rise:masks=50", 100), ("integrated_gradients:steps=3", 6), ("occlusion", 34), ("scorecam", 64), ("rollout", 0)
    ):  # fmt: skip
        steps = []
        vitrail.explain(model, IMAGES, method, progress=lambda *step, steps=steps: steps.append(step))
        assert [total for _, total in steps] == [expected] * len(steps), method
        assert [done for done, _ in steps] == sorted({done for done, _ in steps}), method
        assert not expected or steps[-1] == (expected, expected), method
    steps = []
    vitrail.explain(
        model,
        IMAGES,
        "integrated_gradients:steps=3",
        target="top2",
        smooth="flips",
        progress=lambda *s: steps.append(s),
    )
    assert steps[-1] == (72, 72), "3 steps, 2 targets, 2 images, 6 copies"


def test_a_bar_is_shown_on_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    vitrail.explain(tiny_vit(), IMAGES, "rise:masks=40")
    vitrail.explain(tiny_vit(), IMAGES, "rollout", progress=True)
    assert capsys.readouterr().err == "", "off by default, and for methods that only read the pass"
    vitrail.explain(tiny_vit(), IMAGES, "rise:masks=40", progress=True)
    shown = capsys.readouterr()
    assert "80/80" in shown.err
    assert not shown.out
    with progress_bar("Explaining", 2) as advance:
        vitrail.explain(tiny_vit(), IMAGES, "rise:masks=40", progress=advance.evaluations)
        advance()


@pytest.mark.parametrize("progress", ["yes", 3])
def test_a_wrong_progress_is_named(progress):
    with pytest.raises(OptionError, match="must be True, False, None or a function"):
        vitrail.explain(tiny_vit(), IMAGES, "rollout", progress=progress)
