"""Fixtures of the tests of methods."""

from __future__ import annotations

import pytest

from tests.methods.shapley_explainer.small_explainer import train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """An explainer of the small model: the path of its file, and the run that trained it."""
    path = tmp_path_factory.mktemp("explainer") / "small.safetensors"
    return path, train(path)
