"""Shared fixtures."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; threads on top would only get in their way
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

gc.disable()  # until the tests are collected: what is imported and collected stays


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests are all slow unread by ``-m "not slow"``: some import large libraries."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_finish() -> None:
    """Free unused objects from here on, those that tests make; libraries and collected tests are left alone."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add to the report of a failed test what its windows requested and say."""
    report = yield
    if report.failed and report.when == "call" and (visits := getattr(item, "visits", None)) is not None:
        report.sections.append(("windows", visits.describe()))
    return report


def pytest_unconfigure() -> None:
    """Let the interpreter free everything at its end; some libraries count what is left."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seeded():
    # torch.manual_seed would note the stack of each call for every kind of device that is not there, in milliseconds.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and pictures, which are not part of the project: set VITRAIL_ASSETS, or lay them beside it."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("VITRAIL_ASSETS", beside))
    if not (folder / "weights" / "vit_tiny_patch16_224.safetensors").is_file():
        pytest.skip(f"real weights are not at {folder}; set VITRAIL_ASSETS to a folder that holds them")
    return folder
