"""A prompted language model on ERASER's movie reviews: agreement with human rationales, and faithfulness.

    python studies/movies_decoder.py --model FOLDER --data movies.tar.gz --out studies/results/movies-decoder.json

FOLDER holds a causal language model and its tokenizer. A small model does not follow every prompt. Of these prompts,
each with the start or the end of a review, the study uses the one whose logit difference separates the two classes best
on the validation split (AUC). Explained is the logit of the true word, such as "positive", minus that of the other one.
Token-F1 of the top 10 to 80 words, AUPRC, and comprehensiveness and sufficiency of the log-probability of the true word
(vitrail.scores.continuation_faithfulness; words of the review are removed as a whole; a word has the sum of its tokens'
scores). Reviews without marked words in the part that is read are left out. Both classes alternate, every review is
written as it is done, and a further run continues there. ``--part 0/2`` and ``--part 1/2`` share the reviews between
two processes; ``--join`` reads the reviews of several such files and measures nothing. ``--add FILE`` measures further
``--methods`` with the prompt and on the reviews of earlier results, and writes them with the rows of these; all
comparisons are computed again.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from study import Clock, manifest, options, save_json

import vitrail
from vitrail.bench.method_groups import single_pass_methods
from vitrail.data import Movies, Sample
from vitrail.scores import (
    compare,
    continuation_faithfulness,
    continuation_log_probability,
    span_mask,
    token_f1,
    word_average_precision,
)
from vitrail.targets import token
from vitrail.text.tokens import word_scores, word_spans

EXAMPLES = (
    "Review: a dull and lifeless film , with a plot that goes nowhere .\nSentiment: negative\n\n"
    "Review: a warm and funny film ; the cast is excellent throughout .\nSentiment: positive\n\n"
    "Review: the jokes fall flat , and i wanted my money back .\nSentiment: negative\n\n"
    "Review: one of the best films of the year , and a joy to watch .\nSentiment: positive\n\n"
)
CHAT = ("<|im_start|>user\nIs this movie review positive or negative?\n\n", "<|im_end|>\n<|im_start|>assistant\n")
#: Text before a review, text after it, and the words for the classes NEG and POS.
FORMS = {
    "question": ("Review: ", "\nThe sentiment of this review, positive or negative, is:", (" negative", " positive")),
    "examples": (f"{EXAMPLES}Review: ", "\nSentiment:", (" negative", " positive")),
    "verdict": ("Review: ", "\nIn short, this movie is", (" bad", " good")),
    "recommend": ("Review: ", "\nWould I recommend this movie? Answer:", (" No", " Yes")),
    "great": ("", " All in all, the movie was", (" terrible", " great")),
    "chat": (CHAT[0], f"{CHAT[1]}This movie review is", (" negative", " positive")),
}
#: The default for texts first.
METHODS = ["attnlrp:released", "gradsam:readout", *single_pass_methods(), "gradient_x_input", "random"]
#: Scores that decrease from the start of a review, or from its end.
CONTROLS = ("start first", "end first")
#: Scores with one value per review, and whether higher is better.
SCORES = {"f1": True, "auprc": True, "comprehensiveness": True, "sufficiency": False}


@dataclass(frozen=True)
class PromptForm:
    """How a review is put to a model: a name of `FORMS`, how many words, and whether its first or last ones."""

    name: str
    words: int
    end: bool


@dataclass(frozen=True)
class ReviewPrompt:
    """A prompt: its tokens, the word of the review of each (−1 for none), marked words, and the two answers."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    spans: list[tuple[int, int]]
    units: list[int]
    marked: Any
    own: int
    other: int


def prompt_of(sample: Sample, form: PromptForm, tokenizer: Any) -> ReviewPrompt:
    """The prompt for a review."""
    before, after, answers = FORMS[form.name]
    words = list(sample.tokens or ())
    part = slice(-form.words, None) if form.end else slice(form.words)
    review = " ".join(words[part])
    encoded = tokenizer(before + review + after, return_offsets_mapping=True)
    spans = [(a + len(before), b + len(before)) for a, b in word_spans(review)]
    units = [next((w for w, (a, b) in enumerate(spans) if s < b and e > a), -1) for s, e in encoded["offset_mapping"]]
    own, other = (tokenizer(answers[i], add_special_tokens=False)["input_ids"][0]
                  for i in (sample.label or 0, 1 - (sample.label or 0)))  # fmt: skip
    return ReviewPrompt(before + review + after, encoded["input_ids"], encoded["offset_mapping"], spans, units,
                        marked_words(sample, form), own, other)  # fmt: skip


