"""The table of FunnyBirds on its page; written by ``python results/readme.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from vitrail.scores import difference

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scores" / "funnybirds.md"
RESULT = ROOT / "studies" / "results" / "funnybirds" / "funnybirds.json"
SECOND = ROOT / "studies" / "results" / "funnybirds_second" / "funnybirds.json"
DEFAULT, FORMER = "leadlight", "leadlight:single"
CONTROLS = ("random", "centre", "edges")
PROTOCOLS = (
    "controlled_data_check", "preservation_check", "deletion_check", "distractibility", "single_deletion",
    "target_sensitivity",
)  # fmt: skip
#: Title and key of the columns.
COLUMNS = (
    ("completeness", "completeness"), ("correctness", "correctness"), ("contrastivity", "contrastivity"),
    ("controlled data", "controlled_data_check"), ("preservation", "preservation_check"),
    ("deletion", "deletion_check"), ("distractibility", "distractibility"), ("t", "threshold"), ("images", "images"),
)  # fmt: skip


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _rows(content: dict[str, Any], columns: tuple[tuple[str, str], ...]) -> tuple[list[str], list[str]]:
    """Names of the methods, the best mean first, and lines of the table with some columns."""
    methods, images = content["methods"], content["model"]["images"]
    titles = [title if key in ("threshold", "images") else f"{title} ↑" for title, key in columns]
    lines = [f"| method | mean ↑ | {' | '.join(titles)} |", "|---|" + "---:|" * (1 + len(columns))]
    order = sorted(methods, key=lambda name: float(methods[name]["mean"] or -1.0), reverse=True)
    for name in order:
        own = methods[name]
        between = f" ({100 * own['low']:.1f} to {100 * own['high']:.1f})" if own.get("low") is not None else ""
        cells = [str(own.get("images", images)) if key == "images" else _cell(own[key]) for _, key in columns]
        lines.append(f"| `{name}` | {_cell(own['mean'])}{between} | {' | '.join(cells)} |")
    return order, lines


def _training(content: dict[str, Any]) -> str:
    """The training images in words."""
    return str(next(iter(content["training"]["models"].values()))["data"]["training"])


def _seconds(content: dict[str, Any]) -> float:
    """How long the training took."""
    return float(next(iter(content["training"]["models"].values()))["training_seconds"])


def _on_shared_images(names: list[str]) -> tuple[dict[str, float], int]:
    """Means of some methods on the images that all of them explained, each at its own threshold, and their number."""
    table = pq.read_table(RESULT.with_suffix(".parquet")).to_pydict()
    methods, images = np.array(table["method"]), np.array(table["image"])
    shared = sorted(set.intersection(*(set(images[methods == name].tolist()) for name in names)))
    found = {}
    for name in names:
        own = (methods == name) & np.isin(images, shared)
        check, keep, delete, calm, single, target = (np.nanmean(np.array(table[p])[own]) for p in PROTOCOLS)
        found[name] = float((((check + keep + delete) / 3 + calm) / 2 + single + target) / 3)
    return found, len(shared)


def _correctness(name: str) -> np.ndarray[Any, Any]:
    """Rank correlations of a method by image, in the order of the images."""
    table = pq.read_table(RESULT.with_suffix(".parquet")).to_pydict()
    own = sorted(zip(table["image"], table["single_deletion"], table["method"], strict=True))
    return np.array([value for _, value, method in own if method == name])


def birds_table() -> str:
    """The findings, the model's scores, and a row for each method, the best mean first."""
    content = json.loads(RESULT.read_text(encoding="utf-8"))
    model, methods = content["model"], content["methods"]
    training = next(iter(content["training"]["models"].values()))
    order, lines = _rows(content, COLUMNS)
    leaders = [name for name in order if name not in CONTROLS][:6]
    best = ", ".join(f"`{name}` {_cell(methods[name]['mean'])}" for name in leaders)
    shared, count = _on_shared_images(leaders)
    again = ", ".join(f"`{name}` {_cell(shared[name])}" for name in sorted(leaders, key=lambda name: -shared[name]))
    own, other = methods[DEFAULT], methods["transformer_mm"]
    centre = methods["centre"]["correctness"]
    compared = [name for name in order if methods[name].get("images", model["images"]) == model["images"]]
    higher = [name for name in compared if (methods[name]["correctness"] or 0.0) > centre]
    above = [f"`{name}`" for name in higher]
    leads = {name: difference(_correctness(name), _correctness("centre")) for name in higher}
    clear = [
        f"`{name}`, {100 * value:.1f} points [{100 * low:.1f}, {100 * high:.1f}],"
        for name, (value, low, high) in leads.items()
        if low > 0
    ]
    ranking = (
        f"**The highest means: {best}.** On the {count} images that all of these explained: {again}. The default "
        f"`{DEFAULT}` has a completeness of {_cell(own['completeness'])} (the best has "
        f"{_cell(max(row['completeness'] for row in methods.values()))}) and a contrastivity of "
        f"{_cell(own['contrastivity'])}, `transformer_mm` {_cell(other['contrastivity'])}."
    )
    caveat = (
        "**Correctness hardly separates methods from controls here.** The five parts differ in size, and a map that "
        f"ignores the model gives more relevance to large parts: `centre` has {_cell(centre)} and `random` "
        f"{_cell(methods['random']['correctness'])}. Of the methods on all images only {', '.join(above)} are above "
        f"`centre`, and of these differences only that of {' and '.join(clear)} has an interval without zero (paired "
        "bootstrap, not corrected). Class-agnostic methods have a contrastivity of 0, which decides their mean."
    )
    about = (
        f"A ViT-S/14 (DINOv2 weights, fine-tuned for {training['training_seconds']:.0f} s on an H200 on "
        f"{training['data']['training']}); {model['images']} test images, {model['background_objects']:,} background "
        f"objects. Accuracy {_cell(model['accuracy'])} %, background independence "
        f"{_cell(model['background_independence'])} %. The assumption of target sensitivity holds for "
        f"{own['target_sensitivity_images']} images. Methods in %, with the 95 % interval of the mean (bootstrap over "
        "images at the chosen t):"
    )
    return "\n".join([ranking, "", caveat, "", about, "", *lines])


def second_table() -> str:
    """Results of a second training: the model's scores, how far the order of the methods agrees, and all rows."""
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULT, SECOND))
    order, lines = _rows(second, (*COLUMNS[:3], COLUMNS[-1]))
    means = [one["methods"] for one in (first, second)]
    shared = [name for name in order if name in means[0]]
    ranks = [np.argsort(np.argsort([own[name]["mean"] for name in shared])) for own in means]
    agreement = float(np.corrcoef(ranks)[0, 1])
    default, former, other = (means[1][name] for name in (DEFAULT, FORMER, "transformer_mm"))
    finding = (
        f"**The order of the methods hardly depends on the training: Spearman's rank correlation of the means is "
        f"{agreement:.2f} over {len(shared)} methods.** `{DEFAULT}` has a mean of "
        f"{_cell(default['mean'])} and a contrastivity of {_cell(default['contrastivity'])}, `{FORMER}` "
        f"{_cell(former['mean'])} and {_cell(former['contrastivity'])}, `transformer_mm` {_cell(other['mean'])} and "
        f"{_cell(other['contrastivity'])}. The accuracy of this model is {_cell(second['model']['accuracy'])} %, that "
        f"of the first one {_cell(first['model']['accuracy'])} %: it was trained in the same way, "
        f"for {_seconds(second):.0f} instead of {_seconds(first):.0f} s, on {_training(second)}. The time sufficed for "
        "the rows below."
    )
    return "\n".join([finding, "", *lines])
