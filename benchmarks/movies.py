"""Do the methods find the words people marked in ERASER's movie reviews, and the words the model needs?

    python benchmarks/movies.py --model out/movies/movies --data movies.tar.gz --out benchmarks/results/movies.json

Every method that applies to texts, and controls, on the test reviews: token-F1 of the top 10 to 80 words (mean over
reviews, and from pooled counts), the area under precision and recall, comprehensiveness and sufficiency. As in the
published experiments the class that is explained is the true one, words take the maximum of their pieces, and reviews
are cut off after what the model takes at a time; ``--whole`` reads them to their end instead, window by window.
Intervals are from a bootstrap over reviews, the same reviews for all methods.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import vitrail
from vitrail.data.movies import Movies
from vitrail.errors import MapWarning
from vitrail.explanation import versions
from vitrail.methods.registry import METHODS, find
from vitrail.scores.rationale import (
    TOP_WORDS,
    RationaleScores,
    class_probability,
    comprehensiveness_sufficiency,
    micro_f1,
    span_mask,
    token_f1,
    word_average_precision,
)
from vitrail.scores.statistics import compare, interval
from vitrail.text import PUBLISHED, Reading
from vitrail.text.windows import predict

#: Scores with one value a review, and whether more is better.
SCORES = {"f1": True, "auprc": True, "comprehensiveness": True, "sufficiency": False}


def capable() -> list[str]:
    """Every method that applies to texts, in the variant that its authors used there, with both where they differ."""
    names = [name for name, method in METHODS.items() if method.reason_against("text") is None]
    return names + [PUBLISHED[name] for name in names if name in PUBLISHED and _known(PUBLISHED[name])]


def _known(spec: str) -> bool:
    name, _, variant = spec.partition(":")
    return variant in METHODS[name].variants


def controls(lengths: list[int]) -> dict[str, list[np.ndarray[Any, Any]]]:
    """Scores that know nothing of the model, besides the method "random": a review from its start, or from its end."""
    return {
        "start first": [np.arange(n, 0, -1.0) for n in lengths],
        "end first": [np.arange(1.0, n + 1) for n in lengths],
    }


def explain(args: argparse.Namespace, model: Any, reading: Reading, samples: list[Any]) -> tuple[dict[str, Any], Any]:
    """Scores of all words by every method, NaN where the model did not see them, and seconds."""
    scores: dict[str, list[Any]] = {name: [] for name in args.methods}
    seconds = dict.fromkeys(args.methods, 0.0)
    for start in range(0, len(samples), args.batch):
        part = samples[start : start + args.batch]
        for name in args.methods:  # one by one: together, all that any of them keeps would be in memory at once
            began = time.perf_counter()
            quick = dict(find(name)[1].quick) if args.quick else {}
            found = vitrail.explain(
                model, [s.text for s in part], methods={name: quick}, target=[s.label for s in part], tokenizer=reading,
                batch_size=args.batch,
            )  # fmt: skip
            seconds[name] += time.perf_counter() - began
            for one, sample in zip(found[name].text, part, strict=True):
                assert one.words == sample.tokens
                scores[name].append(np.where(one.seen, one.scores[0].double().numpy(), np.nan))
        print(f"{min(start + args.batch, len(samples))}/{len(samples)} reviews", end="\r", file=sys.stderr, flush=True)
    return scores, seconds


def measure(args: argparse.Namespace, model: Any, reading: Reading, samples: list[Any]) -> list[dict[str, Any]]:
    """A row for each method and control."""
    scores, seconds = explain(args, model, reading, samples)
    ids, words = [s.id for s in samples], [s.tokens for s in samples]
    seen = next(iter(scores.values()))
    for name, own in controls([len(w) for w in words]).items():
        scores[name] = [np.where(np.isnan(there), np.nan, values) for there, values in zip(seen, own, strict=True)]
    truths = [span_mask(s.spans, len(s.tokens)) for s in samples]
    ask = class_probability(model, reading, args.batch)
    tallies: dict[str, RationaleScores] = {}
    for name, own in scores.items():
        clamp = not name.startswith("inverted")  # whose scores are all negative where a method's are not
        values = {**token_f1(own, truths, args.top, clamp), **word_average_precision(own, truths)}
        if not args.no_faithfulness:
            values |= comprehensiveness_sufficiency(ask, words, own, [s.label for s in samples])
        tallies[name] = RationaleScores()
        tallies[name].add(ids, values)
        print(f"{name}: F1 {tallies[name].macro().mean():.4f}", file=sys.stderr, flush=True)
    return _rows(args, tallies, seconds)


def _rows(
    args: argparse.Namespace, tallies: dict[str, RationaleScores], seconds: dict[str, float]
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, tally in tallies.items():
        micro = {}
        for j, k in enumerate(args.top):
            counts = [tally._rows(n)[:, j if n != "marked" else 0] for n in ("hits", "picked", "marked")]  # noqa: SLF001
            micro[k] = interval(np.stack(counts, 1), micro_f1)._asdict()
        rows[name] = {
            "method": name, "seconds": seconds.get(name), "reviews": len(tally),
            "macro_f1_at": {k: interval(f1)._asdict() for k, f1 in zip(args.top, tally._rows("f1").T, strict=True)},  # noqa: SLF001
            "micro_f1_at": micro,
        }  # fmt: skip
    for score, higher in SCORES.items():
        if score not in next(iter(tallies.values())).columns and score != "f1":
            continue
        values = {n: t._rows("f1").mean(1) if score == "f1" else t.column(score) for n, t in tallies.items()}  # noqa: SLF001
        for row in compare(values, higher=higher):
            rows[row.name][score] = {k: _told(v) for k, v in row._asdict().items() if k != "name"}
    return sorted(rows.values(), key=lambda r: -r["f1"]["mean"])


def _told(value: float) -> float | None:
    """A number as JSON has it: none where there is none, as the best method's distance to itself."""
    return None if np.isnan(value) else value


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    shown = [score for score in SCORES if score in rows[0]]
    head = {"f1": "macro token-F1, mean over k", "auprc": "AUPRC"}
    lines = ["| method | " + " | ".join(head.get(s, s) for s in shown) + " | micro token-F1, mean over k |"]
    lines.append("|---" * (len(shown) + 2) + "|")
    for row in rows:
        cells = [f"{row[s]['mean']:.3f} [{row[s]['low']:.3f}, {row[s]['high']:.3f}]" for s in shown]
        micro = np.mean([m["value"] for m in row["micro_f1_at"].values()])
        lines.append(f"| `{row['method']}` | {' | '.join(cells)} | {micro:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with a classifier and its tokenizer")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--methods", nargs="+", default=capable())
    parser.add_argument("--top", type=int, nargs="+", default=list(TOP_WORDS))
    parser.add_argument("--reviews", type=int, default=None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--whole", action="store_true", help="read long reviews to their end")
    parser.add_argument("--quick", action="store_true", help="few steps where a method takes many")
    parser.add_argument("--no-faithfulness", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model).to(args.device).eval()
    reading = Reading(tokenizer, join="max", whole=args.whole)
    samples = list(Movies(args.data, args.split))[: args.reviews]
    rows = measure(args, model, reading, samples)
    print(table(rows))
    said = predict([s.text for s in samples], reading, model, args.batch).argmax(1).tolist()
    manifest = {
        "model": args.model.name, "split": args.split, "reviews": len(samples),
        "accuracy": float(np.mean([s.label == own for s, own in zip(samples, said, strict=True)])),
        "read": "to the end" if args.whole else "first window", "words": "max of pieces", "explained": "true class",
        "quick": args.quick, "versions": versions(),
        "device": torch.cuda.get_device_name(0) if args.device.startswith("cuda") else args.device,
    }  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"manifest": manifest, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
