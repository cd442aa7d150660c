"""Cases that time calls of `vitrail.explain` against passes of the bare model: one table, one function.

A shape is ``PRECISION:BATCH`` or ``PRECISION:BATCHxTOKENS``. Ratios are to passes of the same shape in the same run:
``over_forward`` (F, the fused model without gradients), ``over_forward_backward`` (F+B, the gradient of one logit at
all parameters, as in training) and ``over_forward_input_gradient`` (F+Bx, parameters frozen, gradient at the image: the
lower bound of a gradient method).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from internals import MODES, forget_recordings, in_mode, measure_structure, promised_copy
from measuring import (
    BARE,
    BASE,
    LARGE,
    SHARED_PASS_METHODS,
    SINGLE_PASS_METHODS,
    SIX,
    TINY,
    Calls,
    Prepared,
    Rows,
    Run,
    add_ratios,
    bare_passes,
    print_profile,
    profile_call,
)
from torch import Tensor, nn

import vitrail


@dataclass(frozen=True)
class CallCase:
    """A row of the table.

    Attributes:
        about: What the case measures.
        calls: By label, the methods of one call; a call without methods measures the structure of the model only.
        shapes: Precision, batch size and number of tokens.
        models: timm models.
        modes: Keys of ``MODES``; a call in another mode than the default has its name behind a comma.
        repeats: Interleaved measurements.
        alone: Measure each call alone with the bare passes, without recordings of other calls in memory.
        kernels: Add time and number of kernels, from one profiled call.
    """

    about: str
    calls: Mapping[str, Sequence[str]]
    shapes: tuple[str, ...] = ("float32:1",)
    models: tuple[str, ...] = (BASE,)
    modes: tuple[str, ...] = ("",)
    repeats: int = 7
    alone: bool = False
    kernels: bool = False


def each(*methods: str) -> dict[str, Sequence[str]]:
    """A call for each method."""
    return {method: (method,) for method in methods}


TOGETHER = {"six together": SIX}
RELEVANCE = ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attnlrp", "abslrp")
#: Gradient methods, AttnLRP with and without γ, and LRP: the methods whose ratios to F+Bx have goals.
RATIOS = ("transformer_mm", "leadlight", "vtranm", "grad_rollout", "conservative_lrp", "attnlrp",
          "attnlrp:gamma_linear=0", "lrp", "transformer_attribution")  # fmt: skip
RULE_SETS = {
    "orig": RELEVANCE[:2], "ours": RELEVANCE[2:3], "conservative": RELEVANCE[3:4], "attnlrp": RELEVANCE[4:5],
    "abslrp": RELEVANCE[5:],
}  # fmt: skip
CASES: dict[str, CallCase] = {
    "speed": CallCase(
        "six methods together and alone, in batches", TOGETHER | each(*SIX),
        ("float32:8", "float32:64", "bfloat16:8", "bfloat16:64"),
    ),
    "latency": CallCase(
        "one image: every method of one pass; default, inside `vitrail.unchanged`, and plain",
        TOGETHER | each(*SINGLE_PASS_METHODS), modes=("", "unchanged", "plain"), repeats=9,
    ),
    "cpu_ratios": CallCase(
        "one image on a CPU: gradient and relevance methods, ratio to F+Bx", each(*RATIOS), models=(TINY, BASE),
        repeats=9,
    ),
    "relevance": CallCase(
        "batch 64: gradient and relevance methods, ratio to F+Bx", each(*RATIOS), ("float32:64",), repeats=5,
    ),
    "half": CallCase(
        "bfloat16, batch 64: each call with nothing else recorded; default and plain",
        TOGETHER | each(*SIX, "leadlight", "conservative_lrp", "attnlrp"), ("bfloat16:64",), modes=("", "plain"),
        repeats=5, alone=True,
    ),
    "catalogue": CallCase(
        "attention and gradient methods together, each rule set of relevance, all together",
        {"attention and gradient together": SHARED_PASS_METHODS, **RULE_SETS,
         "all together": (*SHARED_PASS_METHODS, *RELEVANCE)}, ("float32:8", "float32:64"), repeats=5,
    ),
    "large": CallCase(
        "ViT-L/14 at 518 px: attention row by row, and as matrices (plain)",
        each("leadlight", "transformer_mm", "vtranm", "gradtoken"),
        ("bfloat16:8x1370", "bfloat16:64x197", "bfloat16:1x197", "tf32:8x1370"), (LARGE,), ("rows", "plain"), 3,
    ),
    "split_calls": CallCase(
        "batch 64 with split products and without", TOGETHER | each("transformer_mm", "leadlight"), ("float32:64",),
        modes=("", "no split"), repeats=5,
    ),
    "relevance_kernels": CallCase(
        "kernels of relevance methods, batch 64, TF32; default and plain", each(*RELEVANCE), ("tf32:64",),
        modes=("", "plain"), repeats=3, kernels=True,
    ),
    "replay": CallCase(
        "one image: kernels of a replayed pass, and the time before and after them",
        each("gradtoken", "raw_attention", "transformer_mm"), modes=("", "unchanged"), repeats=200, kernels=True,
    ),
    "selfcheck": CallCase(
        "the first call for a model, which measures its structure, and later ones",
        {"structure": (), **each("transformer_mm")}, models=(TINY, BASE, "vit_small_patch14_reg4_dinov2"),
        modes=("", "first"), repeats=5,
    ),
}  # fmt: skip


def explaining(model: nn.Module, images: Tensor, methods: Sequence[str], mode: str) -> Any:
    """A call with some methods in a mode.

    The first call for a model is measured on copies of it. Forgetting the model instead would make the calls measured
    next to it first calls too, and return GPU memory that the call then has to ask for again.
    """

    def call(called: nn.Module) -> Any:
        if not methods:
            return measure_structure(called, images)
        return vitrail.explain(called, images, methods=list(methods), target=0)

    if mode == "first":
        return Prepared(partial(copy.deepcopy, model), call)
    return in_mode(mode, model, partial(call, model))


def measure(case: CallCase, run: Run, model: nn.Module, images: Tensor) -> tuple[Rows, dict[str, str]]:
    """Rows of one model and shape, and why calls failed."""
    with ExitStack() as stack:
        promised = stack.enter_context(promised_copy(model)) if "unchanged" in case.modes else model
        return _measure(case, run, model, promised, images)


def _measure(
    case: CallCase, run: Run, model: nn.Module, promised: nn.Module, images: Tensor
) -> tuple[Rows, dict[str, str]]:
    timer, bare = run.timer(case.repeats), bare_passes(model, images)
    named: Calls = {
        f"{label}, {mode}" if mode else label: explaining(
            promised if mode == "unchanged" else model, images, methods, mode
        )
        for label, methods in case.calls.items() for mode in case.modes
    }  # fmt: skip
    groups: list[Calls] = [named]
    if case.alone:
        groups = [{n: c for n, c in named.items() if n.partition(",")[0] == label} for label in case.calls]
    rows: Rows = {}
    failed: dict[str, str] = {}
    for group in groups:
        if case.alone:
            forget_recordings(model)
            forget_recordings(promised)
        found, own_failed = timer.compare({**bare, **group})
        add_ratios(found, {key: f"bare {key}" for key in BARE.values()})
        rows, failed = {**rows, **found}, {**failed, **own_failed}
        for name in group.keys() & found.keys():
            if case.kernels:
                rows[name] |= profile_call(group[name], run.device)
            if run.profile:
                print_profile(name, group[name], run.device)
    return rows, failed


def run_case(case: CallCase, run: Run, **settings: Any) -> list[dict[str, Any]]:
    """Measure every model and shape of a case.

    Args:
        case: The row of the table.
        run: Common options.
        settings: ``models``, ``shapes``, ``modes`` or ``methods`` to replace those of the case.
    """
    case = case_with(case, settings)
    results: list[dict[str, Any]] = []
    for name in case.models:
        for shape in case.shapes:
            precision, _, size = shape.partition(":")
            batch, _, tokens = size.partition("x")
            model = run.model(name, precision, None if run.tiny or not tokens else int(tokens))
            images = run.images(model, run.count(int(batch)))
            print(f"-- {name}, {shape}", flush=True)
            rows, failed = measure(case, run, model, images)
            weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
            results.append({
                "model": name, "shape": shape, "batch": len(images), "dtype": str(images.dtype), "rows": rows,
                "failed": failed, "weights_mib": weights,
            })  # fmt: skip
            run.save(results)
            del model
    return results


def case_with(case: CallCase, settings: Mapping[str, Any]) -> CallCase:
    """The case with some of its settings replaced."""
    from dataclasses import replace

    unknown = set(settings.get("modes", ())) - MODES.keys() - {"default"}
    if unknown:
        raise SystemExit(f"modes {sorted(unknown)} do not exist: choose from default, {', '.join(filter(None, MODES))}")
    given = {key: value for key, value in settings.items() if key != "methods"}
    if "modes" in given:
        given["modes"] = tuple("" if mode == "default" else mode for mode in given["modes"])
    if "methods" in settings:
        given["calls"] = each(*settings["methods"])
    return replace(case, **given)
