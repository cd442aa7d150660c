"""Time of one image on a CPU with two versions of Vitrail, as ratios to the bare model's forward and backward pass.

    python benchmarks/overhead.py --before ../earlier/src --after src --out benchmarks/results/overhead-cpu.json

Each version runs in a process of its own, one thread each; the two take turns, call by call. CPU time of the process
is measured, which other processes of the machine hardly change. Models: ViT-B/16 with a width of 24 at 32 pixels, whose
arithmetic takes almost no time, so that what remains is Python; and ViT-Tiny/16 at 224 pixels. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from time import process_time
from typing import Any

METHODS = ["raw_attention", "gradtoken", "transformer_mm", "leadlight", "legrad", "conservative_lrp", "attnlrp",
           "transformer_attribution"]  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT-B/16, width 24, 32 px": ("vit_base_patch16_224", {"embed_dim": 24, "img_size": 32}),
    "ViT-Tiny/16, 224 px": ("vit_tiny_patch16_224", {}),
}


def serve() -> None:
    """Answer each line of the input, a model and a call, with the seconds it took."""
    import timm
    import torch

    import vitrail

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    models = {}
    for label, (name, options) in MODELS.items():
        model = timm.create_model(name, **options).eval()
        models[label] = (model, torch.randn(1, 3, *model.patch_embed.img_size))
    for line in sys.stdin:
        label, call = json.loads(line)
        model, images = models[label]
        started = process_time()
        if call == "F":
            with torch.no_grad():
                model(images)
        elif call == "F+B":
            model(images)[:, 0].sum().backward()
            model.zero_grad(set_to_none=True)
        else:
            vitrail.explain(model, images, call, target=0)
        print(json.dumps(process_time() - started), flush=True)


class Version:
    """A process with one version of Vitrail."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(  # noqa: S603 - this file itself
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def seconds(self, model: str, call: str) -> float:
        """CPU time of one call."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        self._process.stdin.write(json.dumps([model, call]) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Measure, and write results and manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--serve", action="store_true", help="answer calls of the measuring process")
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    from common import save_speed

    versions = {"before": Version(args.before), "after": Version(args.after)}
    results: dict[str, Any] = {}
    for model in args.models:
        times: dict[str, dict[str, list[float]]] = {v: {} for v in versions}
        for repeat in range(args.repeats + 2):
            for call in ("F", "F+B", *METHODS):
                for name, version in versions.items():
                    taken = version.seconds(model, call)
                    if repeat >= 2:  # the first run reads the structure
                        times[name].setdefault(call, []).append(taken)
        medians = {v: {call: statistics.median(taken) for call, taken in rows.items()} for v, rows in times.items()}
        results[model] = {
            call: {v: {"seconds": rows[call], "over_F": rows[call] / rows["F"], "over_F+B": rows[call] / rows["F+B"]}
                   for v, rows in medians.items()}
            for call in medians["after"]
        }  # fmt: skip
        print(model)
        for call, rows in results[model].items():
            shown = "   ".join(f"{v} {r['seconds'] * 1e3:7.1f} ms ×F {r['over_F']:5.2f} ×F+B {r['over_F+B']:5.2f}"
                               for v, r in rows.items())  # fmt: skip
            print(f"  {call:26s} {shown}", flush=True)
    for version in versions.values():
        version.stop()
    args.device, args.before, args.after = "cpu", str(args.before.name), str(args.after.name)
    del args.serve
    save_speed(args, results)


if __name__ == "__main__":
    main()
