"""Methods on language models that recall one of several facts: is the most relevant word the fact that was asked for?

    python studies/needles.py --model FOLDER --name smollm2 --raw needles-smollm2.jsonl --minutes 60
    python studies/needles.py --model FOLDER --name smollm2 --raw needles-smollm2.jsonl --summary needles.csv

FOLDER holds a Hugging Face causal language model and its tokenizer. Prompts with two to six facts are drawn
(`vitrail.data.draw_needle`); only those that the model answers right are explained, the first ``--answered`` of them.
Four targets: the log-odds of the answer, which `vitrail.explain` uses by default; its logit minus the log-sum-exp of
those of the model's five next candidates; its logit minus that of the second candidate; and its logit. Relevance of
every token is appended to the raw file as it is computed, and a further run continues there; ``--again`` computes the
named methods anew. The summary has means and 95 % intervals (percentile bootstrap over prompts), computed from the
value of each prompt, which a file beside it keeps (``needles-smollm2.parquet``; by target and score, NaN for prompts
that a method was not measured on). It gets the rows of the methods in the raw file, or with ``--methods`` of these
only; the rows and values of all others stay as they are.

Seed 0 is for choices, of targets or rules; the published table has seed 1, whose prompts served no choice.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needle_scores import COLUMNS, EncodedNeedle, prompt_values, rows_of
from study import Clock, options, read_csv, save_csv
from value_tables import in_single_precision, save_values, values_path

import vitrail
from vitrail.bench.method_groups import single_pass_methods
from vitrail.data.needles import NeedlePrompt, draw_needle
from vitrail.targets import token

#: Methods that are explained first: the defaults for texts and their like.
FIRST_METHODS = ("attnlrp:released", "conservative_lrp", "gradsam:readout", "transformer_mm:logits", "gradient_x_input")


def encode(prompt: NeedlePrompt, tokenizer: Any) -> EncodedNeedle:
    """Tokens of a prompt; a space token between prompt and answer belongs to the prompt."""
    first = {}
    for word in (prompt.answer, prompt.other):
        full = tokenizer(f"{prompt.text} {word}", return_offsets_mapping=True)
        ids, spans = full["input_ids"], full["offset_mapping"]
        place = next(i for i, (a, b) in enumerate(spans) if a <= len(prompt.text) + 1 < b)
        first[word] = (tuple(ids[:place]), tuple(map(tuple, spans[:place])), ids[place])
    own, other = first[prompt.answer], first[prompt.other]
    if own[0] != other[0] or own[2] == other[2]:
        raise ValueError(f"the candidates of {prompt.text!r} do not differ in their first token")
    return EncodedNeedle(own[0], own[1], own[2], other[2])


def targets_of(one: EncodedNeedle) -> list[Any]:
    """One target for each of ``needle_scores.TARGETS``."""
    return [
        token(one.answer, score="logodds"), token(one.answer, "others"), token(one.answer, one.other),
        token(one.answer, score="logit"),
    ]  # fmt: skip


def relevance(
    model: Any, tokenizer: Any, prompts: Mapping[int, NeedlePrompt], method: str, seed: int = 0
) -> dict[int, Any]:
    """Relevance of each token for all targets, by number of the prompt, shape (4, n)."""
    texts, encoded = [], [encode(prompt, tokenizer) for prompt in prompts.values()]
    for prompt, one in zip(prompts.values(), encoded, strict=True):
        candidates = [prompt.text, prompt.text + " "]
        texts.append(next(text for text in candidates if tuple(tokenizer(text)["input_ids"]) == one.ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = vitrail.explain(
            model, texts, method, tokenizer=tokenizer, target=[targets_of(one) for one in encoded],
            **({"seed": seed} if method == "random" else {}),
        )  # fmt: skip
    grid = found.grid.detach().double().cpu().numpy()
    return {number: grid[j, :, : len(one.ids)] for j, (number, one) in enumerate(zip(prompts, encoded, strict=True))}


def applicable(model: Any, tokenizer: Any, prompt: NeedlePrompt, methods: Sequence[str]) -> list[str]:
    """Methods that explain a prompt; the others are named with the reason."""
    kept = []
    for method in methods:
        try:
            relevance(model, tokenizer, {0: prompt}, method)
            kept.append(method)
        except Exception as error:  # noqa: BLE001 - a method that does not apply is left out and named
            print(f"{method}: {str(error).splitlines()[0][:160]}", flush=True)
    return kept


def read_raw(path: Path, seed: int) -> tuple[dict[int, bool], dict[tuple[int, str], Any]]:
    """Which prompts were answered right, and the relevance by prompt and method; later lines replace earlier ones."""
    answered, found = {}, {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        row = json.loads(line)
        if row["seed"] != seed:
            continue
        if "right" in row:
            answered[row["prompt"]] = row["right"]
        else:
            found[row["prompt"], row["method"]] = np.array(row["relevance"])
    return answered, found


def are_right(model: Any, encoded: Sequence[EncodedNeedle]) -> list[bool]:
    """Whether the likeliest next token of each prompt begins the answer."""
    longest = max(len(one.ids) for one in encoded)
    rows = torch.tensor([[*[0] * (longest - len(one.ids)), *one.ids] for one in encoded])
    mask = torch.tensor([[0] * (longest - len(one.ids)) + [1] * len(one.ids) for one in encoded])
    with torch.no_grad():
        output = model(input_ids=rows.to(model.device), attention_mask=mask.to(model.device), logits_to_keep=1)
    best = output.logits[:, -1].argmax(-1).tolist()
    return [number == one.answer for number, one in zip(best, encoded, strict=True)]


def run(args: argparse.Namespace) -> None:
    """Explain the prompts that are not in the raw file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    clock = Clock(args.minutes)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    source = {} if args.gguf is None else {"gguf_file": args.gguf}
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, **source).to(args.device).eval()
    model.requires_grad_(False)
    answered, found = read_raw(args.raw, args.seed)
    methods = list(args.methods or dict.fromkeys((*FIRST_METHODS, *single_pass_methods(), "random")))
    known = None if args.methods is None else methods
    with args.raw.open("a") as file:

        def write(**row: Any) -> None:
            file.write(json.dumps({"seed": args.seed, **row}) + "\n")
            file.flush()

        explained = 0
        for start in range(0, args.prompts, 3 * args.batch):
            prompts = {i: draw_needle(args.seed, i) for i in range(start, min(start + 3 * args.batch, args.prompts))}
            unknown = [i for i in prompts if i not in answered]
            if clock.is_over(f"prompt {start}"):
                break
            if unknown:
                right = are_right(model, [encode(prompts[i], tokenizer) for i in unknown])
                for i, one in zip(unknown, right, strict=True):
                    answered[i] = one
                    write(prompt=i, right=one)
            chosen = [i for i in prompts if answered[i]][: args.answered - explained]
            explained += len(chosen)
            if chosen:
                known = applicable(model, tokenizer, prompts[chosen[0]], methods) if known is None else known
            for first in range(0, len(chosen), args.batch):
                for method in known or ():
                    batch = chosen[first : first + args.batch]
                    missing = {i: prompts[i] for i in batch if args.again or (i, method) not in found}
                    if not missing or clock.is_over(f"{method} on prompts {batch}"):
                        continue
                    for i, values in relevance(model, tokenizer, missing, method, batch[0]).items():
                        rounded = [[float(f"{v:.6g}") for v in row] for row in values]
                        write(prompt=i, method=method, relevance=rounded)
                    print(f"prompts {batch}: {method}, {clock}", flush=True)
            if explained >= args.answered:
                break


