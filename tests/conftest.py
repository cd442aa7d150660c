"""Shared fixtures."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; threads on top would only get in their way
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start

#: Cases of a parametrised test in which coverage is measured.
MEASURED_CASES = 4


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files whose tests are all slow unread by ``-m "not slow"``: some import large libraries."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Measure coverage in the first cases of each test only: further cases run the same lines, half as fast again."""
    if not config.pluginmanager.hasplugin("_cov"):
        return
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if seen[test] >= MEASURED_CASES:
            item.add_marker("no_cover")
        seen[test] += 1


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
