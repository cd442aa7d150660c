"""Every model of the zoo is explained rightly, refused with the true reason, or warned about, as its entry says."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

import vitrail
from tests.zoo import images, own_models, pairs, sequences, texts, timm_images
from tests.zoo.entry import Entry, Subject
from tests.zoo.known_answers import TESTS
from vitrail.errors import GuessWarning, MapWarning, VitrailError

ENTRIES = [entry for group in (images, timm_images, texts, pairs, sequences, own_models) for entry in group.ENTRIES]


def run_check(entry: Entry, subject: Subject, check: str) -> None:
    """Run one check of an entry."""
    if check in TESTS:
        TESTS[check](subject, [m for m in entry.methods if f"{check}:{m}" not in entry.pending])
        return
    if check == "warned":
        with pytest.warns(GuessWarning, match=entry.warned):
            vitrail.explain(subject.model, subject.inputs, entry.methods[0], target=subject.target)
        return
    for method, reason in entry.refused.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessWarning)
            warnings.simplefilter("ignore", MapWarning)
            with pytest.raises(VitrailError, match=reason):
                vitrail.explain(subject.model, subject.inputs, method, target=subject.target, **subject.options)


def cases() -> list[object]:
    """Each check of each entry, with its marks."""
    return [
        pytest.param(
            entry,
            marks=[pytest.mark.slow] * entry.slow,
            id=entry.name,
        )
        for entry in ENTRIES
    ]


@pytest.mark.parametrize("entry", cases())
def test_each_model_does_what_its_entry_says(entry: Entry) -> None:
    subject = entry.build()
    for check in entry.checks:
        if check not in entry.pending:
            run_check(entry, subject, check)
