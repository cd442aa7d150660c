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

import recompute
from needle_scores import COLUMNS
from needles import encode, summarise
from value_tables import read_values, write_values

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
    path = tmp_path / "needles-own.parquet"
    assert read_values(path)["odds word"] == {"new": [0, 1, 1, 1]}
    args.methods = None
    summarise(args)
    means = {r["method"]: float(r["mean"]) for r in csv.DictReader(summary.open(newline=""))
             if (r["model"], r["target"], r["score"]) == ("own", "odds", "word")}  # fmt: skip
    assert means["old"] == 1.0
    assert means.keys() == {"new", "old", "last tokens first", "first tokens first"}
    # Measured on the first prompt only: the place of a value is the number of its prompt.
    assert [str(value) for value in read_values(path)["odds word"]["old"]] == ["1.0", "nan", "nan", "nan"]


def test_rows_and_values_of_methods_that_a_raw_file_does_not_have_stay(tmp_path, monkeypatch, capsys):
    words = Words()
    monkeypatch.setattr("transformers.AutoTokenizer", SimpleNamespace(from_pretrained=lambda _: words))
    summary = tmp_path / "needles.csv"
    for method, right in (("first", 3), ("second", 1)):
        raw = tmp_path / f"{method}.jsonl"
        lines = [
            {"seed": 1, "prompt": i, "method": method, "relevance": relevance(i, words, i < right)} for i in range(4)
        ]
        raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
        summarise(argparse.Namespace(model=tmp_path, raw=raw, summary=summary, seed=1, name="own", methods=None))
    means = {r["method"]: float(r["mean"]) for r in csv.DictReader(summary.open(newline=""))
             if (r["target"], r["score"]) == ("odds", "word")}  # fmt: skip
    assert means.keys() == {"first", "second", "last tokens first", "first tokens first"}
    assert (means["first"], means["second"]) == (0.75, 0.25)
    capsys.readouterr()
    assert recompute.main(["needles", "--folder", str(tmp_path), "--strict"]) == 0
    assert capsys.readouterr().out == "needles: 64 rows, 0 differ, 0 without values\n"
    path = tmp_path / "needles-own.parquet"
    values = read_values(path)
    values["answer sentence"]["first"][2] = 0.0
    write_values(path, values)
    assert recompute.main(["needles", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "64 rows, 1 differ" in printed
    assert "own first answer sentence: [4.0, 0.75" in printed
