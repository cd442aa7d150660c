"""Import every module of the package: run with coverage for the lines that pytest's workers run before they measure."""

from __future__ import annotations

import importlib
import pkgutil

import vitrail

for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
