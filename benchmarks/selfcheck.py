"""Cost of the self-check: the first explanation of a model against later ones, in forward passes of one image.

    python benchmarks/selfcheck.py --device cuda --out benchmarks/results/selfcheck-h200.json

The first call measures the structure of the model and checks it. Later calls with inputs of the same shape reuse it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import timm
import torch
from torch import nn

import vitrail
from vitrail.capture import structure as structures
from vitrail.capture.inputs import ModelInputs
from vitrail.explanation import versions

MODELS = {"vit_tiny_patch16_224": 224, "vit_base_patch16_224": 224, "vit_small_patch14_reg4_dinov2": 518}


def timed(run: Callable[[], object], device: str, repeats: int) -> float:
    """Median seconds of some runs after one that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        began = perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(perf_counter() - began)
    return median(seconds[1:])


def measure(model: nn.Module, size: int, device: str, repeats: int) -> dict[str, float]:
    """Seconds of a bare forward and forward plus backward pass, the self-check, and explanations with batch 1."""
    image = torch.randn(1, 3, size, size, device=device)
    leaf = image.clone().requires_grad_()

    def forward() -> None:
        with torch.inference_mode():
            model(image)

    def backward() -> None:
        torch.autograd.grad(model(leaf)[0, 0], leaf)

    def check() -> None:
        structures.forget(model)
        structures.read_structure(model, ModelInputs((image,)))

    def first() -> None:
        structures.forget(model)
        vitrail.explain(model, image, "transformer_mm", target=1)

    rows = {
        "forward": timed(forward, device, repeats),
        "forward_backward": timed(backward, device, repeats),
        "self_check": timed(check, device, repeats),
        "first_call": timed(first, device, repeats),
        "later_calls": timed(lambda: vitrail.explain(model, image, "transformer_mm", target=1), device, repeats),
    }
    return rows | {
        "self_check_in_forwards": rows["self_check"] / rows["forward"],
        "later_in_forward_backward": rows["later_calls"] / rows["forward_backward"],
    }


def main() -> None:
    """Measure the models and write a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {}
    for name in given.models:
        torch.manual_seed(0)
        options = {} if "vit_small" not in name else {"num_classes": 1000}
        model = timm.create_model(name, **options).eval().to(given.device)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        found[name] = measure(model, MODELS[name], given.device, given.repeats)
        print(name, {k: round(v, 4) for k, v in found[name].items()})
    device = (
        torch.cuda.get_device_name() if given.device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
    if given.out:
        given.out.write_text(json.dumps({"device": device, "versions": versions(), "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
