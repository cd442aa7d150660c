"""The parts of `studies/movies_decoder.py` against known answers."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.zoo.number_words import NumberWords

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from movies_decoder import (
    FORMS,
    SCORES,
    PromptForm,
    add_methods,
    by_turns,
    earlier_values,
    in_memory,
    prompt_of,
    separation,
    write_results,
)
from study import Clock

from vitrail.data import Sample


def review(name: str, label: int, count: int = 6) -> Sample:
    words = tuple(f"w{10 + i}" for i in range(count))
    return Sample(name, text=" ".join(words), tokens=words, spans=((1, 3), (5, 6)), label=label)


def test_classes_alternate_and_the_rest_of_the_larger_one_follows():
    samples = [review(f"neg{i}", 0) for i in range(3)] + [review("pos0", 1)]
    assert [one.id for one in by_turns(samples)] == ["neg0", "pos0", "neg1", "neg2"]


def test_separation_counts_pairs_of_reviews_in_the_right_order():
    """Differences are for the true word: evidence for POS is −2, 1 of negative reviews and 0, 3 of positive ones."""
    found = separation(np.array([2.0, -1.0, 0.0, 3.0]), np.array([0, 0, 1, 1]))
    assert found == {"auc": 0.75, "negative": 0.5, "positive": 0.5}


def test_a_prompt_has_the_end_of_a_review_with_its_marks(monkeypatch):
    monkeypatch.setitem(FORMS, "short", ("w3 w4 ", " w5", (" w6", " w7")))
    prompt = prompt_of(review("pos0", 1), PromptForm("short", 4, end=True), NumberWords())
    assert prompt.text == "w3 w4 w12 w13 w14 w15 w5"
    assert prompt.ids == [3, 4, 12, 13, 14, 15, 5]
    assert prompt.units == [-1, -1, 0, 1, 2, 3, -1]
    assert prompt.marked.tolist() == [True, False, False, True]
    assert (prompt.own, prompt.other) == (7, 6)


def test_reviews_that_do_not_fit_are_measured_in_halves():
    seen = []

    def call(prompts):
        seen.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("full")
        return list(prompts)

    assert in_memory(call, [5, 6, 7], Clock()) == [5, 6, 7]
    assert seen == [3, 1, 2, 1, 1]


def test_a_further_method_joins_earlier_results_and_is_compared_with_them(tmp_path, capsys, monkeypatch):
    """The new method is 0.5 better on every review, so it leads, and the former leader is compared with it."""
    earlier, out, lines = tmp_path / "earlier.json", tmp_path / "out.json", tmp_path / "out.jsonl"
    values = {
        f"pos{i}": {name: dict.fromkeys(SCORES, base + i / 40) for name, base in (("a", 0.0), ("b", 0.25))}
        for i in range(20)
    }
    form = {"name": "verdict", "words": 300, "end": True}
    write_results(earlier, {"device": "first", "form": form, "reviews": 20, "separation": {"auc": 1.0}}, values)
    rows = [{"id": key, "scores": {"c": dict.fromkeys(SCORES, own["b"]["f1"] + 0.5)}} for key, own in values.items()]
    monkeypatch.setattr("movies_decoder.of_annotators", lambda data, ids, form: {"marked": len(ids) / 100})
    args = argparse.Namespace(add=earlier, out=earlier, device="cpu", data=None)
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    unfinished = earlier.read_bytes(), earlier.with_suffix(".parquet").read_bytes()
    add_methods(args, lines)
    assert (earlier.read_bytes(), earlier.with_suffix(".parquet").read_bytes()) == unfinished
    assert "19 of 20 reviews are measured" in capsys.readouterr().out
    args.out = out
    add_methods(args, lines)
    part = json.loads(out.read_text())
    assert {row["reviews"] for row in part["rows"]} == {19}
    assert (part["manifest"]["reviews"], part["manifest"]["positive"], part["manifest"]["marked"]) == (19, 19, 0.19)
    assert "separation" not in part["manifest"]
    assert earlier_values(out).keys() == values.keys() - {"pos19"}
    lines.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    add_methods(args, lines)
    before, found = json.loads(earlier.read_text()), json.loads(out.read_text())
    assert [row["method"] for row in before["rows"]] == ["b", "a"]
    assert [row["method"] for row in found["rows"]] == ["c", "b", "a"]
    assert found["manifest"]["device"] == "first"
    assert found["manifest"]["added"][0]["methods"] == ["c"]
    assert found["rows"][1]["f1"]["difference"] == pytest.approx(-0.5)
    assert found["rows"][1]["f1"]["p_holm"] < 0.01
    for one, other in zip(before["rows"], found["rows"][1:], strict=True):
        for score in SCORES:
            assert [one[score][k] for k in ("mean", "low", "high")] == pytest.approx(
                [other[score][k] for k in ("mean", "low", "high")], abs=1e-6
            )
    kept = earlier_values(out)
    assert kept.keys() == values.keys()
    assert kept["pos3"]["c"]["auprc"] == pytest.approx(0.75 + 3 / 40)
    assert kept["pos3"]["a"] == pytest.approx(values["pos3"]["a"])
