"""How long a paper's perturbation table takes: explaining and scoring, images a second, and 50,000 of them.

    python benchmarks/table.py --device cuda --out benchmarks/results/table-h200.json

All methods of a single pass (attention, gradient, relevance) and the controls explain the predicted and the true class
of synthetic pictures; the `chefer21` protocol removes the most and the least relevant pixels first. Everything is done
as `vitrail bench` does it, without reading files. Weights are random, so the predicted class is seldom the label:
labels are made to agree with the prediction in four pictures of five, as a trained model's do.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from clock import Clock, parser, save

import vitrail
from vitrail.methods.registry import METHODS
from vitrail.scores.evaluator import Evaluator

METHODS_OF_A_PASS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance")]
CONTROLS = ["random", "centre", "edges"]
WHOLE = 50_000


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    options = parser(__doc__, repeats=3)
    options.add_argument("--images", type=int, default=64)
    options.add_argument("--batch", type=int, default=256, help="pictures in a forward pass of the evaluator")
    options.add_argument("--explain-batch", type=int, default=32)
    options.add_argument("--dtype", default="bfloat16")
    args = options.parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    clock = Clock(device, args.repeats)
    dtype = getattr(torch, args.dtype)
    model = timm.create_model(args.model).to(device, dtype).eval()
    images = torch.randn(args.images, 3, 224, 224, device=device, dtype=dtype)
    with torch.inference_mode():
        predicted = model(images).argmax(1)
    labels = torch.where(torch.arange(args.images, device=device) % 5 == 0, (predicted + 1) % 1000, predicted)
    targets = torch.stack([predicted, labels], 1)
    names = [*METHODS_OF_A_PASS, *CONTROLS]
    spent: dict[str, list[float]] = {}

    def explained() -> tuple[dict[str, Any], dict[str, Any]]:
        maps: dict[str, list[Any]] = {name: [] for name in names}
        for start in range(0, args.images, args.explain_batch):
            some = slice(start, start + args.explain_batch)
            found = vitrail.explain(model, images[some], methods=names, target=targets[some])
            for name in names:
                maps[name].append(found[name].maps)
        whole = {name: torch.cat(parts) for name, parts in maps.items()}
        return {n: m[:, 0] for n, m in whole.items()}, {n: m[:, 1] for n, m in whole.items()}

    own, others = explained()
    evaluate = Evaluator(model, ["chefer21"], batch=args.batch)
    forwards = evaluate(images, own, labels=labels, label_maps=others).forwards.total
    for _ in range(args.repeats):
        spent.setdefault("explain", []).append(clock.once(explained))
        spent.setdefault("score", []).append(
            clock.once(lambda: evaluate(images, own, labels=labels, label_maps=others))
        )
    seconds = {name: sorted(taken)[len(taken) // 2] for name, taken in spent.items()}
    rate = args.images / sum(seconds.values())
    hours = WHOLE / rate / 3600
    print(f"{len(names)} methods, {forwards / args.images:.0f} forwards an image: {rate:.2f} images/s, {hours:.2f} h "
          f"for {WHOLE:,}; explaining {seconds['explain'] / sum(seconds.values()):.0%}", flush=True)  # fmt: skip
    save(args, {
        "methods": names, "forwards_per_image": forwards / args.images, "seconds": seconds, "images_per_second": rate,
        "hours_for_50000": hours,
    })  # fmt: skip


if __name__ == "__main__":
    main()
