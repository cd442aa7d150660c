"""Methods on ERASER's movie reviews: agreement with human rationales, and faithfulness to the model.

    python studies/movies.py --model out/movies/movies --data movies.tar.gz --out studies/results/movies.json

Every method that applies to texts, and controls, on the test reviews: token-F1 of the top 10 to 80 words (macro and
micro), AUPRC, comprehensiveness and sufficiency. As in the published experiments, the true class is explained, a word
has the maximum of its tokens' scores, and reviews are truncated to the model's window; ``--whole`` reads them to their
end, window by window. Intervals are from a bootstrap over reviews, the same reviews for all methods. The values of each
review are written beside the results, in a file of the same name with the ending parquet.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from study import Clock, manifest, options, save_json

import vitrail
from vitrail.data import Movies
from vitrail.errors import MapWarning
from vitrail.methods.registry import METHODS, find
from vitrail.scores import (
    TOP_WORDS,
    RationaleScores,
    class_probability,
    compare,
    comprehensiveness_sufficiency,
    interval,
    micro_f1,
    span_mask,
    token_f1,
    word_average_precision,
)
from vitrail.text import BERT_VARIANTS, TokenizerSettings
from vitrail.text.prediction import predict_texts

#: Scores with one value per review, and whether higher is better.
SCORES = {"f1": True, "auprc": True, "comprehensiveness": True, "sufficiency": False}


def text_methods() -> list[str]:
    """Every method that applies to texts but the perturbation methods, and the variants for texts authors published."""
    applicable = [method for method in METHODS.values() if method.reason_against("text") is None]
    names = [method.name for method in applicable if method.family != "perturbation"]
    return names + [BERT_VARIANTS[name] for name in names if name in BERT_VARIANTS and _is_variant(BERT_VARIANTS[name])]


def _is_variant(spec: str) -> bool:
    name, _, variant = spec.partition(":")
    return variant in METHODS[name].variants


def controls(lengths: list[int]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Controls besides "random": scores that decrease from the start of a review, or from its end."""
    return {
        "start first": [np.arange(n, 0, -1.0) for n in lengths],
        "end first": [np.arange(1.0, n + 1) for n in lengths],
    }


def explain(
    args: argparse.Namespace, model: Any, reading: TokenizerSettings, samples: list[Any], name: str
) -> list[np.ndarray[Any, Any]]:
    """Word scores of all reviews by a method, NaN for truncated words."""
    scores: list[Any] = []
    quick = dict(find(name)[1].quick) if args.quick else {}
    for start in range(0, len(samples), args.batch):
        part = samples[start : start + args.batch]
        found = vitrail.explain(
            model, [s.text for s in part], methods={name: quick}, target=[s.label for s in part], tokenizer=reading,
            batch_size=args.batch,
        )  # fmt: skip
        for text, sample in zip(found[name].text, part, strict=True):
            assert text.words == sample.tokens
            scores.append(np.where(text.seen, text.scores[0].double().numpy(), np.nan))
    return scores


def measure(
    args: argparse.Namespace, model: Any, reading: TokenizerSettings, samples: list[Any]
) -> list[dict[str, Any]]:
    """One row for each method and control; methods that the time did not suffice for are left out."""
    ids, words = [s.id for s in samples], [s.tokens for s in samples]
    truths = [span_mask(s.spans, len(s.tokens)) for s in samples]
    probability = class_probability(model, reading, args.batch)
    collected: dict[str, RationaleScores] = {}
    seconds: dict[str, float] = {}
    clock, first = Clock(args.minutes), None
    further = controls([len(w) for w in words])
    for name in [*further, *args.methods]:
        if name in args.methods:
            if collected and clock.is_over(name):
                break
            started = time.perf_counter()
            own = explain(args, model, reading, samples, name)
            seconds[name] = time.perf_counter() - started
        else:
            first = explain(args, model, reading, samples, "random") if first is None else first
            own = [np.where(np.isnan(seen), np.nan, one) for seen, one in zip(first, further[name], strict=True)]
        clamp = not name.startswith("inverted")  # most scores of "inverted" are negative
        values = {**token_f1(own, truths, args.top, clamp), **word_average_precision(own, truths)}
        if not args.no_faithfulness:
            values |= comprehensiveness_sufficiency(probability, words, own, [s.label for s in samples])
        collected[name] = RationaleScores()
        collected[name].add(ids, values)
        print(f"{name}: F1 {collected[name].macro().mean():.4f}, {clock}", file=sys.stderr, flush=True)
        save_values(args.out, collected, args.top)
    return _rows(args, collected, seconds)


