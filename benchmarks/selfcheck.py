"""Cost of the self-check: the first explanation of a model against later ones, in forward passes of one image.

    python benchmarks/selfcheck.py --device cuda --out benchmarks/results/selfcheck-h200.json

The first call measures the structure of the model and checks it. Later calls with inputs of the same shape reuse it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from common import Timer, device_name, save_json
from torch import nn

import vitrail
from vitrail.capture import structure as structures
from vitrail.capture.inputs import ModelInputs
from vitrail.pipeline.provenance import versions

MODELS = {"vit_tiny_patch16_224": 224, "vit_base_patch16_224": 224, "vit_small_patch14_reg4_dinov2": 518}


def measure(model: nn.Module, size: int, timer: Timer) -> dict[str, float]:
    """Seconds of passes of the bare model, of the self-check, and of explanations with batch 1."""
    image = torch.randn(1, 3, size, size, device=timer.device)
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
        "forward": timer.median(forward),
        "forward_backward": timer.median(backward),
        "self_check": timer.median(check),
        "first_call": timer.median(first),
        "later_calls": timer.median(lambda: vitrail.explain(model, image, "transformer_mm", target=1)),
    }
    return rows | {
        "self_check_in_forwards": rows["self_check"] / rows["forward"],
        "later_in_forward_backward": rows["later_calls"] / rows["forward_backward"],
    }


def main() -> None:
    """Measure the models, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    timer = Timer(torch.device(args.device), args.repeats)
    results = {}
    for name in args.models:
        torch.manual_seed(0)
        options = {} if "vit_small" not in name else {"num_classes": 1000}
        model = timm.create_model(name, **options).eval().to(args.device)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        results[name] = measure(model, MODELS[name], timer)
        print(name, {k: round(v, 4) for k, v in results[name].items()})
    cuda = timer.device.type == "cuda"
    device = device_name(args.device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    save_json(args.out, {"device": device, "versions": versions(), "models": results})


if __name__ == "__main__":
    main()
