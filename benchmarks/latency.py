"""Time of one image, and of a batch in half precision, as ratios to passes of the bare model in the same run.

    python benchmarks/latency.py --device cuda --out benchmarks/results/latency-h200.json

- same: maps of the fast paths against maps of the plain path (``VITRAIL_PLAIN=1``), in float64 and float32
- single: one image at a time, attention, gradient and relevance methods
- perturbation: Score-CAM and ViT-CX against their forward passes, integrated gradients against Captum where installed
- half: six methods together and relevance in bfloat16, batch 64
- profile: kernels and synchronisations of a few calls, printed only

Weights are random, which does not change the time; ViT-CX takes ViT-Tiny, with as many masks as its weights give.
"""

from __future__ import annotations

import argparse
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import timm
import torch
from common import SINGLE_PASS_METHODS, Timer, bare_passes, save_speed, speed_parser
from torch import Tensor

import vitrail
from vitrail.fast import recordings

SIX = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]
SINGLE = ["raw_attention", "rollout", "gradtoken", "gradcam", "transformer_mm", "vtranm", "leadlight", "legrad",
          "transformer_attribution", "conservative_lrp", "attnlrp", "abslrp"]  # fmt: skip
HALF_RELEVANCE = ["conservative_lrp", "attnlrp"]
PARTS = ["same", "single", "perturbation", "half", "profile"]


@contextmanager
def plain_path() -> Iterator[None]:
    """Switch the fast paths off."""
    os.environ["VITRAIL_PLAIN"] = "1"
    try:
        yield
    finally:
        del os.environ["VITRAIL_PLAIN"]


