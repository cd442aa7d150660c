"""Counts of the tables of `sweep_families.py`.

They use these definitions:

- A *softmax-attention classifier* has one chain of softmax attention layers between all its tokens. By this module: its
  structure is "plain", or it is not and `OTHER_ARCHITECTURES` does not name its family. A family that Vitrail does not
  recognise counts, unless its architecture is another one (convolutions, windows, pyramids, linear attention,
  state spaces, several chains); encoders with a decoder are the task "seq2seq" and do not count.
- It is *fully working* if every method that the registry defines for its kind of model gives finite maps, no method
  fails with an unexpected error, one test with a known answer or more says "yes", and none says "no".
- A family is *wrong* if a test with a known answer says "no".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The columns of a table.
FIELDS = (
    "library", "task", "family", "model class", "recognised", "self-check", "warnings", "works", "refused", "failed",
    "missing", "swapped patches", "padding", "softmax attention", "fully working", "reason", "seconds",
)  # fmt: skip
#: The columns that are tests with a known answer.
KNOWN_ANSWERS = ("swapped patches", "padding")
#: Families that are no softmax-attention classifiers, by what they are instead.
OTHER_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "convolutions or pooling only": (
        "bit", "convnext", "convnextv2", "efficientnet", "focalnet", "hgnet_v2", "mobilenet_v1", "mobilenet_v2",
        "poolformer", "pp_lcnet", "regnet", "resnet", "textnet", "alexnet", "convnext_tiny", "densenet121",
        "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3", "mnasnet0_5", "mobilenet_v3_small",
        "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "vgg11", "modified resnet",
    ),
    "attention inside windows": ("swin", "swinv2", "swin_v2", "donut-swin", "hiera", "maxvit", "mobilevit", "dinat",
                                 "longformer"),
    "pyramid: the number of tokens changes": ("cvt", "levit", "pvt", "pvt_v2", "segformer", "canine", "funnel",
                                              "perceiver"),
    "linear, sampled, hashed or low-rank attention": ("mobilevitv2", "swiftformer", "yoso", "mra", "reformer",
                                                      "nystromformer", "minimax"),
    "Fourier transforms instead of attention": ("fnet",),
    "state spaces or gated delta rules in some blocks": ("jamba", "zamba", "zamba2", "qwen3_next", "qwen3_5",
                                                         "qwen3_5_text"),
    "convolutions beside the attention of each block": ("convbert",),
    "two chains of attention side by side": ("lilt", "diffllama"),
}  # fmt: skip


def is_softmax_classifier(row: Mapping[str, Any]) -> bool:
    """Whether a family is a softmax-attention classifier, as the module defines it; families not built are not."""
    other = any(row["family"] in names for names in OTHER_ARCHITECTURES.values())
    return bool(row.get("recognised")) and row["task"] != "seq2seq" and not other


def is_fully_working(row: Mapping[str, Any]) -> bool:
    """Whether every method that is defined for the model works, and tests with a known answer say "yes"."""
    complete = (
        row.get("recognised") == "plain" and row.get("works") and not row.get("missing") and not row.get("failed")
    )
    return bool(complete) and is_right(row)


def is_tested(row: Mapping[str, Any]) -> bool:
    """Whether a test with a known answer was applied."""
    return is_right(row) or is_wrong(row)


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether a test with a known answer was applied and says "yes", and none says "no"."""
    return any(row.get(test) == "yes" for test in KNOWN_ANSWERS) and not is_wrong(row)


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a test with a known answer says "no", or fails."""
    return any((row.get(test) or "").startswith(("no:", "error")) for test in KNOWN_ANSWERS)


def counts(table: Sequence[Mapping[str, Any]]) -> str:
    """The two counts of the table: fully working softmax-attention classifiers, and wrong families."""
    softmax = [row for row in table if is_softmax_classifier(row)]
    full = sum(map(is_fully_working, softmax))
    built = [row for row in table if row.get("recognised")]
    share = 100 * full / max(1, len(softmax))
    return (
        f"{full} of {len(softmax)} softmax-attention classifiers fully working ({share:.1f} %, goal: 95 %); "
        f"{sum(map(is_wrong, built))} families wrong (goal: none) of {sum(map(is_tested, built))} that had a test "
        f"with a known answer, among {len(built)}"
    )


def summary(table: Sequence[Mapping[str, Any]]) -> str:
    """Counts of the table, and every failure."""
    built = [r for r in table if r.get("recognised")]
    recognised = [r for r in built if r.get("recognised") not in ("none", "refused", "error")]
    lines = []
    for row in table:
        name = f"{row['library']}:{row['family']} ({row['model class']})"
        lines += [f"{name}: failed: {row['failed']}"] if row.get("failed") else []
        lines += [f"{name}: {test}: {row[test]}" for test in KNOWN_ANSWERS if is_wrong({test: row.get(test)})]
        if is_softmax_classifier(row) and not is_fully_working(row):
            missing = row.get("missing") or f"structure: {row['recognised']}"
            lines.append(f"{name}: not fully working: {missing}")
    lines += [
        f"{len(table)} families, {len(built)} built, {len(recognised)} with recognised attention",
        f"swapped patches: {_tally(built, 'swapped patches')}; padding: {_tally(built, 'padding')}",
        counts(table),
    ]
    return "\n".join(lines)


def _tally(table: Sequence[Mapping[str, Any]], test: str) -> str:
    yes = sum(r.get(test) == "yes" for r in table)
    no = sum(r.get(test, "").startswith(("no:", "error")) for r in table)
    return f"{yes} yes, {no} no"
