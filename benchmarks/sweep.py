"""Every family of transformer classifiers in timm: what is found in it, and which methods work.

``python benchmarks/sweep.py --out benchmarks/results/sweep-timm.csv`` makes the smallest variant of each family with
random weights, small ones first, at half the usual resolution where it can be made for that, lets noise through it and
tries every method with quick settings. Score-CAM is not tried: it reads the feature maps that ViT-CX reads and scores
them in the same way, with one forward a channel. Nothing is downloaded. What is in the table already is not looked at
again, unless ``--only`` names it.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
from sweep_methods import attempts, enlarge
from timm.models import list_models, model_entrypoint
from torch import nn

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import ModelError, VitrailError
from vitrail.methods.registry import kind_of

FIELDS = (
    "family", "model", "millions", "pixels", "attention", "layers", "kind", "works", "refused", "failed", "remark",
    "seconds",
)  # fmt: skip
UNTRIED = frozenset({"scorecam"})
SMALL = 112
#: What modules that attend are called.
ATTENTIVE = re.compile("Atte?n|atte?n|MHSA|GPSA|Lsa|XCA|SRA")
#: Files whose models differ in more than their size.
VARIED = frozenset({"vision_transformer", "vision_transformer_sam", "eva"})
#: Words and numbers in a name that tell sizes of a family apart, not families.
SIZES = re.compile(
    r"(?<![a-z0-9])(patch[0-9]+|test|nano|pico|femto|atto|wee|pwee|dwee|dpwee|tiny|mini|little|dlittle|small|xsmall|"
    r"medium|mediumd|betwixt|base|large|huge|giant|giantopt|gigantic|enormous|xlarge|so150m2?|so400m|[tsmblhg]|xs|xxs|"
    r"[0-9]+[a-z]?[0-9]*)(?![a-z0-9])"
)


def variants(limit: float, only: list[str] | None) -> list[tuple[str, str, int]]:
    """The smallest model of each family: (family, name, parameters), small ones first; large ones are left out."""
    found = []
    families: dict[tuple[str, str], list[str]] = {}
    for name in list_models():
        families.setdefault(_family(name), []).append(name)
    for (_, family), names in families.items():
        if only and family not in only:
            continue
        sizes = sorted((size, name) for name in names if (size := _size(name)))
        if sizes and sizes[0][0] <= limit * 1e6:
            found.append((family, sizes[0][1], sizes[0][0]))
    return sorted(found, key=lambda one: one[2])


def _family(name: str) -> tuple[str, str]:
    """Models of one file whose names begin alike; plain ViTs, of which there are many kinds, by their whole name."""
    words = SIZES.sub("", name.replace("_", " ")).split()
    file = model_entrypoint(name).__module__.rpartition(".")[2]
    return file, ("_".join(words) if file in VARIED else words[0] if words else name)


def _size(name: str) -> int:
    """Number of parameters, 0 for what cannot be made here or has no attention by the names of its modules."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    except Exception:  # noqa: BLE001 - some entry points need weights, other libraries or a real device
        return 0
    names = " ".join(type(m).__name__ for m in model.modules())
    return sum(p.numel() for p in model.parameters()) if ATTENTIVE.search(names) else 0


def look(name: str, device: str) -> dict[str, Any]:
    """One model's row."""
    torch.manual_seed(0)
    model, model_inputs = _make(name, device)
    enlarge(model)
    try:
        structure = read_structure(model, model_inputs)
    except VitrailError as error:
        none = isinstance(error, ModelError) and "no attention was found" in str(error)
        return {"attention": "none" if none else "", "remark": str(error)}
    pixels = "×".join(str(side) for side in model_inputs.args[0].shape[2:])
    row: dict[str, Any] = {
        "attention": structure.kind, "layers": len(structure.layers), "kind": kind_of(structure), "pixels": pixels,
    }  # fmt: skip
    verdicts: dict[str, list[str]] = {"works": [], "refused": [], "failed": []}
    reasons = []
    for attempt in attempts(model, model_inputs.args[0], UNTRIED):
        unexpected = f" ({attempt.error})" if attempt.verdict == "failed" and attempt.error else ""
        verdicts[attempt.verdict].append(attempt.method + unexpected)
        if attempt.verdict == "refused":
            reasons.append(attempt.reason.partition(": ")[2].partition(";")[0])
    row |= {key: " ".join(names) for key, names in verdicts.items()}
    row["remark"] = "; ".join(dict.fromkeys(reasons))
    return row


def _make(name: str, device: str) -> tuple[nn.Module, ModelInputs]:
    """A model with random weights, made for small pictures if it can be, and one picture of noise."""
    try:
        model = timm.create_model(name, num_classes=10, img_size=SMALL).eval().to(device)
        model_inputs = ModelInputs((torch.randn(1, 3, SMALL, SMALL, device=device),))
        with torch.no_grad():
            model(*model_inputs.args)
    except Exception:  # noqa: BLE001 - whatever a family objects to: it is made as it is usually
        model = timm.create_model(name, num_classes=10).eval().to(device)
        model_inputs = ModelInputs(
            (torch.randn(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)), device=device),)
        )
    return model, model_inputs


def main() -> None:
    """Look at one model of each family and write a row for each as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--millions", type=float, default=90, help="largest model to make, in millions of parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", help="families to look at")
    parser.add_argument("--models", nargs="*", help="models to look at, instead of the smallest of each family")
    parser.add_argument("--list", action="store_true", help="only name the models, which takes minutes by itself")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(os.cpu_count() or 1)
    rows: list[dict[str, Any]] = []
    if args.out.exists():
        with args.out.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if not args.only or row["family"] not in args.only]
    known = {row["model"] for row in rows}
    chosen = [(_family(name)[1], name, _size(name)) for name in args.models or ()]
    for family, name, size in chosen or variants(args.millions, args.only):
        if name in known or not size:
            continue
        if args.list:
            print(name, flush=True)
            continue
        began = time.perf_counter()
        try:
            found = look(name, args.device)
        except Exception as error:  # noqa: BLE001
            found = {"remark": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        gc.collect()
        spent = time.perf_counter() - began
        row = {"family": family, "model": name, "millions": f"{size / 1e6:.1f}", "seconds": f"{spent:.1f}", **found}
        rows.append(row)
        print(f"{name:40} {row.get('attention', '?'):16} {len(row.get('works', '').split()):3} work, "
              f"failed: {row.get('failed', '')} {spent:.0f} s", flush=True)  # fmt: skip
        with args.out.open("w", newline="", encoding="utf-8") as file:  # after each, so that nothing is lost
            writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
