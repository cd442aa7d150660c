"""`vitrail.compare` of ViT-Tiny and DINOv2-S on 64 photographs with masks: the tables of docs/compare.md.

    python studies/compare.py --assets DIR --device cuda --out studies/results/compare.json

The images are pets that neither the check nor the form of `leadlight` was chosen on, but a rule on the half that they
belong to decided that this form is the default, and an earlier form was developed with them. They are squashed to the
model's input as their masks are. The boundary of a mask counts as background. Results are written after each model, and
those of other models stay.
Methods that the file has and the run does not measure (``--methods``) stay and are ranked together with the new ones.

Faithfulness, class similarity and localisation of each image and method are kept beside the results
(``compare-MODEL.parquet``); ranks, intervals, tests and the recommendation are computed from them.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_halves import half_of
from PIL import Image
from study import manifest, options, read_json, save_json
from trust import CHOICE, load
from value_tables import Values, in_single_precision, joined_values, stored_values, values_path, write_values

import vitrail
from vitrail.data import MaskFolder
from vitrail.errors import MapWarning
from vitrail.methods import find
from vitrail.tools.compare import CONTROLS, MOST_IMAGES
from vitrail.tools.compared_rows import ranked_rows, recommend

MODELS = ("vit_tiny_patch16_224", "vit_small_patch14_dinov2")


def chosen_samples(assets: Path, count: int) -> list[Any]:
    """Pets of the half that the form of leadlight was not chosen on, without those the check was chosen on."""
    data = MaskFolder(assets / "pets")
    reported = set(half_of(data, 1, len(data)))
    unused = [int(i) for i in np.random.default_rng(0).permutation(len(data))[CHOICE:]]
    return [data[i] for i in unused if i in reported][:count]


def compare(
    name: str, samples: list[Any], assets: Path, batch_size: int, device: str, methods: list[str] | None
) -> tuple[dict[str, Any], Values]:
    """The comparison of one model, with its accuracy on the images and the time taken, and the values of each image."""
    started = time.time()
    loaded = load(name, assets, device)
    view = replace(loaded.preprocess, squash=True)
    images = torch.stack([view(sample.image) for sample in samples]).to(device)
    masks = np.stack([_resized(sample.mask == 1, view.size) for sample in samples])
    with torch.no_grad():
        logits = torch.cat([loaded.module(part) for part in images.split(batch_size)])
    right = logits.argmax(1).cpu() == torch.tensor([sample.label for sample in samples])
    found = vitrail.compare(replace(loaded, preprocess=view), images, methods, masks=masks, batch_size=batch_size)
    values: Values = {}
    for row in found.rows:
        for score, own in row.values.items():
            values.setdefault(score, {})[row.method] = list(own)
    extra = {"top1": float(right.float().mean()), "seconds": round(time.time() - started, 1)}
    return {**found.to_dict(), **extra, "ids": [sample.id for sample in samples]}, values


def reason_not_joined(before: dict[str, Any], kept: Values, ids: list[str], measured: Collection[str]) -> str:
    """Why rows of an earlier comparison that a run does not measure cannot be ranked with it; empty if they can.

    Tests are paired: they need the values of all methods on the same images.
    """
    others = [row["method"] for row in before.get("rows", ()) if row["method"] not in measured]
    without = [method for method in others if method not in kept.get("faithfulness", {})]
    if without:
        return f"there are no values of {', '.join(without)}"
    return f"{', '.join(others)} were measured on other images" if others and before["ids"] != ids else ""


def joined(before: dict[str, Any], kept: Values, new: dict[str, Any], values: Values) -> tuple[dict[str, Any], Values]:
    """A comparison with the methods of an earlier one on the same images, ranked anew, and the values of both.

    Args:
        before: The earlier comparison, or an empty one.
        kept: Its values of each image.
        new: The new comparison.
        values: Its values of each image.
    """
    forwards = {row["method"]: row["forwards"] for row in (*before.get("rows", ()), *new["rows"])}
    values = {
        score: {method: own for method, own in by_method.items() if method in forwards}
        for score, by_method in in_single_precision(joined_values(kept, values)).items()
    }
    rows = ranked_rows(values, CONTROLS, forwards)
    recommended, reason = recommend(rows)
    refused = {m: why for m, why in {**before.get("refused", {}), **new["refused"]}.items() if m not in forwards}
    numbers = {"rows": [row.to_dict() for row in rows], "recommended": recommended, "reason": reason}
    return {**new, **numbers, "refused": refused}, values


def _resized(mask: Any, size: tuple[int, int]) -> Any:
    height, width = size
    return np.asarray(Image.fromarray(mask.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)) > 0


def main() -> None:
    """Compare the methods on each model, and write the results after each."""
    parser = options(__doc__, assets=..., images=MOST_IMAGES, batch=16, models=list(MODELS), methods=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    results: dict[str, Any] = {**read_json(args.out, {}), "manifest": manifest(args.device)}
    samples = chosen_samples(args.assets, args.images)
    ids = [sample.id for sample in samples]
    earlier = {n: (results.get(n, {}), {} if args.out is None else stored_values(args.out, n)) for n in args.models}
    if args.methods is not None:
        measured = {*CONTROLS, *(find(method)[0] for method in args.methods)}
        for name, (before, kept) in earlier.items():
            if reason := reason_not_joined(before, kept, ids, measured):
                raise SystemExit(f"{name}: methods cannot join the rows of others, as {reason}: leave out --methods")
    with tempfile.TemporaryDirectory() as cache:  # the recommendation is not kept for the user of this machine
        os.environ["XDG_CACHE_HOME"] = cache
        for name, (before, kept) in earlier.items():
            new, values = compare(name, samples, args.assets, args.batch, args.device, args.methods)
            if reason := reason_not_joined(before, kept, ids, values["faithfulness"]):
                print(f"{name}: the earlier rows are replaced, as {reason}", flush=True)
            results[name], values = joined({}, {}, new, values) if reason else joined(before, kept, new, values)
            print(f"{name}: {results[name]['seconds']} s. {results[name]['reason']}", flush=True)
            save_json(args.out, results)
            if args.out is not None:
                write_values(values_path(args.out, name), values)


if __name__ == "__main__":
    main()
