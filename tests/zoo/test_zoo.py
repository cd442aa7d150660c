"""Every model of the zoo is explained rightly, refused with the true reason, or warned about, as its entry says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.zoo.checks import ENTRIES, TESTS, counts, run_check
from tests.zoo.entry import Entry


@pytest.mark.parametrize("entry", [pytest.param(e, marks=[pytest.mark.slow] * e.slow, id=e.name) for e in ENTRIES])
def test_each_model_does_what_its_entry_says(entry: Entry) -> None:
    subject = entry.build()
    for check in entry.checks:
        if check not in entry.pending:
            run_check(entry, subject, check)


def test_the_zoo_is_large_and_every_entry_says_what_is_expected():
    assert not [name for name, times in Counter(e.name for e in ENTRIES).items() if times > 1]
    assert not [e.name for e in ENTRIES if not e.checks]
    found = counts()
    assert len(ENTRIES) >= 140
    assert found["known answer"] >= 100


def test_pending_checks_are_checks_of_their_entry():
    for entry in ENTRIES:
        for key in entry.pending:
            check, _, method = key.partition(":")
            assert check in entry.checks, (entry.name, key)
            assert not method or (check in TESTS and method in entry.methods), (entry.name, key)
