"""Throughput of the perturbation evaluator as a ratio to the bare model's own inference, measured in the same run.

    python benchmarks/evaluator.py --device cuda --out benchmarks/results/evaluator-h200.json

Maps are given, so what is measured is ranking, masking, the forwards and the records. A forward counts as one picture;
the bare model is shown the same number of pictures in batches of the same size, ready on the device. "bfloat16"
converts the model, "autocast" leaves it in float32 and runs both sides under autocast. Weights and maps are random:
they change no timing. One picture in five has another label than the model says, so that maps of both classes are
needed there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import timm
import torch
from clock import Clock, parser, save

from vitrail.scores.evaluator import Evaluator
from vitrail.scores.ranks import rank


def bare(model: torch.nn.Module, images: torch.Tensor, pictures: int, batch: int, cast: torch.dtype | None) -> None:
    """The model alone on so many pictures."""
    context = nullcontext() if cast is None else torch.autocast(images.device.type, cast)
    with torch.inference_mode(), context:
        for start in range(0, pictures, batch):
            model(images[: min(batch, pictures - start)])


def measure(args: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Figures for one precision."""
    device = torch.device(args.device)
    cast = torch.bfloat16 if precision == "autocast" else None
    dtype = torch.float32 if precision in ("autocast", "float32") else getattr(torch, precision)
    model = timm.create_model(args.model, num_classes=1000).to(device, dtype).eval()
    side = model.patch_embed.img_size[0]
    images = torch.randn(max(args.images, args.batch), 3, side, side, device=device, dtype=dtype)
    shown = images[: args.images]
    with torch.inference_mode():
        labels = torch.cat([model(part).argmax(1) for part in shown.split(args.batch)])
    labels = torch.where(torch.arange(len(labels), device=device) % 5 == 0, (labels + 1) % 1000, labels)
    maps, others, blind = torch.rand(3, args.images, side, side, device=device).unbind(0)
    evaluate = Evaluator(model, args.presets, batch=args.batch, precision=cast)

    def run() -> Any:
        return evaluate(
            shown, {"aware": maps, "blind": blind}, labels=labels, label_maps={"aware": others, "blind": blind}
        )

    pictures = run().forwards.total
    clock = Clock(device, args.repeats)
    calls: dict[str, Callable[[], Any]] = {
        "bare model": lambda: bare(model, images, pictures, args.batch, cast),
        "evaluator": run,
        "ranking one method": lambda: rank(maps),
    }
    found = clock.compare(calls)
    for name in ("bare model", "evaluator"):
        found[name]["pictures_per_second"] = pictures / found[name]["seconds"]
    ratio = found["bare model"]["seconds"] / found["evaluator"]["seconds"]
    fastest = found["bare model"]["fastest"] / found["evaluator"]["fastest"]
    print(f"{precision:10s} bare {found['bare model']['pictures_per_second']:9.1f}/s  evaluator "
          f"{found['evaluator']['pictures_per_second']:9.1f}/s  ratio {ratio:.3f} (fastest {fastest:.3f})  "
          f"ranking {found['ranking one method']['seconds'] * 1e3:.2f} ms", flush=True)  # fmt: skip
    return {"precision": precision, "pictures": pictures, "rows": found, "ratio": ratio, "ratio_fastest": fastest}


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    options = parser(__doc__, repeats=3)
    options.add_argument("--presets", nargs="+", default=["chefer21"])
    options.add_argument("--images", type=int, default=256)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--precisions", nargs="+", default=["bfloat16", "autocast"])
    args = options.parse_args()
    torch.manual_seed(0)
    save(args, [measure(args, precision) for precision in args.precisions])


if __name__ == "__main__":
    main()
