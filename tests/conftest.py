"""Shared fixtures."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; threads on top would only get in their way
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

#: Folders whose tests always count for coverage: those of the packages with a floor of their own in pyproject.toml.
MEASURED_FOLDERS = {"capture", "lrp", "methods", "replicas", "scores"}
#: Cases of any other fast test that count; further ones run the same lines, and tracing takes half as long again.
MEASURED_CASES = 4
IS_MEASURED = pytest.StashKey[bool]()
#: Starts coverage in the processes that a test starts.
COVERAGE_OF_PROCESSES = "COVERAGE_PROCESS_CONFIG"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests are all slow unread by ``-m "not slow"``: some import large libraries."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the tests in which coverage is measured."""
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        is_quick = seen[test] <= MEASURED_CASES and item.get_closest_marker("slow") is None
        item.stash[IS_MEASURED] = is_quick or not MEASURED_FOLDERS.isdisjoint(item.path.parts)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test that is not measured without coverage's trace function, its processes as well."""
    tracer = sys.gettrace()
    if tracer is None or item.stash[IS_MEASURED]:
        return (yield)
    config = os.environ.pop(COVERAGE_OF_PROCESSES, None)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
        if config is not None:
            os.environ[COVERAGE_OF_PROCESSES] = config


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and pictures, which are not part of the project: set VITRAIL_ASSETS, or lay them beside it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("VITRAIL_ASSETS", beside))
    if not (folder / "weights" / "vit_tiny_patch16_224.safetensors").is_file():
        pytest.skip(f"real weights are not at {folder}; set VITRAIL_ASSETS to a folder that holds them")
    return folder