def on_plain_path(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call with the fast paths off."""

    def run() -> Any:
        with plain_path():
            return call()

    return run


def working(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Run every call twice (a pass is recorded in its second run), and leave out those that fail."""
    found = {}
    for name, call in calls.items():
        try:
            call()
            call()
            found[name] = call
        except Exception as error:  # noqa: BLE001 - one method's failure does not end the run
            print(f"{name} failed: {error!r}"[:300], flush=True)
    return found


def images_of(model: torch.nn.Module, count: int, args: argparse.Namespace, dtype: torch.dtype) -> Tensor:
    """Random images of the model's size."""
    size = model.patch_embed.img_size
    return torch.randn(count, 3, *size, device=args.device, dtype=dtype)


def make(args: argparse.Namespace, name: str, dtype: torch.dtype) -> torch.nn.Module:
    """A model with random weights."""
    options: dict[str, Any] = {"img_size": args.size} if args.size else {}
    return timm.create_model(name, **options).to(args.device, dtype).eval()


def measure_same(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Largest difference of the maps, relative to their range, between fast and plain path."""
    found = []
    for dtype in (torch.float64,):
        model = make(args, args.small, dtype)
        for name in [*SINGLE_PASS_METHODS, *(["+".join(SIX)])]:
            names = name.split("+")
            differences = []
            for target in (0, 1, 2):  # computed, recorded and replayed, replayed
                images = images_of(model, 2, args, dtype)
                with plain_path():
                    slow = vitrail.explain(model, images, methods=names, target=target)
                try:
                    fast = vitrail.explain(model, images, methods=names, target=target)
                except Exception as error:  # noqa: BLE001 - one method's failure does not end the run
                    print(f"{name[:40]:40s} failed: {error!r}"[:300], flush=True)
                    break
                for label, explanation in slow.items():
                    span = explanation.grid.abs().amax().clamp_min(1e-300)
                    differences.append(float((fast[label].grid - explanation.grid).abs().amax() / span))
            recorded = [r for r in recordings._known.get(model, {}).values() if not isinstance(r, int)]  # noqa: SLF001
            row = {"method": name, "dtype": str(dtype), "differences": differences, "recordings": len(recorded),
                   "MiB": round(recorded[-1].size / 2**20) if recorded else None}  # fmt: skip
            found.append(row)
            print(f"{name[:40]:40s} {dtype!s:14s} largest {max(differences, default=0):.1e} recordings {len(recorded)} "
                  f"{row['MiB']} MiB", flush=True)  # fmt: skip
    return found


def over(rows: dict[str, dict[str, Any]], bare: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Add ratios to bare calls and print the rows."""
    for name, row in rows.items():
        row["over"] = {b: row["seconds"] / rows[b]["seconds"] for b in bare}
        ratios = "  ".join(f"×{b} {r:6.2f}" for b, r in row["over"].items())
        print(f"{name:44s} {row['seconds'] * 1e3:9.2f} ms  {ratios}", flush=True)
    return rows


def measure_single(args: argparse.Namespace) -> dict[str, Any]:
    """One image at a time."""
    model = make(args, args.model, torch.float32)
    images = images_of(model, 1, args, torch.float32)
    bare = bare_passes(model, images)
    calls: dict[str, Callable[[], Any]] = {"F": bare["bare forward"], "F+B": bare["bare forward_backward"],
                                           "F+Bx": bare["bare forward_input_gradient"]}  # fmt: skip
    for name in SINGLE:
        calls[name] = lambda name=name: vitrail.explain(model, images, name, target=0)
        calls[f"{name}, plain"] = on_plain_path(calls[name])
    calls = working(calls)
    return over(Timer(torch.device(args.device), args.repeats).compare(calls), ("F", "F+B", "F+Bx"))


def measure_perturbation(args: argparse.Namespace) -> dict[str, Any]:
    """Score-CAM, integrated gradients and ViT-CX."""
    device, found = torch.device(args.device), {}
    timer = Timer(device, max(3, args.repeats // 2))
    model = make(args, args.model, torch.float32)
    image = images_of(model, 1, args, torch.float32)
    width = model.embed_dim

    def forwards(most: int) -> None:
        with torch.inference_mode():
            model(image)
            for start in range(0, width, most):
                model(image.expand(min(most, width - start), -1, -1, -1).contiguous())

    calls: dict[str, Callable[[], Any]] = {}
    for most in (32, 64):
        calls[f"forwards in batches of {most}"] = lambda most=most: forwards(most)
        calls[f"scorecam, batches of {most}"] = lambda most=most: vitrail.explain(
            model, image, "scorecam", target=0, batch_size=most
        )
    found["scorecam"] = over(timer.compare(calls), ("forwards in batches of 32", "forwards in batches of 64"))
    calls = {"integrated_gradients": lambda: vitrail.explain(model, image, "integrated_gradients", target=0)}
    for most in (25, 50):
        calls[f"integrated_gradients, batches of {most}"] = lambda most=most: vitrail.explain(
            model, image, "integrated_gradients", target=0, batch_size=most
        )
    many = image.expand(50, -1, -1, -1).contiguous()
    calls["F+Bx of 50 images"] = bare_passes(model, many)["bare forward_input_gradient"]
    if find_spec("captum") is not None:
        from captum.attr import IntegratedGradients

        captum = IntegratedGradients(model)
        calls["Captum"] = lambda: captum.attribute(image.requires_grad_(), target=0, n_steps=50)
    bare = ("F+Bx of 50 images", *(["Captum"] if "Captum" in calls else []))
    found["integrated_gradients"] = over(timer.compare(calls), bare)
    small = make(args, args.small, torch.float32)
    image = images_of(small, 1, args, torch.float32)
    low, high = 0.01, 0.3
    for _ in range(10):  # as many masks as trained weights give
        delta = (low + high) / 2
        kept = vitrail.explain(small, image, "vit_cx", target=0, delta=delta, keep=True)
        count = int(kept.intermediates["count"][0][0])
        if 21 <= count <= 31:
            break
        low, high = (delta, high) if count > 31 else (low, delta)

    def masked() -> None:
        with torch.inference_mode():
            small(image)
            small(image.expand(count, -1, -1, -1).contiguous())
            small(image.expand(count, -1, -1, -1).contiguous())

    calls = {"its forwards": masked, "vit_cx": lambda: vitrail.explain(small, image, "vit_cx", target=0, delta=delta)}
    calls["vit_cx, plain"] = on_plain_path(calls["vit_cx"])
    found["vit_cx"] = over(timer.compare(calls), ("its forwards",))
    found["vit_cx"]["masks"] = count
    print(f"vit_cx: {count} masks", flush=True)
    return found


def measure_half(args: argparse.Namespace) -> dict[str, Any]:
    """Six methods together, each alone, and relevance, in bfloat16."""
    model = make(args, args.model, torch.bfloat16)
    images = images_of(model, args.batch, args, torch.bfloat16)
    bare = bare_passes(model, images)
    calls: dict[str, Callable[[], Any]] = {"F": bare["bare forward"], "F+B": bare["bare forward_backward"],
                                           "F+Bx": bare["bare forward_input_gradient"]}  # fmt: skip
    timer, found = Timer(torch.device(args.device), args.repeats), {}
    groups = {"six together": SIX, **{name: [name] for name in [*SIX, "leadlight", *HALF_RELEVANCE]}}
    for label, names in groups.items():
        together = {**calls, label: partial(vitrail.explain, model, images, methods=names, target=0)}
        together[f"{label}, plain"] = on_plain_path(together[label])
        recordings._known.clear()  # noqa: SLF001 - recordings of other methods, which would share the memory
        found |= over(timer.compare(working(together)), ("F", "F+B", "F+Bx"))
    return found


def profile(args: argparse.Namespace) -> None:
    """Print where a few calls spend their time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    cases = [("float32, one image", args.model, 1, torch.float32, ["leadlight"]),
             ("float32, one image", args.model, 1, torch.float32, ["transformer_attribution"]),
             *((f"bfloat16, {args.batch} images", args.model, args.batch, torch.bfloat16, names)
               for names in (SIX, ["attnlrp"], ["conservative_lrp"]))]  # fmt: skip
    cases = [case for case in cases if case[0].startswith(args.profiled)]
    cuda = torch.device(args.device).type == "cuda"
    for label, name, batch, dtype, methods in cases:
        model = make(args, name, dtype)
        images = images_of(model, batch, args, dtype)
        for path in ("fast", "plain"):
            call = partial(vitrail.explain, model, images, methods=methods, target=0)
            call = on_plain_path(call) if path == "plain" else call  # type: ignore[assignment]
            for _ in range(3):
                call()
            with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
                call()
            events = seen.key_averages()
            order = "self_device_time_total" if cuda else "self_cpu_time_total"
            print(f"== {label}, {'+'.join(methods)}, {path}", flush=True)
            print(events.table(sort_by=order, row_limit=args.rows, max_name_column_width=80), flush=True)


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=9)
    parser.add_argument("--small", default="vit_tiny_patch16_224", help="model of ViT-CX and of the comparison of maps")
    parser.add_argument("--size", type=int, default=None, help="image size, for trials")
    parser.add_argument("--batch", type=int, default=64, help="batch in half precision")
    parser.add_argument("--profiled", default="", help="precision of the calls to profile, both by default")
    parser.add_argument("--rows", type=int, default=25, help="rows of the profile")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:4])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger(recordings.__name__).setLevel(logging.DEBUG)
    torch.manual_seed(0)
    measures = {"same": measure_same, "single": measure_single, "perturbation": measure_perturbation,
                "half": measure_half}  # fmt: skip
    results: dict[str, Any] = {}
    for part in args.parts:
        print(f"-- {part}", flush=True)
        if part == "profile":
            profile(args)
            continue
        try:
            results[part] = measures[part](args)
        except Exception:  # noqa: BLE001 - the other parts are still measured
            traceback.print_exc()
        save_speed(args, results)  # after each part, so that an interrupted run keeps its results


if __name__ == "__main__":
    main()
