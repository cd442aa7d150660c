"""Support for timm: the attention structure found in one model of each family, and the methods that work on it.

    python studies/sweep.py --out studies/results/sweep-timm.csv

Makes the smallest model of each family with random weights, small ones first, at half the usual resolution where the
model supports it, and tries every method with quick settings on noise. Score-CAM is skipped: it reads the same feature
maps as ViT-CX and scores them in the same way, with one forward pass per channel. Nothing is downloaded. Models already
in the table are skipped, unless ``--only`` names their family.
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
from sweep_methods import attempts, enlarge_small_parameters
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
SKIPPED = frozenset({"scorecam"})
SMALL_SIZE = 112
#: Class names of attention modules.
ATTENTION_NAMES = re.compile("Atte?n|atte?n|MHSA|GPSA|Lsa|XCA|SRA")
#: Files of timm whose models differ in more than their size.
MIXED_FILES = frozenset({"vision_transformer", "vision_transformer_sam", "eva"})
#: Words and numbers in a model name that denote a size, not a family.
SIZE_WORDS = re.compile(
    r"(?<![a-z0-9])(patch[0-9]+|test|nano|pico|femto|atto|wee|pwee|dwee|dpwee|tiny|mini|little|dlittle|small|xsmall|"
    r"medium|mediumd|betwixt|base|large|huge|giant|giantopt|gigantic|enormous|xlarge|so150m2?|so400m|[tsmblhg]|xs|xxs|"
    r"[0-9]+[a-z]?[0-9]*)(?![a-z0-9])"
)


def smallest_models(limit: float, only: list[str] | None) -> list[tuple[str, str, int]]:
    """Smallest model of each family as (family, name, parameters), sorted by size, up to a limit in millions."""
    found = []
    families: dict[tuple[str, str], list[str]] = {}
    for name in list_models():
        families.setdefault(_family(name), []).append(name)
    for (_, family), names in families.items():
        if only and family not in only:
            continue
        sizes = sorted((size, name) for name in names if (size := _parameter_count(name)))
        if sizes and sizes[0][0] <= limit * 1e6:
            found.append((family, sizes[0][1], sizes[0][0]))
    return sorted(found, key=lambda entry: entry[2])


def _family(name: str) -> tuple[str, str]:
    """File and family of a model: the first word of its name, or in files of many kinds the name without its size."""
    words = SIZE_WORDS.sub("", name.replace("_", " ")).split()
    file = model_entrypoint(name).__module__.rpartition(".")[2]
    return file, ("_".join(words) if file in MIXED_FILES else words[0] if words else name)


def _parameter_count(name: str) -> int:
    """Number of parameters; 0 if the model cannot be made or no module is named like an attention."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name)
    except Exception:  # noqa: BLE001 - some entry points need weights, other libraries or a real device
        return 0
    names = " ".join(type(m).__name__ for m in model.modules())
    return sum(p.numel() for p in model.parameters()) if ATTENTION_NAMES.search(names) else 0


def examine_model(name: str, device: str) -> dict[str, Any]:
    """Row of one model: its structure and the methods that work."""
    torch.manual_seed(0)
    model, model_inputs = _make(name, device)
    enlarge_small_parameters(model)
    try:
        structure = read_structure(model, model_inputs)
    except VitrailError as error:
        none = isinstance(error, ModelError) and "no attention was found" in str(error)
        return {"attention": "none" if none else "", "remark": str(error)}
    pixels = "×".join(str(side) for side in model_inputs.args[0].shape[2:])
    row: dict[str, Any] = {
        "attention": structure.kind, "layers": len(structure.layers), "kind": kind_of(structure), "pixels": pixels,
    }  # fmt: skip
    outcomes: dict[str, list[str]] = {"works": [], "refused": [], "failed": []}
    reasons = []
    for attempt in attempts(model, model_inputs.args[0], SKIPPED):
        error = f" ({attempt.error})" if attempt.outcome == "failed" and attempt.error else ""
        outcomes[attempt.outcome].append(attempt.method + error)
        if attempt.outcome == "refused":
            reasons.append(attempt.reason.partition(": ")[2].partition(";")[0])
    row |= {key: " ".join(names) for key, names in outcomes.items()}
    row["remark"] = "; ".join(dict.fromkeys(reasons))
    return row


def _make(name: str, device: str) -> tuple[nn.Module, ModelInputs]:
    """Model with random weights, made for small images if it supports that, and one image of noise."""
    try:
        model = timm.create_model(name, num_classes=10, img_size=SMALL_SIZE).eval().to(device)
        model_inputs = ModelInputs((torch.randn(1, 3, SMALL_SIZE, SMALL_SIZE, device=device),))
        with torch.no_grad():
            model(*model_inputs.args)
    except Exception:  # noqa: BLE001 - families that reject img_size are made with their defaults
        model = timm.create_model(name, num_classes=10).eval().to(device)
        model_inputs = ModelInputs(
            (torch.randn(1, *model.pretrained_cfg.get("input_size", (3, 224, 224)), device=device),)
        )
    return model, model_inputs


def main() -> None:
    """Examine one model of each family, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--millions", type=float, default=90, help="largest model to make, in millions of parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", help="families to examine")
    parser.add_argument("--models", nargs="*", help="models to examine instead of the smallest of each family")
    parser.add_argument("--list", action="store_true", help="print the names of the models only, which takes minutes")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(os.cpu_count() or 1)
    rows: list[dict[str, Any]] = []
    if args.out.exists():
        with args.out.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if not args.only or row["family"] not in args.only]
    known = {row["model"] for row in rows}
    given = [(_family(name)[1], name, _parameter_count(name)) for name in args.models or ()]
    for family, name, size in given or smallest_models(args.millions, args.only):
        if name in known or not size:
            continue
        if args.list:
            print(name, flush=True)
            continue
        started = time.perf_counter()
        try:
            found = examine_model(name, args.device)
        except Exception as error:  # noqa: BLE001
            found = {"remark": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        gc.collect()
        seconds = time.perf_counter() - started
        row = {"family": family, "model": name, "millions": f"{size / 1e6:.1f}", "seconds": f"{seconds:.1f}", **found}
        rows.append(row)
        print(f"{name:40} {row.get('attention', '?'):16} {len(row.get('works', '').split()):3} work, "
              f"failed: {row.get('failed', '')} {seconds:.0f} s", flush=True)  # fmt: skip
        with args.out.open("w", newline="", encoding="utf-8") as file:  # after each model, for interrupted runs
            writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
