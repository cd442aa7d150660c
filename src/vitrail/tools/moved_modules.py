"""Documented import paths of modules that lie deeper in the package."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: Documented module below ``vitrail``, and where it is.
DOCUMENTED_PATHS = {
    "diagnose": "tools.diagnose",
    "figures": "tools.figures",
    "integrations": "tools.integrations",
    "papers": "bench.papers",
    "postprocess": "methods.postprocess",
    "report": "bench.report",
    "shapley_explainer": "methods.shapley_explainer",
    "web.app": "web.fastapi_app",
}


class MovedModule(ModuleType):
    """A module whose names are those of another module, which is imported when one of them is first read."""

    def __init__(self, name: str, source: str) -> None:
        super().__init__(name, f"The names of `{source}`.")
        self.__dict__["__source__"] = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        return getattr(import_module(self.__dict__["__source__"]), name)


def keep_documented_paths() -> None:
    """Make the documented paths importable.

    Example:
        >>> from vitrail.integrations import Attribution
        >>> Attribution.__module__
        'vitrail.tools.integrations.captum'
    """
    for name, source in DOCUMENTED_PATHS.items():
        module = MovedModule(f"vitrail.{name}", f"vitrail.{source}")
        sys.modules.setdefault(module.__name__, module)
