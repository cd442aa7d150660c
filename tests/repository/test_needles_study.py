"""The summary of `studies/needles.py` on relevance with known answers."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from needle_scores import COLUMNS
from needles import encode, summarise

from vitrail.data.needles import draw_needle


class Words:
    """A tokenizer whose tokens are the words between spaces."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str, **_):
        words, spans, end = text.split(), [], 0
        for word in words:
            start = text.index(word, end)
            end = start + len(word)
            spans.append((start, end))
        return {"input_ids": [self.numbers.setdefault(w, len(self.numbers)) for w in words], "offset_mapping": spans}


def relevance(index: int, words: Words, right: bool) -> list[list[float]]:
    """Relevance of one word for all targets: that of the source, or that of the second candidate."""
    prompt = draw_needle(1, index)
    a, b = prompt.source if right else prompt.other_source
    return [[float(s < b and e > a) for s, e in encode(prompt, words).spans]] * 4


def test_a_further_method_joins_the_rows_of_others(tmp_path, monkeypatch):
    words = Words()
    # By its name, as other tests import the library anew.
    monkeypatch.setattr("transformers.AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: words))
    raw, summary = tmp_path / "raw.jsonl", tmp_path / "needles.csv"
    earlier = [
        {"model": model, "method": method, "control": False, "target": "odds", "score": "word", "prompts": 300,
         "mean": 0.5, "low": 0.4, "high": 0.6}
        for model in ("own", "other") for method in ("old", "first tokens first", "new")
    ]  # fmt: skip
    with summary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(earlier)
    lines = [{"seed": 1, "prompt": i, "right": True} for i in range(4)]
    lines += [{"seed": 1, "prompt": i, "method": "new", "relevance": relevance(i, words, i > 0)} for i in range(4)]
    lines += [{"seed": 1, "prompt": 0, "method": "old", "relevance": relevance(0, words, True)}]
    raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = argparse.Namespace(model=tmp_path, raw=raw, summary=summary, seed=1, name="own", methods=["new"])
    summarise(args)
    found = list(csv.DictReader(summary.open(newline="")))
    rows = {(r["model"], r["method"], r["target"], r["score"]): (float(r["mean"]), int(r["prompts"])) for r in found}
    assert rows["own", "new", "odds", "word"] == (0.75, 4)
    assert rows["own", "new", "answer", "source"] == (0.75, 4)
    unchanged = [("own", "old"), ("own", "first tokens first"), *(("other", r["method"]) for r in earlier[3:])]
    assert all(rows[model, method, "odds", "word"] == (0.5, 300) for model, method in unchanged)
    assert len(found) == len(unchanged) + 16
    args.methods = None
    summarise(args)
    means = {r["method"]: float(r["mean"]) for r in csv.DictReader(summary.open(newline=""))
             if (r["model"], r["target"], r["score"]) == ("own", "odds", "word")}  # fmt: skip
    assert means["old"] == 1.0
    assert means.keys() == {"new", "old", "last tokens first", "first tokens first"}
