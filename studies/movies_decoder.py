"""A prompted language model on ERASER's movie reviews: agreement with human rationales, and faithfulness.

    python studies/movies_decoder.py --model FOLDER --data movies.tar.gz --out studies/results/movies-decoder.json

FOLDER holds a causal language model and its tokenizer. The prompt is the start of a review, of ``--words`` words, and a
request for its sentiment. Explained is the logit of the true word, "positive" or "negative", minus that of the other
one. Token-F1 of the top 10 to 80 words, AUPRC, and comprehensiveness and sufficiency of the log-probability of the true
word (vitrail.scores.continuation_faithfulness; words of the review are removed as a whole). Reviews without marked
words in their start are left out. Every review is written as it is done, and a further run continues there.
"""

from __future__ import annotations

import argparse
import json
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study import Clock, manifest, options, save_json

import vitrail
from vitrail.bench.method_groups import single_pass_methods
from vitrail.data import Movies, Sample
from vitrail.scores import (
    continuation_faithfulness,
    continuation_log_probability,
    interval,
    span_mask,
    token_f1,
    word_average_precision,
)
from vitrail.text.tokens import word_scores, word_spans

BEFORE, AFTER = "Review: ", "\nThe sentiment of this review, positive or negative, is:"
ANSWERS = (" negative", " positive")
#: The default for texts first.
METHODS = ["attnlrp:released", "gradsam:readout", *single_pass_methods(), "gradient_x_input", "random"]
SCORES = ("f1", "auprc", "comprehensiveness", "sufficiency")


def prompt_of(sample: Sample, words: int, tokenizer: Any) -> dict[str, Any]:
    """Tokens of the prompt, the word of the review that each belongs to (-1 for none), and the marked words."""
    kept = list(sample.tokens or ())[:words]
    text = BEFORE + " ".join(kept) + AFTER
    encoded = tokenizer(text, return_offsets_mapping=True)
    spans = [(a + len(BEFORE), b + len(BEFORE)) for a, b in word_spans(" ".join(kept))]
    unit = [next((w for w, (a, b) in enumerate(spans) if s < b and e > a), -1) for s, e in encoded["offset_mapping"]]
    answers = [tokenizer(answer, add_special_tokens=False)["input_ids"][0] for answer in ANSWERS]
    marked = span_mask(sample.spans or (), len(sample.tokens or ()))[: len(kept)]
    return {"ids": encoded["input_ids"], "offsets": encoded["offset_mapping"], "spans": spans, "unit": unit,
            "own": answers[sample.label or 0], "other": answers[1 - (sample.label or 0)], "marked": marked}  # fmt: skip


def by_turns(samples: list[Sample]) -> list[Sample]:
    """Reviews of both classes by turns: the split has them in two blocks, and a run may end early."""
    classes = [[sample for sample in samples if sample.label == label] for label in (0, 1)]
    return [one for pair in zip_longest(*classes) for one in pair if one is not None]


def measure(model: Any, prompt: dict[str, Any], methods: list[str], padding: int) -> dict[str, dict[str, float]]:
    """Scores of each method on one review."""

    def target(output: Any) -> torch.Tensor:
        scores = output.logits[:, -1]
        difference: torch.Tensor = scores[:, prompt["own"]] - scores[:, prompt["other"]]
        return difference

    inputs = {"input_ids": torch.tensor([prompt["ids"]], device=model.device)}
    found = vitrail.explain(model, inputs, methods=methods, target=target)
    log_probability = continuation_log_probability(model, [[prompt["own"]]], padding, 8)
    rows = {}
    for method in methods:
        tokens = found[method].grid[0].double().cpu()
        words = word_scores(tokens, prompt["offsets"], prompt["spans"])[0].numpy()
        removable = [unit >= 0 for unit in prompt["unit"]]
        effect = continuation_faithfulness(
            log_probability, [prompt["ids"]], [tokens[0].numpy()], [removable], [prompt["unit"]]
        )
        marks = [prompt["marked"]]
        rows[method] = {
            "f1": float(token_f1([words], marks)["f1"].mean()),
            "auprc": float(word_average_precision([words], marks)["auprc"][0]),
            **{name: float(effect[name][0]) for name in ("comprehensiveness", "sufficiency")},
        }
    return rows


def applicable(model: Any, prompt: dict[str, Any], methods: list[str], padding: int) -> list[str]:
    """Methods that explain a prompt; the others are named with the reason."""
    kept = []
    for method in methods:
        try:
            measure(model, prompt, [method], padding)
            kept.append(method)
        except Exception as error:  # noqa: BLE001 - a method that does not apply is left out and named
            print(f"{method}: {str(error).splitlines()[0][:160]}", flush=True)
    return kept


def main() -> None:
    """Measure, and write results and manifest."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parser = options(__doc__, methods=METHODS, minutes=10.0)
    parser.add_argument("--model", type=Path, required=True, help="folder with a language model and its tokenizer")
    parser.add_argument("--gguf", help="name of a GGUF file in the folder with the weights")
    parser.add_argument("--data", type=Path, required=True, help="ERASER's movie reviews")
    parser.add_argument("--reviews", type=int, default=50, help="reviews of the test split (%(default)s)")
    parser.add_argument("--words", type=int, default=150, help="words of a review in the prompt (%(default)s)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    clock = Clock(args.minutes)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    source = {} if args.gguf is None else {"gguf_file": args.gguf}
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, **source).to(args.device).eval()
    model.requires_grad_(False)
    raw = args.out.with_suffix(".jsonl")
    done = {row["id"]: row for row in map(json.loads, raw.read_text().splitlines())} if raw.is_file() else {}
    methods = None
    with raw.open("a") as file:
        for sample in by_turns(list(Movies(args.data, "test")))[: args.reviews]:
            if sample.id in done or clock.is_over(sample.id):
                continue
            prompt = prompt_of(sample, args.words, tokenizer)
            if not prompt["marked"].any():
                continue
            padding = tokenizer.pad_token_id or 0
            methods = applicable(model, prompt, args.methods, padding) if methods is None else methods
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt["ids"]], device=args.device)).logits[0, -1]
            right = bool(logits[prompt["own"]] > logits[prompt["other"]])
            done[sample.id] = {"id": sample.id, "right": right, "scores": measure(model, prompt, methods, padding)}
            file.write(json.dumps(done[sample.id]) + "\n")
            file.flush()
    save_json(args.out, {"manifest": manifest(args.device, **about(args, done)), "rows": rows_of(done)})


def about(args: argparse.Namespace, done: dict[str, Any]) -> dict[str, Any]:
    """What the manifest states about the study."""
    negative, positive = ([r["right"] for r in done.values() if r["id"].startswith(start)] for start in ("neg", "pos"))
    accuracy = {name: float(np.mean(own)) for name, own in {"negative": negative, "positive": positive}.items() if own}
    return {"model": args.model.name, "split": "test", "reviews": len(done), "words": args.words, "accuracy": accuracy,
            "explained": "logit of the true word minus that of the other one"}  # fmt: skip


def rows_of(done: dict[str, Any]) -> list[dict[str, Any]]:
    """Means and intervals by method, best token-F1 first."""
    names = list(next(iter(done.values()))["scores"])
    rows = [
        {"method": name, "reviews": len(done), **{
            score: interval(np.array([row["scores"][name][score] for row in done.values()]))._asdict()
            for score in SCORES
        }}
        for name in names
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["f1"]["value"])


if __name__ == "__main__":
    main()
