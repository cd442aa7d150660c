"""The zoo as one list, its checks, and its counts.

``python -m tests.zoo.checks [PATTERN]`` runs the checks of the models whose name contains the pattern, pending ones as
well, and prints those that fail and the counts.
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections import Counter

import vitrail
from tests.zoo import (
    decoders,
    encoder_decoders,
    generative,
    heads,
    images,
    own_models,
    pairs,
    sequences,
    texts,
    timm_images,
    vision_language,
    written_words,
)
from tests.zoo.entry import Entry, Subject
from tests.zoo.known_answers import TESTS as KNOWN_ANSWERS
from vitrail.errors import GuessWarning, MapWarning, VitrailError

GROUPS = (
    images, timm_images, texts, pairs, sequences, generative, heads, own_models, encoder_decoders, decoders,
    vision_language, written_words,
)  # fmt: skip
TESTS = KNOWN_ANSWERS | vision_language.STREAM_TESTS | written_words.WRITTEN_TESTS
ENTRIES = [entry for group in GROUPS for entry in group.ENTRIES]


def run_check(entry: Entry, subject: Subject, check: str, pending: bool = False) -> None:
    """Run one check of an entry; methods whose check is pending are left out unless they are asked for."""
    if check in TESTS:
        TESTS[check](subject, [m for m in entry.methods if pending or f"{check}:{m}" not in entry.pending])
        return
    reasons = entry.refused if check == "refused" else {entry.methods[0]: entry.warned}
    for method, reason in reasons.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                vitrail.explain(subject.model, subject.inputs, method, target=subject.target, **subject.options)
                seen = ["none"] if check == "refused" else [str(w.message) for w in caught]
            except VitrailError as error:
                seen = [str(error)] if check == "refused" else [f"refused: {error}"]
        assert any(re.search(reason, text) for text in seen), f"{method}: expected {reason!r}, found {seen}"


def counts() -> Counter[str]:
    """Models by expectation, and those with a known-answer test that passes with one method or more."""
    found = Counter(entry.expectation for entry in ENTRIES)
    found["known answer"] = sum(any(t not in e.pending for t in e.tests) for e in ENTRIES)
    found["pending"] = sum(bool(e.pending) for e in ENTRIES)
    return found


def main(pattern: str = "") -> None:
    """Run all checks, pending ones as well."""
    warnings.simplefilter("ignore", GuessWarning)
    warnings.simplefilter("ignore", MapWarning)
    for entry in ENTRIES:
        if pattern not in entry.name:
            continue
        subject = entry.build()
        failed = False
        for check in entry.checks:
            try:
                run_check(entry, subject, check, pending=True)
            except (AssertionError, VitrailError, RuntimeError, TypeError, ValueError, IndexError) as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                print(f"{entry.name}: {check}: {type(error).__name__}: {error} at {place.name}:{place.lineno}")  # noqa: T201
                failed = True
        if entry.pending and not failed:
            print(f"{entry.name}: all pending checks pass: {', '.join(entry.pending)}")  # noqa: T201
    print(len(ENTRIES), "models:", dict(counts()))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:2])