def save_values(out: Path | None, collected: dict[str, RationaleScores], top: Sequence[int]) -> None:
    """Write the values of each review beside the results: each score, and the token-F1 of each number of words."""
    if out is None:
        return
    ids = next(iter(collected.values())).ids
    columns: dict[str, Any] = {"method": np.repeat([*collected], len(ids)), "review": ids * len(collected)}
    for score in SCORES:
        if score == "f1" or score in next(iter(collected.values())).columns:
            own = [s.columns_of("f1").mean(1) if score == "f1" else s.column(score) for s in collected.values()]
            columns[score] = np.concatenate(own).astype(np.float32)
    by_count = np.concatenate([s.columns_of("f1") for s in collected.values()]).astype(np.float32)
    columns |= {f"f1@{k}": by_count[:, j] for j, k in enumerate(top)}
    out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), out.with_suffix(".parquet"), compression="zstd")


def _rows(
    args: argparse.Namespace, collected: dict[str, RationaleScores], seconds: dict[str, float]
) -> list[dict[str, Any]]:
    """Rows of the results, sorted by macro token-F1."""
    rows: dict[str, dict[str, Any]] = {}
    for name, scores in collected.items():
        f1, marked = scores.columns_of("f1"), scores.columns_of("marked")[:, 0]
        correct, selected = scores.columns_of("hits"), scores.columns_of("picked")
        counts = {k: np.stack([correct[:, j], selected[:, j], marked], 1) for j, k in enumerate(args.top)}
        rows[name] = {
            "method": name,
            "seconds": seconds.get(name),
            "reviews": len(scores),
            "macro_f1_at": {k: interval(f1[:, j])._asdict() for j, k in enumerate(args.top)},
            "micro_f1_at": {k: interval(own, micro_f1)._asdict() for k, own in counts.items()},
        }
    for score, higher in SCORES.items():
        if score not in next(iter(collected.values())).columns and score != "f1":
            continue
        values = {n: s.columns_of("f1").mean(1) if score == "f1" else s.column(score) for n, s in collected.items()}
        for row in compare(values, higher=higher):
            rows[row.name][score] = {k: _none_if_nan(v) for k, v in row._asdict().items() if k != "name"}
    return sorted(rows.values(), key=lambda r: -r["f1"]["mean"])


def _none_if_nan(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if np.isnan(value) else value


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a Markdown table."""
    columns = [score for score in SCORES if score in rows[0]]
    head = {"f1": "macro token-F1, mean over k", "auprc": "AUPRC"}
    lines = ["| method | " + " | ".join(head.get(s, s) for s in columns) + " | micro token-F1, mean over k |"]
    lines.append("|---" * (len(columns) + 2) + "|")
    for row in rows:
        cells = [f"{row[s]['mean']:.3f} [{row[s]['low']:.3f}, {row[s]['high']:.3f}]" for s in columns]
        micro = np.mean([m["value"] for m in row["micro_f1_at"].values()])
        lines.append(f"| `{row['method']}` | {' | '.join(cells)} | {micro:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write results and manifest."""
    parser = options(__doc__, methods=text_methods(), batch=8, minutes=float("inf"))
    parser.add_argument("--model", type=Path, required=True, help="folder with a classifier and its tokenizer")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--top", type=int, nargs="+", default=list(TOP_WORDS))
    parser.add_argument("--reviews", type=int, default=None)
    parser.add_argument("--whole", action="store_true", help="read long reviews to their end, in windows")
    parser.add_argument("--quick", action="store_true", help="quick variants of slow methods")
    parser.add_argument("--no-faithfulness", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model).to(args.device).eval()
    reading = TokenizerSettings(tokenizer, reduction="max", all_windows=args.whole)
    samples = list(Movies(args.data, args.split))[: args.reviews]
    rows = measure(args, model, reading, samples)
    print(table(rows))
    predicted = predict_texts([s.text for s in samples], reading, model, args.batch).argmax(1).tolist()
    about = {
        "model": args.model.name, "split": args.split, "reviews": len(samples),
        "accuracy": float(np.mean([s.label == own for s, own in zip(samples, predicted, strict=True)])),
        "read": "to the end" if args.whole else "first window", "words": "max of pieces", "explained": "true class",
        "quick": args.quick, "matmul": "tf32",
    }  # fmt: skip
    save_json(args.out, {"manifest": manifest(args.device, **about), "rows": rows})


if __name__ == "__main__":
    main()
