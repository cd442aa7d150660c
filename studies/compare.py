"""`vitrail.compare` of ViT-Tiny and DINOv2-S on 64 photographs with masks: the tables of docs/compare.md.

    python studies/compare.py --assets DIR --device cuda --out studies/results/compare.json

The images are pets that neither the check nor `leadlight` was chosen on, squashed to the model's input as their masks
are. The boundary of a mask counts as background. Results are written after each model.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_halves import half_of
from PIL import Image
from study import manifest, options, save_json
from trust import CHOICE, load

import vitrail
from vitrail.data import MaskFolder
from vitrail.errors import MapWarning
from vitrail.tools.compare import MOST_IMAGES

MODELS = ("vit_tiny_patch16_224", "vit_small_patch14_dinov2")


def compare(name: str, assets: Path, count: int, batch_size: int, device: str) -> dict[str, Any]:
    """The comparison of one model, with its accuracy on the images and the time taken."""
    started = time.time()
    loaded = load(name, assets, device)
    view = replace(loaded.preprocess, squash=True)
    data = MaskFolder(assets / "pets")
    reported = set(half_of(data, 1, len(data)))  # the half that the form of leadlight was not chosen on
    unused = [int(i) for i in np.random.default_rng(0).permutation(len(data))[CHOICE:]]
    samples = [data[i] for i in unused if i in reported][:count]
    images = torch.stack([view(sample.image) for sample in samples]).to(device)
    masks = np.stack([_resized(sample.mask == 1, view.size) for sample in samples])
    with torch.no_grad():
        logits = torch.cat([loaded.module(part) for part in images.split(batch_size)])
    right = logits.argmax(1).cpu() == torch.tensor([sample.label for sample in samples])
    found = vitrail.compare(replace(loaded, preprocess=view), images, masks=masks, batch_size=batch_size)
    extra = {"top1": float(right.float().mean()), "seconds": round(time.time() - started, 1)}
    return {**found.to_dict(), **extra, "ids": [sample.id for sample in samples]}


def _resized(mask: Any, size: tuple[int, int]) -> Any:
    height, width = size
    return np.asarray(Image.fromarray(mask.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)) > 0


def main() -> None:
    """Compare the methods on each model, and write the results after each."""
    args = options(__doc__, assets=..., images=MOST_IMAGES, batch=16, models=list(MODELS)).parse_args()
    warnings.simplefilter("ignore", MapWarning)
    results: dict[str, Any] = {"manifest": manifest(args.device)}
    with tempfile.TemporaryDirectory() as cache:  # the recommendation is not kept for the user of this machine
        os.environ["XDG_CACHE_HOME"] = cache
        for name in args.models:
            results[name] = compare(name, args.assets, args.images, args.batch, args.device)
            print(f"{name}: {results[name]['seconds']} s. {results[name]['reason']}", flush=True)
            save_json(args.out, results)


if __name__ == "__main__":
    main()
