"""Shared fixtures."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; threads on top would only get in their way
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

#: Folders and files whose slow tests count for coverage: they reach code that fast tests do not.
MEASURED = {"capture", "lrp", "methods", "models", "scores", "text", "zoo", "test_leaderboard.py", "test_ray.py"}
#: Starts coverage in the processes that a test starts.
COVERAGE_OF_PROCESSES = "COVERAGE_PROCESS_CONFIG"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests are all slow unread by ``-m "not slow"``: some import large libraries."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run the other slow tests and their processes without coverage, with which they take half as long again."""
    tracer = sys.gettrace()
    is_measured = item.get_closest_marker("slow") is None or not MEASURED.isdisjoint(item.path.parts)
    if tracer is None or is_measured:
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