def marked_words(sample: Sample, form: PromptForm) -> Any:
    """Which words of the part that is read are marked."""
    part = slice(-form.words, None) if form.end else slice(form.words)
    return span_mask(sample.spans or (), len(sample.tokens or ()))[part]


def by_turns(samples: list[Sample]) -> list[Sample]:
    """Reviews of both classes by turns: the split has them in two blocks, and a run may end early."""
    classes = [[sample for sample in samples if sample.label == label] for label in (0, 1)]
    return [one for pair in zip_longest(*classes) for one in pair if one is not None]


def differences(model: Any, prompts: Sequence[ReviewPrompt], padding: int, batch: int) -> Any:
    """Log-probability of the true word minus that of the other one, for each prompt."""
    own, other = (
        continuation_log_probability(model, [[getattr(prompt, name)] for prompt in prompts], padding, batch)(
            [prompt.ids for prompt in prompts]
        )
        for name in ("own", "other")
    )
    return np.asarray(own) - np.asarray(other)


def separation(difference: Any, labels: Any) -> dict[str, float]:
    """AUC of the evidence for POS, and the share of right answers by class."""
    positive = np.where(labels == 1, difference, -difference)
    pos, neg = positive[labels == 1], positive[labels == 0]
    auc = float(((pos[:, None] > neg) + 0.5 * (pos[:, None] == neg)).mean())
    return {"auc": auc, "negative": float((neg < 0).mean()), "positive": float((pos > 0).mean())}


def choose(model: Any, tokenizer: Any, samples: list[Sample], words: Sequence[int], batch: int) -> Any:
    """The form that separates the classes best, and the results of all."""
    labels, rows = np.array([sample.label for sample in samples]), []
    for form in [PromptForm(name, n, end) for n in words for end in (False, True) for name in FORMS]:
        prompts = [prompt_of(sample, form, tokenizer) for sample in samples]
        found = separation(differences(model, prompts, tokenizer.pad_token_id or 0, batch), labels)
        rows.append({**asdict(form), **found})
        print(rows[-1], flush=True)
    best = max(rows, key=lambda row: row["auc"])
    return PromptForm(best["name"], best["words"], best["end"]), rows


