"""Passes replayed as CUDA graphs against passes that are computed, on every family of classifiers.

    python studies/recorded_families.py --workers 14 --seconds 120 --out benchmarks/results/recorded-families.json

Tiny models with random weights of transformers, torchvision and timm. Each method explains four batches of other inputs
and other classes: the first is computed, the second recorded and replayed, the others replayed; all are compared with
`VITRAIL_CUDA_GRAPHS=0` and `VITRAIL_SPLIT_PRODUCTS=0`. Texts differ in length as well. ``difference`` is the largest
one relative to the largest value of the map. ``reason`` says why a pass was not recorded: what the library logs, and
where an error came from. Families are shared out among processes, and rows are kept if a process ends early.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from study import manifest, options, save_json
from tiny_families import CLASSES, END, PAD, PIXELS, VOCABULARY, Family, build, families
from torch import nn

import vitrail
from vitrail.errors import VitrailError
from vitrail.fast import recordings, split_products

METHODS = ("rollout", "gradtoken", "leadlight", "vtranm", "attnlrp", "transformer_attribution", "occlusion")
#: What the comparison switches off.
OFF = {"VITRAIL_CUDA_GRAPHS": "0", "VITRAIL_SPLIT_PRODUCTS": "0"}
#: Differences above this are reported as wrong.
TOLERANCE = 1e-4
TIMM = (
    "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "beit_base_patch16_224", "swin_tiny_patch4_window7_224",
    "eva02_tiny_patch14_224", "cait_xxs24_224", "xcit_nano_12_p16_224", "pit_ti_224", "vit_base_patch16_siglip_224",
    "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "tnt_s_patch16_224", "crossvit_tiny_240",
    "hiera_tiny_224", "mvitv2_tiny", "levit_128s", "maxvit_nano_rw_256", "coatnet_nano_rw_224",
    "vit_relpos_small_patch16_224", "davit_tiny", "flexivit_small", "mobilevit_xxs", "resnet18",
)  # fmt: skip


def inputs_of(family: Family, given: Any, number: int, device: str) -> Any:
    """Other inputs of the same shapes; padding included."""
    torch.manual_seed(number)
    if isinstance(given, torch.Tensor):
        return torch.randn(given.shape, device=device)
    other = {}
    for name, value in given.items():
        if name == "input_ids" and family.task == "text":
            ids = torch.randint(5, VOCABULARY - 20, value.shape)
            for row, shorter in zip(ids, (number % 3, 0, 2), strict=False):
                length = len(row) - shorter
                row[length - 1], row[length:] = END, PAD
            other["attention_mask"] = (ids != PAD).long()
            other[name] = ids
        elif value.is_floating_point():
            other[name] = torch.randn(value.shape)
        else:
            other.setdefault(name, value)
    return {name: value.to(device) for name, value in other.items()}


def models(part: int, parts: int) -> Iterator[tuple[Family, nn.Module, Any]]:
    """Models of one process, with inputs."""
    import timm

    everything = [*families("transformers"), *families("torchvision"), *(Family("timm", "vision", n, n) for n in TIMM)]
    for family in everything[part::parts]:
        try:
            if family.library == "timm":
                module = timm.create_model(family.name, num_classes=CLASSES).eval()
                size = timm.data.resolve_model_data_config(module)["input_size"]
                yield family, module, torch.zeros(2, *size)
                continue
            tiny = build(family)
            given = tiny.padded or tiny.inputs
            if not tiny.padded:
                twice = {n: v.expand(2, *v.shape[1:]) for n, v in given.items()} if isinstance(given, dict) else None
                given = torch.zeros(2, 3, PIXELS, PIXELS) if twice is None else twice
            yield family, tiny.module, given
        except Exception as error:  # noqa: BLE001 - what cannot be built is not what is measured here
            print(f"{family.name} not built: {error!r}"[:160], flush=True)


class Reasons(logging.Handler):
    """Collects why passes were not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        logger = logging.getLogger(recordings.__name__)
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Note a message; of an error, also the innermost lines of the library and the model."""
        text = record.getMessage().partition(": ")[2] or record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            lines = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages/torch" not in f.filename]
            at = " < ".join(f"{Path(f.filename).name}:{f.lineno} {(f.line or '')[:70]}" for f in reversed(lines[-2:]))
            text = f"{str(error).splitlines()[0][:140] if str(error) else repr(error)} at {at}"
        self.found.append(text)


def compare(model: nn.Module, family: Family, given: Any, method: str, device: str, reasons: Reasons) -> dict[str, Any]:
    """Maps with and without recordings."""
    differences, before = [], recordings.count(model)
    reasons.found.clear()
    for number in range(4):
        inputs, target = inputs_of(family, given, number, device), number % CLASSES
        try:
            fast = vitrail.explain(model, inputs, method, target=target)
            os.environ |= OFF
            slow = vitrail.explain(model, inputs, method, target=target)
        except VitrailError as error:
            return {"refused": str(error)[:120]}
        finally:
            for name in OFF:
                os.environ.pop(name, None)
        span = slow.grid.abs().amax().clamp_min(1e-30)
        differences.append(float((fast.grid - slow.grid).abs().amax() / span))
    row: dict[str, Any] = {"difference": max(differences), "recorded": recordings.count(model) > before}
    if not row["recorded"]:
        row["reason"] = reasons.found[-1] if reasons.found else "unknown"
    return row


def work(args: argparse.Namespace) -> None:
    """Measure the families of one process; write a line for each."""
    warnings.simplefilter("ignore")
    if args.split:
        split_products.FEWEST_PRODUCTS = 1
    started, reasons = time.monotonic(), Reasons()
    with args.out.open("a", encoding="utf-8") as lines:
        for family, module, given in models(args.part, args.workers):
            if time.monotonic() - started > args.seconds:
                return
            model = module.to(args.device)
            for method in METHODS:
                row: dict[str, Any] = {"library": family.library, "family": family.name, "model": family.model}
                try:
                    row |= {"method": method, **compare(model, family, given, method, args.device, reasons)}
                except Exception as error:  # noqa: BLE001 - a failure is a row of the table
                    row |= {"method": method, "failed": repr(error)[:200]}
                lines.write(json.dumps(row) + "\n")
                lines.flush()
            del model, module


def main() -> None:
    """Share the families out among processes, and join their rows."""
    parser = options(__doc__, device="cuda", out=...)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--split", action="store_true", help="also split float32 products, however small the model is")
    parser.add_argument("--part", type=int, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is not None:
        work(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{part}.jsonl" for part in range(args.workers)]
        common = [sys.executable, __file__, "--device", args.device, "--workers", str(args.workers)]
        common += ["--split"] if args.split else []
        running = [
            subprocess.Popen(  # noqa: S603
                [*common, "--seconds", str(args.seconds), "--part", str(part), "--out", str(file)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for part, file in enumerate(files)
        ]
        deadline = time.monotonic() + args.seconds + 20
        for one in running:
            try:
                one.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.kill()
        rows = [json.loads(line) for file in files if file.exists() for line in file.read_text("utf-8").splitlines()]
    for row in rows:
        done = "recorded" if row.get("recorded") else "computed"
        kind = next((name for name in ("failed", "refused") if name in row), done)
        row["kind"] = "wrong" if row.get("difference", 0) > TOLERANCE else kind
    counts = Counter(row["kind"] for row in rows)
    print(dict(counts), f"{len({(r['library'], r['model']) for r in rows})} models", flush=True)
    for row in rows:
        if row["kind"] in ("wrong", "failed"):
            print(row, flush=True)
    for reason, count in Counter(row["reason"] for row in rows if "reason" in row).most_common(40):
        print(f"{count:4d} not recorded: {reason}", flush=True)
    about = manifest(args.device, methods=list(METHODS), split=args.split)
    save_json(args.out, {"manifest": about, "counts": counts, "rows": rows})


if __name__ == "__main__":
    main()
