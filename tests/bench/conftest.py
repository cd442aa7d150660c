"""Fixtures of the tests of the benchmark."""

from __future__ import annotations

import pytest


@pytest.fixture
def tiny_run():
    """The store and table of an uninterrupted run of the tiny plan, which is run once."""
    from tests.bench.bench_helpers import run_tiny  # which skips where an optional library is missing

    return run_tiny()
