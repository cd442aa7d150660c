"""A model that is changed between two calls, in whatever way, is explained as a fresh copy would be."""

from __future__ import annotations

import pytest

from tests.battery.changed_maps import is_felt, stale_methods
from tests.battery.changed_vit import adapted_vit, changed_vit
from tests.battery.model_changes import ADAPTER_CHANGES, CHANGES

#: Changes that are tried in every run. The others are slow tests for adapters, and exhaustive ones for models that
#: test_recordings.py changes in all these ways in the slow tests, after recorded passes.
OFTEN = (
    "attribute", "nested dict", "numpy array", "closure", "global in place", "class method",
    "forward on the object with the same layers", "hook that reorders tokens", "hook between blocks",
    "data of a buffer", "order by image", "half precision", "hook on the adapters",
)  # fmt: skip
RARE = [pytest.mark.slow, pytest.mark.exhaustive]
CASES = [
    pytest.param(make, change, id=name, marks=() if name in OFTEN else rare)
    for make, changes, rare in ((changed_vit, CHANGES, RARE), (adapted_vit, ADAPTER_CHANGES, RARE[:1]))
    for name, change in changes.items()
]


def test_at_least_40_changes():
    assert len(CASES) >= 40
    assert set(OFTEN) <= set(CHANGES) | set(ADAPTER_CHANGES)


@pytest.mark.parametrize(("make", "change"), CASES)
def test_maps_are_those_of_a_fresh_copy(make, change):
    assert stale_methods(make, change) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attribute", "numpy array", "hook between blocks", "global function"])
def test_changes_are_felt(name):
    assert is_felt(changed_vit, CHANGES[name])
