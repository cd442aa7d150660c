"""The public names of the package. Removing or renaming one is a breaking change: note it in CHANGELOG.md.

``python tests/repository/test_api.py`` writes the current names to ``api_surface.json``.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

SURFACE = Path(__file__).resolve().parents[1] / "api_surface.json"
MODULES = (
    "vitrail",
    "vitrail.bench",
    "vitrail.data",
    "vitrail.integrations",
    "vitrail.methods",
    "vitrail.models",
    "vitrail.ray",
    "vitrail.scores",
    "vitrail.shapley_explainer",
    "vitrail.text",
)


def public_names(module: str) -> list[str]:
    return sorted(getattr(importlib.import_module(module), "__all__", ()))


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module):
    expected = json.loads(SURFACE.read_text(encoding="utf-8"))[module]
    names = public_names(module)
    assert names == expected, (
        f"{module}.__all__ has changed: removed {sorted(set(expected) - set(names))}, added "
        f"{sorted(set(names) - set(expected))}. If this is intended, run `python tests/repository/test_api.py`, commit "
        "tests/api_surface.json and note removed names in CHANGELOG.md."
    )


@pytest.mark.parametrize("module", MODULES)
def test_public_names_exist(module):
    imported = importlib.import_module(module)
    for name in public_names(module):
        assert getattr(imported, name) is not None, name


if __name__ == "__main__":
    surface = {module: public_names(module) for module in MODULES}
    SURFACE.write_text(json.dumps(surface, indent=2) + "\n", encoding="utf-8")
