"""Make the image of the home page: docs/images/home.jpg.

    python docs/hooks/home_image.py vit_tiny_patch16_224.safetensors

Three methods explain the first sample photograph of `vitrail serve` with ViT-Tiny; below each map is the verdict of its
check, whose numbers are printed for the caption.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

import vitrail
from vitrail.viz.colormap import overlay

mpl.use("Agg")
from matplotlib import pyplot as plt
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PHOTO = ROOT / "src" / "vitrail" / "web" / "photos" / "cat.jpg"
OUT = ROOT / "docs" / "images" / "home.jpg"
METHODS = ["leadlight", "gradtoken", "rollout"]
PASS, FAIL = "#1b6b3a", "#a51d1d"


def main() -> None:
    """Explain, check and draw; print what the caption says."""
    model = vitrail.load("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", sys.argv[1])
    found = vitrail.explain(model, str(PHOTO), methods=METHODS, check=True)
    first = found[METHODS[0]]
    photo = first.rgb_images[0]
    figure, axes = plt.subplots(1, 1 + len(METHODS), figsize=(12, 3.4), dpi=125, layout="constrained")
    axes[0].imshow(photo)
    axes[0].set_title(first.label(0, 0), loc="left")
    for axis, (name, e) in zip(axes[1:], found.items(), strict=True):
        axis.imshow(overlay(photo, e.maps[0, 0].float().cpu().numpy(), e.signed))
        axis.set_title(e.title)
        check = e.checks[0, 0]
        passed = check.verdict == "faithful"
        mark, colour = ("✓", PASS) if passed else ("✗", FAIL)
        axis.set_xlabel(f"{mark} {check.verdict}", loc="left", color=colour, size=12)
        sys.stdout.write(f"{name} {check}\n")
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.canvas.draw()
    drawn = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    Image.fromarray(drawn).save(OUT, "JPEG", quality=90, optimize=True, progressive=True)


if __name__ == "__main__":
    main()