def measure(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[ReviewPrompt],
    methods: list[str],
    batch: int,
    further: bool = False,
) -> list[tuple[float | None, dict[str, dict[str, float]]]]:
    """Of each review the log-probability of the true word minus that of the other one, and scores by method.

    With ``further``, the methods only: earlier results have the controls and what the model answers.
    """
    padding = tokenizer.pad_token_id or 0
    difference = [None] * len(prompts) if further else differences(model, prompts, padding, batch).tolist()
    found = vitrail.explain(
        model, [prompt.text for prompt in prompts], methods=methods, tokenizer=tokenizer,
        target=[token(prompt.own, prompt.other) for prompt in prompts],
    )  # fmt: skip
    tokens = [
        found[method].grid[i, :, : len(prompt.ids)].double().cpu()
        for method in methods for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    for sign in () if further else (-1, 1):  # the controls
        tokens += [sign * torch.arange(len(prompt.ids), dtype=torch.float64)[None] for prompt in prompts]
    names = [*methods, *(() if further else CONTROLS)]
    every = [*prompts] * len(names)
    log_probability = continuation_log_probability(model, [[p.own] for p in every], padding, batch)
    effect = continuation_faithfulness(
        log_probability, [p.ids for p in every], [own[0].numpy() for own in tokens],
        [[unit >= 0 for unit in p.units] for p in every], [p.units for p in every],
    )  # fmt: skip
    words = [word_scores(own, p.offsets, p.spans)[0].numpy() for own, p in zip(tokens, every, strict=True)]
    marks = [p.marked for p in every]
    values = {"f1": token_f1(words, marks)["f1"].mean(1), **word_average_precision(words, marks), **effect}
    scores = [
        {m: {name: float(values[name][j * len(prompts) + i]) for name in SCORES} for j, m in enumerate(names)}
        for i in range(len(prompts))
    ]
    return list(zip(difference, scores, strict=True))


def in_memory(call: Callable[[Any], list[Any]], prompts: Sequence[ReviewPrompt], clock: Clock) -> list[Any]:
    """Results of a call for all prompts: in halves, or later, where other processes leave too little memory.

    Prompts at the end are left out where time is over.
    """
    try:
        return call(prompts)
    except torch.OutOfMemoryError as error:
        print(f"{len(prompts)} reviews do not fit: {str(error)[:80]}", flush=True)
    torch.cuda.empty_cache()
    if len(prompts) > 1:
        middle = len(prompts) // 2
        first = in_memory(call, prompts[:middle], clock)
        return first + (in_memory(call, prompts[middle:], clock) if len(first) == middle else [])
    if clock.is_over("the same review again"):
        return []
    time.sleep(5)
    return in_memory(call, prompts, clock)


def applicable(model: Any, tokenizer: Any, prompt: ReviewPrompt, methods: list[str]) -> list[str]:
    """Methods that explain a prompt; the others are named with the reason."""
    kept = []
    for method in methods:
        try:
            vitrail.explain(model, prompt.text, method, tokenizer=tokenizer, target=token(prompt.own, prompt.other))
            kept.append(method)
        except Exception as error:  # noqa: BLE001 - a method that does not apply is left out and named
            print(f"{method}: {str(error).splitlines()[0][:160]}", flush=True)
    return kept


def run(args: argparse.Namespace, file: Path) -> None:
    """Measure the reviews that are not in the file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    clock = Clock(args.minutes)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    source = {} if args.gguf is None else {"gguf_file": args.gguf}
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, **source).to(args.device).eval()
    model.requires_grad_(False)
    lines = [*map(json.loads, file.read_text().splitlines())] if file.is_file() else []
    with file.open("a") as raw:

        def write(**row: Any) -> None:
            raw.write(json.dumps(row) + "\n")
            raw.flush()

        chosen = next((PromptForm(**row["form"]) for row in lines if "form" in row), None)
        earlier = None if args.add is None else earlier_values(args.add)
        if args.add is not None:
            chosen = PromptForm(**json.loads(args.add.read_text())["manifest"]["form"])
        if chosen is None:
            known = by_turns(list(Movies(args.data, "val")))[: args.choose]
            chosen, forms = choose(model, tokenizer, known, args.words, args.batch)
            write(form=asdict(chosen), forms=forms)
        done = {row["id"] for row in lines if "id" in row}
        samples = by_turns(list(Movies(args.data, "test")))[: args.reviews]
        prompts = {sample.id: prompt_of(sample, chosen, tokenizer) for sample in samples}
        left = [key for key, prompt in prompts.items() if prompt.marked.any() and (earlier is None or key in earlier)]
        first, count = map(int, args.part.split("/"))
        groups = [left[i : i + args.together] for i in range(0, len(left), args.together)][first::count]
        methods = args.methods
        for group in groups:
            missing = [key for key in group if key not in done]
            if not missing or clock.is_over(", ".join(missing)):
                continue
            own = [prompts[key] for key in missing]
            methods = applicable(model, tokenizer, own[0], METHODS) if methods is None else methods
            call = partial(measure, model, tokenizer, methods=methods, batch=args.batch, further=earlier is not None)
            for key, (difference, scores) in zip(missing, in_memory(call, own, clock), strict=False):
                write(id=key, difference=difference, scores=scores)
            print(f"{len(missing)} reviews, {clock}", flush=True)


def earlier_values(results: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Scores by review and method of earlier results, from the file beside them."""
    columns = pq.read_table(results.with_suffix(".parquet")).to_pydict()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for i, (method, review) in enumerate(zip(columns["method"], columns["review"], strict=True)):
        found.setdefault(review, {})[method] = {score: columns[score][i] for score in SCORES}
    return found


def add_methods(args: argparse.Namespace, file: Path) -> None:
    """Write earlier results with the methods of this run, for the reviews that were measured.

    The earlier results themselves are replaced only when all of their reviews were.
    """
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    own = {row["id"]: row["scores"] for row in lines if "id" in row}
    values = earlier_values(args.add)
    earlier = json.loads(args.add.read_text())["manifest"]
    measured = {review: scores for review, scores in values.items() if review in own}
    if len(measured) < len(values):
        print(f"{len(measured)} of {len(values)} reviews are measured: run again to continue", flush=True)
        if args.out == args.add or not measured:
            return
        earlier |= {"reviews": len(measured), "positive": sum(review.startswith("pos") for review in measured)}
        earlier |= of_annotators(args.data, [*measured], PromptForm(**earlier["form"]))
        del earlier["separation"]  # of all reviews
    added = {"methods": list(next(iter(own.values()))), **manifest(args.device)}
    stated = {**earlier, "added": [*earlier.get("added", ()), added]}
    write_results(args.out, stated, {review: {**scores, **own[review]} for review, scores in measured.items()})


def write_results(out: Path, stated: dict[str, Any], values: dict[str, dict[str, dict[str, float]]]) -> None:
    """Write means and intervals by method, best token-F1 first, and the values of each review as Parquet."""
    names = list(next(iter(values.values())))
    rows: dict[str, dict[str, Any]] = {name: {"method": name, "reviews": len(values)} for name in names}
    columns: dict[str, Any] = {"method": np.repeat(names, len(values)), "review": [*values] * len(names)}
    for score, higher in SCORES.items():
        by_method = {name: np.array([scores[name][score] for scores in values.values()]) for name in names}
        columns[score] = np.concatenate([*by_method.values()]).astype(np.float32)
        for row in compare(by_method, higher=higher):
            rows[row.name][score] = {k: None if v != v else v for k, v in row._asdict().items() if k != "name"}
    pq.write_table(pa.table(columns), out.with_suffix(".parquet"), compression="zstd")
    save_json(out, {"manifest": stated, "rows": sorted(rows.values(), key=lambda row: -row["f1"]["mean"])})


def of_annotators(data: Path, ids: Sequence[str], form: PromptForm) -> dict[str, float]:
    """Share of the words that are marked, and token-F1 of a perfect selection."""
    samples = {sample.id: sample for sample in Movies(data, "test")}
    marks = [marked_words(samples[key], form) for key in ids]
    best = token_f1([mask.astype(float) for mask in marks], marks)["f1"].mean()
    return {"marked": float(np.mean([mask.mean() for mask in marks])), "perfect_f1": float(best)}


def summarise(args: argparse.Namespace, files: Sequence[Path]) -> None:
    """Write the results of all reviews in some files."""
    lines = [json.loads(line) for file in files if file.is_file() for line in file.read_text().splitlines()]
    done = {row["id"]: row for row in lines if "id" in row}
    if not done:
        return
    chosen = next(row for row in lines if "form" in row)
    labels = np.array([int(key.startswith("pos")) for key in done])
    found = separation(np.array([row["difference"] for row in done.values()]), labels)
    about = {"model": args.model.name, "split": "test", "reviews": len(done), "positive": int(labels.sum()),
             "separation": found, "form": chosen["form"], "forms_on_validation": chosen["forms"],
             **of_annotators(args.data, [*done], PromptForm(**chosen["form"])),
             "explained": "logit of the true word minus that of the other one"}  # fmt: skip
    stated = manifest(args.device, **about)
    if args.join:  # the machine that measured
        measured = json.loads(files[0].with_suffix(".json").read_text())["manifest"]
        stated |= {name: measured[name] for name in ("device", "versions")}
    write_results(args.out, stated, {key: row["scores"] for key, row in done.items()})


def main() -> None:
    """Measure, and write results and manifest."""
    parser = options(__doc__, methods=None, minutes=10.0, batch=32)
    parser.add_argument("--model", type=Path, required=True, help="folder with a language model and its tokenizer")
    parser.add_argument("--gguf", help="name of a GGUF file in the folder with the weights")
    parser.add_argument("--data", type=Path, required=True, help="ERASER's movie reviews")
    parser.add_argument("--reviews", type=int, default=199, help="reviews of the test split (%(default)s)")
    parser.add_argument("--words", type=int, nargs="+", default=[150, 300], help="words of a review in the prompt")
    parser.add_argument("--choose", type=int, default=200, help="validation reviews that decide the prompt")
    parser.add_argument("--together", type=int, default=8, help="reviews that are explained in one call (%(default)s)")
    parser.add_argument("--part", default="0/1", help="which part of the reviews, of how many (%(default)s)")
    parser.add_argument("--join", type=Path, nargs="*", help="JSON lines of other runs; nothing is measured")
    parser.add_argument("--add", type=Path, help="earlier results that get the rows of further --methods")
    args = parser.parse_args()
    if args.add is not None and not args.methods:
        parser.error("--add needs --methods: those to measure on the reviews of the earlier results")
    warnings.simplefilter("ignore")
    file = args.out.with_suffix(".jsonl")
    if args.join is None:
        run(args, file)
    if args.add is not None:
        add_methods(args, file)
    else:
        summarise(args, args.join or [file])


if __name__ == "__main__":
    main()
