"""What a call of `vitrail.explain` costs around the replay of a recorded pass, for one image.

    python benchmarks/replay_overhead.py --device cuda --out benchmarks/results/replay-overhead-h200.json
    python benchmarks/replay_overhead.py --device cpu --out /tmp/replay-overhead.json

On CUDA, milliseconds of ViT-B/16 in float32 for three methods: the call, its graph alone, and a forward pass of the
bare model; measurements are interleaved. ``before``, ``during`` and ``after`` are the parts of the call: Python until
the graph is launched, Python while the GPU computes, and everything after the results were waited for. ``waited`` is
what is left to wait once Python has nothing more to do: where it is near zero, Python is the bottleneck.

On the CPU there are no graphs; a replay copies results that were computed before, and the parts are those of Python
alone, on a model of 12 blocks of width 24.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from common import Timer, device_name, save_json
from torch import Tensor

import vitrail
from vitrail.fast import recordings
from vitrail.pipeline.provenance import versions
from vitrail.pipeline.shared_pass import ResultFlags

METHODS = ("gradtoken", "raw_attention", "transformer_mm")


class CopiedResults:
    """A stand-in for a recording on the CPU."""

    size = 0

    def __init__(self, compute: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        self.inputs = [t.clone() for t in inputs]
        self.outputs, self.extra = compute(self.inputs)

    def replay(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Copies of the results."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        return [t.clone() for t in self.outputs], self.extra


def record_on_cpu() -> None:
    """Record passes by `CopiedResults`."""
    recordings._record = recordings._Recording = CopiedResults  # type: ignore[assignment,misc]  # noqa: SLF001
    recordings._bound = lambda *_: None  # noqa: SLF001
    recordings._drawn = lambda _: 0  # noqa: SLF001
    recordings._DEVICES = ("cpu",)  # noqa: SLF001


class Marks:
    """Times at which a call launches its graph, and starts and ends to wait for its results."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        kind, wait = recordings._Recording, ResultFlags.wait  # noqa: SLF001
        replay = kind.replay

        def marked_replay(recording: Any, inputs: Sequence[Tensor]) -> Any:
            self.times["launch"] = time.perf_counter()
            result = replay(recording, inputs)
            self.times["launched"] = time.perf_counter()
            return result

        def marked_wait(flags: ResultFlags) -> bool:
            self.times["wait"] = time.perf_counter()
            result = wait(flags)
            self.times["waited"] = time.perf_counter()
            return result

        kind.replay = marked_replay  # type: ignore[method-assign]
        ResultFlags.wait = marked_wait  # type: ignore[method-assign]

    def parts(self, call: Callable[[], Any]) -> dict[str, float]:
        """Seconds of the parts of a call."""
        started = time.perf_counter()
        call()
        ended, at = time.perf_counter(), self.times
        return {
            "before": at["launch"] - started, "launch": at["launched"] - at["launch"],
            "during": at["wait"] - at["launched"], "waited": at["waited"] - at["wait"], "after": ended - at["waited"],
        }  # fmt: skip


def median_ms(values: Sequence[float]) -> float:
    """Median of seconds, in milliseconds."""
    return round(1e3 * statistics.median(values), 4)


def last_recording(model: torch.nn.Module) -> Any:
    """The recording that was used last, or None."""
    known = recordings._known.get(model, {}).values()  # noqa: SLF001
    return next((one for one in reversed(list(known)) if not isinstance(one, int)), None)


def graph_ms(recording: Any, repeats: int) -> float:
    """Milliseconds of a graph alone on the GPU."""
    taken = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        recording.graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return median_ms(taken)


def measure(
    args: argparse.Namespace, model: torch.nn.Module, images: Tensor, method: str, marks: Marks
) -> dict[str, Any]:
    """One method: milliseconds of its call, of the parts of the call, of the graph and of a forward pass."""
    timer, calls, forward = Timer(images.device, args.repeats), list[float](), list[float]()
    explained: list[Any] = []

    def explain() -> None:
        explained[:] = [vitrail.explain(model, images, method, target=0)]

    def run_model() -> Tensor:
        with torch.inference_mode():
            return model(images)

    for _ in range(5):
        explain()
        run_model()
    recording = last_recording(model)
    if recording is None:
        return {"method": method, "recorded": False}
    parts: dict[str, list[float]] = {}
    for _ in range(args.repeats):
        calls.append(timer.seconds(explain))
        forward.append(timer.seconds(run_model))
        timer.sync()
        for name, value in marks.parts(explain).items():
            parts.setdefault(name, []).append(value)
    row: dict[str, Any] = {"method": method, "recorded": True, "call": median_ms(calls), "forward": median_ms(forward)}
    row["over_forward"] = round(row["call"] / row["forward"], 3)
    row["parts"] = {name: median_ms(values) for name, values in parts.items()}
    if args.device == "cuda":
        row["graph"] = graph_ms(recording, args.repeats)
        row["over_graph"] = round(row["call"] - row["graph"], 3)
    row["same"] = difference(model, images, method, explained[0])
    return row


def difference(model: torch.nn.Module, images: Tensor, method: str, replayed: Any) -> float:
    """Largest difference to the pass that is not recorded, relative to the largest value."""
    computed = vitrail.explain(model, images, method, target=0, batch_size=1, keep=True)  # keep: never recorded
    return float((replayed.grid - computed.grid).abs().amax() / computed.grid.abs().amax().clamp_min(1e-30))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--profile", action="store_true", help="print where Python spends its time in 200 calls")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if args.device == "cpu":
        record_on_cpu()
        options: dict[str, Any] = {"embed_dim": 24, "num_heads": 3, "img_size": 32, "patch_size": 8}
        model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **options).eval()
        images = torch.randn(1, 3, 32, 32)
    else:
        model = timm.create_model("vit_base_patch16_224").to(args.device).eval()
        images = torch.randn(1, 3, 224, 224, device=args.device)
    marks, rows = Marks(), list[dict[str, Any]]()
    for method in METHODS:
        rows.append(measure(args, model, images, method, marks))
        print(rows[-1], flush=True)
        manifest = {"device": device_name(args.device), "repeats": args.repeats, "versions": versions()}
        save_json(args.out, {"manifest": manifest, "rows": rows})
    if args.profile:
        profile(model, images)


def profile(model: torch.nn.Module, images: Tensor) -> None:
    """Print a profile of calls."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(200):
        vitrail.explain(model, images, METHODS[0], target=0)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
