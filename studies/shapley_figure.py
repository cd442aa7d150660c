"""Figure of token-removal SRG by forward passes, from the table of ``studies/shapley.py``.

python studies/shapley_figure.py studies/results/shapley.csv docs/images/shapley-srg.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

TITLES = {
    "vit_tiny_patch16_224": "ViT-Tiny/16",
    "deit_tiny_patch16_224": "DeiT-Tiny/16",
    "vit_small_patch14_dinov2": "DINOv2 ViT-S/14",
}
#: Curves: method and prior, label, colour.
CURVES = {
    ("shapley", "grad_rollout"): ("shapley, prior grad_rollout", "#b2182b"),
    ("shapley", "grad_rollout (kernel weights)"): ("shapley, prior grad_rollout, kernel weights", "#ef8a62"),
    ("shapley", "uniform"): ("shapley, prior uniform", "#2166ac"),
    ("shapley", "uniform (kernel weights)"): ("shapley, prior uniform, kernel weights", "#67a9cf"),
    ("shapley", "None"): ("KernelSHAP without prior", "#999999"),
    ("rise", ""): ("RISE", "#1b7837"),
}
#: Methods drawn as points, with their marker.
POINTS = {"grad_rollout": "s", "leadlight": "^", "occlusion": "o", "vit_cx": "D"}


def main() -> None:
    """Draw one panel for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with args.table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["score"] in ("", "prob")]
    models = [name for name in TITLES if any(row["model"] == name for row in rows)]
    figure, axes = plt.subplots(1, len(models), figsize=(4 * len(models), 3.6), sharey=True, squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        own = [row for row in rows if row["model"] == model]
        for (method, prior), (label, colour) in CURVES.items():
            curve = sorted(
                (int(r["forwards"]), *(float(r[k]) for k in ("srg", "low", "high")))
                for r in own
                if (r["method"], r["prior"]) == (method, prior)
            )
            if curve:
                x, value, low, high = zip(*curve, strict=True)
                axis.plot(x, value, color=colour, label=label, marker=".")
                axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        for method, marker in POINTS.items():
            for row in (r for r in own if r["method"] == method):
                place = max(32, int(row["forwards"]))  # methods of one pass stand at the left border
                axis.plot(place, float(row["srg"]), marker, color="black", markersize=5, label=method, linestyle="")
        axis.set_xscale("log", base=2)
        axis.set_xticks([32, 64, 128, 256, 512, 1024, 2048], ["one pass", "64", "128", "256", "512", "1,024", "2,048"])
        axis.tick_params(axis="x", labelrotation=45)
        axis.set_title(f"{TITLES[model]}, {own[0]['images']} images")
        axis.set_xlabel("forward passes")
        axis.grid(alpha=0.25)
    axes[0, 0].set_ylabel("SRG with tokens removed ↑")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
