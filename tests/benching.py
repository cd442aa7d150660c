"""What the benchmark's tests share: two tiny plans, and a run of the first that nothing disturbed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

from vitrail.bench.context import open_context
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.results_store import ResultsStore
from vitrail.bench.validate import read_plan

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


def store_of(text, folder, tmp):
    """A plan's text as a store in a folder."""
    path = tmp / f"plan-{abs(hash(text))}.toml"
    path.write_text(text, encoding="utf-8")
    plan, _ = read_plan(path)
    return ResultsStore.create(open_context(plan.model_dump_json()), folder, text)


def table_bytes(store):
    return [path.read_bytes() for path in store.export()[:2]]


def assert_same(store, expected):
    """Byte for byte; where that fails, the lines that differ say more than the bytes."""
    found = table_bytes(store)
    pairs = zip(found[1].decode().splitlines(), expected[1].decode().splitlines(), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]][:5] == []
    assert found == expected


@lru_cache(maxsize=1)
def undisturbed():
    """The tiny plan, run by one worker, which is this process whatever it did before: its store and its table."""
    tmp = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, tmp, ignore_errors=True)
    store = store_of(TINY, tmp / "runs", tmp)
    began = time.perf_counter()
    LocalEngine(1).run(store.missing())
    store.seconds = time.perf_counter() - began
    return store, table_bytes(store)


@pytest.fixture
def base():
    """See `undisturbed`."""
    return undisturbed()