def summarise(args: argparse.Namespace) -> None:
    """Write the rows of one model and the values of its prompts; print how many prompts were answered right."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    answered, found = read_raw(args.raw, args.seed)
    encoded = {index: encode(draw_needle(args.seed, index), tokenizer) for index in {i for i, _ in found}}
    # Controls by position need no relevance and are always there.
    named = {key: own for key, own in found.items() if not args.methods or key[1] in args.methods}
    values = {
        score: {method: own for method, own in by_method.items() if not args.methods or method in args.methods}
        for score, by_method in prompt_values(named, encoded, args.seed).items()
    }
    rows = rows_of(args.name, in_single_precision(values))
    renewed = {(row["model"], row["method"]) for row in rows}
    previous = read_csv(args.summary) if args.summary.is_file() else []
    save_csv(args.summary, [row for row in previous if (row["model"], row["method"]) not in renewed] + rows, COLUMNS)
    save_values(values_path(args.summary, args.name), values)
    print(f"{args.name}: {sum(answered.values())} of {len(answered)} prompts answered right, {len(encoded)} explained")


def main() -> None:
    """Run or summarise."""
    parser = options(__doc__, methods=None, minutes=60.0, batch=12)
    parser.add_argument("--model", type=Path, required=True, help="folder of the language model")
    parser.add_argument("--gguf", help="name of a GGUF file in the folder with the weights")
    parser.add_argument("--name", default="smollm2", help="name of the model in the summary (%(default)s)")
    parser.add_argument("--raw", type=Path, required=True, help="file of the relevance of every prompt, JSON lines")
    parser.add_argument("--seed", type=int, default=1, help="seed of the prompts (%(default)s)")
    parser.add_argument("--prompts", type=int, default=300, help="prompts that are drawn (%(default)s)")
    parser.add_argument("--answered", type=int, default=100, help="answered prompts that are explained (%(default)s)")
    parser.add_argument("--again", action="store_true", help="compute the methods anew")
    parser.add_argument("--summary", type=Path, help="write this CSV from the raw file and explain nothing")
    args = parser.parse_args()
    if args.summary is not None:
        summarise(args)
    else:
        run(args)


if __name__ == "__main__":
    main()
