"""What the whole catalogue costs, as ratios to the bare model's own passes, measured in the same run.

    python benchmarks/catalogue.py --device cuda --out benchmarks/results/catalogue-h200.json

Four questions. What do all methods of one pass cost together, and each rule set of relevance by itself, over one
forward and backward (the gradient of one logit at all parameters)? Does relevance take a batch of 64? What does ViT-CX
cost on top of its own 2K + 1 forwards? How much memory does RISE with 4,000 masks take beyond the model, and what share
of the model's own throughput does it reach? Weights are random: they change no timing but the number of ViT-CX's masks,
so its threshold is searched for until that number is like a trained model's (63 on average in the paper, for ViT-B/16).
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import timm
import torch
from clock import Clock, bare_calls, parser, save

import vitrail
from vitrail.methods.registry import METHODS

ONE_PASS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient")]
RULE_SETS = {
    "orig": ["lrp", "partial_lrp"],
    "ours": ["transformer_attribution"],
    "conservative": ["conservative_lrp"],
    "attnlrp": ["attnlrp"],
    "abslrp": ["abslrp"],
}
MASKS = 4000
#: Masks of ViT-CX for one picture.
USUAL = 63


def single(model: torch.nn.Module, clock: Clock, batch: int) -> dict[str, Any]:
    """Methods of one pass together and the rule sets by themselves, over the bare passes."""
    images = torch.randn(batch, 3, 224, 224, device=clock.device)
    calls = bare_calls(model, images)
    every = [*ONE_PASS, *(name for names in RULE_SETS.values() for name in names)]
    for label, names in {"attention and gradient together": ONE_PASS, **RULE_SETS, "all together": every}.items():
        calls[label] = lambda names=names: vitrail.explain(model, images, methods=names, target=0)
    found = clock.compare(calls)
    for name, row in found.items():
        for bare in ("forward", "forward_backward", "forward_input_gradient"):
            row[f"over_{bare}"] = row["seconds"] / found[f"bare {bare}"]["seconds"]
        print(f"{batch:4d} {name:34s} {row['seconds'] * 1e3:9.2f} ms  ×F {row['over_forward']:6.2f}  ×FB "
              f"{row['over_forward_backward']:6.2f}  ×FBx {row['over_forward_input_gradient']:6.2f}  peak "
              f"{(row['peak_mib'] or 0) / 1024:6.2f} GiB", flush=True)  # fmt: skip
    return {"batch": batch, "methods": len(every), "rows": found}


def causal(model: torch.nn.Module, clock: Clock, batch: int, most: int) -> dict[str, Any]:
    """ViT-CX beside its own forwards: 2K + 1 an image, in batches of the same size."""
    images = torch.randn(batch, 3, 224, 224, device=clock.device)
    low, high = 0.01, 0.3  # more masks, fewer masks
    for _ in range(12):
        delta = (low + high) / 2
        found = vitrail.explain(model, images, "vit_cx", delta=delta, target=0, keep=True, batch_size=most)
        counts = [int(k) for k in found.intermediates["count"][0]]
        if abs(sum(counts) / batch - USUAL) <= 3:
            break
        low, high = (delta, high) if sum(counts) / batch > USUAL else (low, delta)

    def forwards() -> None:
        with torch.inference_mode():
            for count in counts:
                model(images[:1])
                for start in range(0, count, most):
                    shown = torch.empty(min(most, count - start), 3, 224, 224, device=clock.device).normal_()
                    model(shown)
                    model(shown)

    rows = clock.compare(
        {
            "its forwards alone": forwards,
            "vit_cx": lambda: vitrail.explain(model, images, "vit_cx", delta=delta, target=0, batch_size=most),
        }
    )
    over = rows["vit_cx"]["seconds"] / rows["its forwards alone"]["seconds"] - 1
    print(f"vit_cx batch {batch} in {most}s, masks {counts}: {100 * over:.1f} % on top of its forwards", flush=True)
    return {"batch": batch, "most": most, "delta": delta, "masks": counts, "on_top": over, "rows": rows}


def sampled(model: torch.nn.Module, clock: Clock, most: int, converted: bool) -> dict[str, Any]:
    """RISE for one image beside the model's own inference in bfloat16, converted or under autocast."""
    dtype = torch.bfloat16 if converted else torch.float32
    model = model.to(dtype)
    batch = torch.randn(most, 3, 224, 224, device=clock.device, dtype=dtype)
    cuda = clock.device.type

    def bare() -> None:
        with torch.inference_mode(), torch.autocast(cuda, torch.bfloat16, enabled=not converted):
            for start in range(0, MASKS, most):
                model(batch[: min(most, MASKS - start)])

    precision = {} if converted else {"precision": "bfloat16"}
    rows = clock.compare({
        "bare model": bare,
        "rise": lambda: vitrail.explain(
            model, batch[:1], "rise", masks=MASKS, batch_size=most, target=0, **precision
        ),
    })  # fmt: skip
    ratio = rows["bare model"]["seconds"] / rows["rise"]["seconds"]
    print(f"rise in {most}s, {'converted' if converted else 'autocast'}: {ratio:.3f} of the model's throughput, peak "
          f"{(rows['rise']['peak_mib'] or 0) / 1024:.2f} GiB", flush=True)  # fmt: skip
    return {"most": most, "converted": converted, "throughput": ratio, "masks": MASKS, "rows": rows}


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    options = parser(__doc__, repeats=5)
    options.add_argument("--batches", type=int, nargs="+", default=[8, 64])
    options.add_argument("--most", type=int, nargs="+", default=[64, 128])
    options.add_argument(
        "--parts", nargs="+", choices=["single", "vit_cx", "rise"], default=["single", "vit_cx", "rise"]
    )
    args: argparse.Namespace = options.parse_args()
    torch.manual_seed(0)
    clock = Clock(torch.device(args.device), args.repeats)
    model = timm.create_model(args.model).to(args.device).eval()
    results: dict[str, list[dict[str, Any]]] = {"single": [], "vit_cx": [], "rise": []}

    def keep(part: str, row: dict[str, Any]) -> None:
        results[part].append(row)
        save(args, results)  # after each, so that a run that is cut short leaves what it has

    for batch in args.batches if "single" in args.parts else ():
        keep("single", single(model, clock, batch))
    for batch, most in product((1, 4), args.most if "vit_cx" in args.parts else ()):
        keep("vit_cx", causal(model, clock, batch, most))
    for converted, most in product((False, True), args.most if "rise" in args.parts else ()):
        keep("rise", sampled(model, clock, most, converted))


if __name__ == "__main__":
    main()
