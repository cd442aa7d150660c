"""Case that compares two versions of Vitrail, each in a process of its own, call by call in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from time import process_time
from typing import Any

#: A small ViT-B/16, whose arithmetic takes almost no time, so that what remains is Python; and ViT-Tiny/16.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT-B/16, width 24, 32 px": ("vit_base_patch16_224", {"embed_dim": 24, "img_size": 32}),
    "ViT-Tiny/16, 224 px": ("vit_tiny_patch16_224", {}),
}
BARE = ("bare forward", "bare forward_backward")
METHODS = ("raw_attention", "gradtoken", "transformer_mm", "leadlight", "legrad", "conservative_lrp", "attnlrp",
           "transformer_attribution")  # fmt: skip


def answer() -> None:
    """Answer each line of the input, a model and a call, with the processor time it took."""
    import timm
    import torch

    import vitrail  # nothing else: the other benchmarks import what older versions have elsewhere

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
        if call == BARE[0]:
            with torch.no_grad():
                model(images)
        elif call == BARE[1]:
            model(images)[:, 0].sum().backward()
            model.zero_grad(set_to_none=True)
        else:
            vitrail.explain(model, images, call, target=0)
        print(json.dumps(process_time() - started), flush=True)


def start(source: str) -> subprocess.Popen[str]:
    """A process that answers with one version."""
    environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve()), "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, __file__], env=environment, **pipes)  # noqa: S603 - this file itself


def ask(process: subprocess.Popen[str], model: str, call: str) -> float:
    """Processor time of one call of a version."""
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018
    process.stdin.write(json.dumps([model, call]) + "\n")
    process.stdin.flush()
    return float(json.loads(process.stdout.readline()))


def overhead(
    run: Any, *, before: str = "src", after: str = "src", models: tuple[str, ...] = tuple(MODELS),
    methods: tuple[str, ...] = METHODS, repeats: int = 9,
) -> dict[str, Any]:  # fmt: skip
    """Processor time of one image on a CPU with two versions, folders of source code, in turns."""
    from measuring import add_ratios

    versions, results = {"before": start(before), "after": start(after)}, dict[str, Any]()
    if run.tiny:
        models, methods = models[:1], methods[:2]
    calls = (*BARE, *methods)
    for model in models:
        times: dict[str, dict[str, list[float]]] = {v: {call: [] for call in calls} for v in versions}
        for _ in range((run.repeats or run.count(repeats, 1)) + 2):
            for call in calls:
                for name, process in versions.items():
                    times[name][call].append(ask(process, model, call))
        results[model] = {}
        for name, rows in times.items():  # the first two calls read the structure
            results[model][name] = {c: {"seconds": statistics.median(t[2:]), "peak_mib": None} for c, t in rows.items()}
            print(f"-- {model}, {name}", flush=True)
            add_ratios(results[model][name], {name.removeprefix("bare "): name for name in BARE})
        run.save(results)
    for process in versions.values():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return results


if __name__ == "__main__":
    answer()
