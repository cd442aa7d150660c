"""Shared by the tests of the benchmark: two tiny plans, and an uninterrupted run of the first."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

from vitrail.bench import LocalEngine, open_run

TINY = """
name = "tiny"
models = ["scenes"]
methods = ["rollout", "smoothgrad:samples=1", "random"]
controls = false
targets = "both"
protocols = ["segmentation", "pointing", "selectivity", "chefer21-tokens"]
batch = 2
chunk = 1

[[dataset]]
name = "scenes"
label = "pairs"
options = { split = "test", count = 2, pairs = true }
protocols = ["segmentation", "pointing", "selectivity"]

[[dataset]]
name = "scenes"
label = "one"
options = { split = "test", count = 1, objects = 1 }
protocols = ["segmentation", "chefer21-tokens"]
"""

ONE = """
name = "one"
models = ["scenes"]
methods = ["rollout", "gradtoken"]
controls = false
protocols = ["segmentation"]
batch = 4
chunk = 2
seed = SEED
dataset = { name = "scenes", options = { split = "test", count = 4, objects = 1 } }
"""


def parts_of_one_image(count: int) -> str:
    """A plan of parts with one image each, for interrupted runs."""
    return f"""
name = "small"
models = ["cifar10"]
methods = ["raw_attention", "random"]
controls = false
protocols = ["complexity"]
batch = 1
chunk = 1
dataset = {{ name = "scenes", options = {{ split = "test", count = {count}, objects = 1 }} }}
"""


def open_store(text, folder, tmp):
    """Write a plan's text to a file and open its run in a folder."""
    path = tmp / f"plan-{abs(hash(text))}.toml"
    path.write_text(text, encoding="utf-8")
    return open_run(path, folder)


def table_bytes(store):
    return [path.read_bytes() for path in store.export()[:2]]


def assert_same(store, expected):
    """Compare tables byte for byte; report the lines that differ, which say more than the bytes."""
    found = table_bytes(store)
    pairs = zip(found[1].decode().splitlines(), expected[1].decode().splitlines(), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]][:5] == []
    assert found == expected


@lru_cache(maxsize=1)
def run_tiny():
    """Run the tiny plan with one worker, which is this process; return its store and its table."""
    tmp = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, tmp, ignore_errors=True)
    store = open_store(TINY, tmp / "runs", tmp)
    LocalEngine(1).run(store.missing())
    return store, table_bytes(store)
