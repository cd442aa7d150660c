"""The table of FunnyBirds on its page; written by ``python results/readme.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scores" / "funnybirds.md"
RESULT = ROOT / "studies" / "results" / "funnybirds" / "funnybirds.json"
#: Title and key of the columns.
COLUMNS = (
    ("completeness", "completeness"), ("correctness", "correctness"), ("contrastivity", "contrastivity"),
    ("controlled data", "controlled_data_check"), ("preservation", "preservation_check"),
    ("deletion", "deletion_check"), ("distractibility", "distractibility"), ("t", "threshold"), ("images", "images"),
)  # fmt: skip


def birds_table() -> str:
    """The findings, the model's scores, and a row for each method, the best mean first."""
    content = json.loads(RESULT.read_text(encoding="utf-8"))
    model, methods = content["model"], content["methods"]
    training = next(iter(content["training"]["models"].values()))

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}"

    def mean(name: str) -> float:
        return float(methods[name]["mean"] or -1.0)

    def row(name: str, own: dict[str, Any]) -> str:
        between = f" ({100 * own['low']:.1f} to {100 * own['high']:.1f})" if own.get("low") is not None else ""
        cells = [cell(own[key]) for _, key in COLUMNS[:-1]]
        return (
            " | ".join([f"| `{name}`", cell(own["mean"]) + between, *cells, str(own.get("images", model["images"]))])
            + " |"
        )

    order = sorted(methods, key=mean, reverse=True)
    best = ", ".join(f"`{name}` {cell(methods[name]['mean'])}" for name in order[:4])
    own, other = methods["leadlight"], methods["transformer_mm"]
    centre = methods["centre"]["correctness"]
    compared = [name for name in order if methods[name].get("images", model["images"]) == model["images"]]
    above = [f"`{name}`" for name in compared if (methods[name]["correctness"] or 0.0) > centre]
    ranking = (
        f"**The highest means: {best}; the default `leadlight` has {cell(own['mean'])}.** Completeness of `leadlight`: "
        f"{cell(own['completeness'])} (the best has {cell(max(row['completeness'] for row in methods.values()))}); its "
        f"contrastivity is {cell(own['contrastivity'])}, that of `transformer_mm` {cell(other['contrastivity'])}."
    )
    caveat = (
        "**Correctness hardly separates methods from controls here.** The five parts differ in size, and a map that "
        f"ignores the model gives more relevance to large parts: `centre` has {cell(centre)} and `random` "
        f"{cell(methods['random']['correctness'])}. Of the methods on all images only {', '.join(above)} are above "
        "`centre`. Class-agnostic methods have a contrastivity of 0, which decides their mean."
    )
    about = (
        f"A ViT-S/14 (DINOv2 weights, fine-tuned for {training['training_seconds']:.0f} s on an H200 on "
        f"{training['data']['training']}); {model['images']} test images, {model['background_objects']:,} background "
        f"objects. Accuracy {cell(model['accuracy'])} %, background independence "
        f"{cell(model['background_independence'])} %. The assumption of target sensitivity holds for "
        f"{own['target_sensitivity_images']} images. Methods in %, with the 95 % interval of the mean (bootstrap over "
        "images at the chosen t):"
    )
    titles = [title if key in ("threshold", "images") else f"{title} ↑" for title, key in COLUMNS]
    head = [f"| method | mean ↑ | {' | '.join(titles)} |", f"|---|{'---|' * (1 + len(COLUMNS))}"]
    return "\n".join([ranking, "", caveat, "", about, "", *head, *(row(name, methods[name]) for name in order)])
