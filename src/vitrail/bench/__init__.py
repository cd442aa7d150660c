"""Benchmarks: a plan in TOML is split into chunks, each chunk writes one part, and all parts make one table.

Runs can be interrupted and resumed: a part is written atomically, an existing part is done, and every engine
(processes, Ray, shards) runs the same tasks. See `vitrail.bench.results_store` for the files of a run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.bench.engines.local import LocalEngine
    from vitrail.bench.engines.ray import RayEngine
    from vitrail.bench.folder import explain_folder, read_map
    from vitrail.bench.folder_overlays import draw_folder
    from vitrail.bench.folder_page import FolderSummary, write_folder_page
    from vitrail.bench.map_store import MapStore, open_maps
    from vitrail.bench.multiclass_protocols import PresentClassScores
    from vitrail.bench.plan import Plan, PlanError
    from vitrail.bench.plan_file import PlanOverrides, plans
    from vitrail.bench.protocols import PROTOCOLS
    from vitrail.bench.results_store import ResultsStore
    from vitrail.bench.results_table import collect_scores, count_failures, read_results
    from vitrail.bench.run import open_run, run_plan
    from vitrail.bench.validate import read_plan

__all__ = [
    "PROTOCOLS", "FolderSummary", "LocalEngine", "MapStore", "Plan", "PlanError", "PlanOverrides", "PresentClassScores",
    "RayEngine", "ResultsStore", "collect_scores", "count_failures", "draw_folder", "explain_folder", "open_maps",
    "open_run", "plans", "read_map", "read_plan", "read_results", "run_plan", "write_folder_page",
]  # fmt: skip

#: Module of each name. Modules are imported at first use, because they need the libraries of ``vitrail[bench]``.
_MODULES = {
    "engines.local": ("LocalEngine",),
    "engines.ray": ("RayEngine",),
    "folder": ("explain_folder", "read_map"),
    "folder_overlays": ("draw_folder",),
    "folder_page": ("FolderSummary", "write_folder_page"),
    "map_store": ("MapStore", "open_maps"),
    "plan": ("Plan", "PlanError"),
    "plan_file": ("PlanOverrides", "plans"),
    "multiclass_protocols": ("PresentClassScores",),
    "protocols": ("PROTOCOLS",),
    "results_store": ("ResultsStore",),
    "results_table": ("collect_scores", "count_failures", "read_results"),
    "run": ("open_run", "run_plan"),
    "validate": ("read_plan",),
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    from vitrail.errors import require

    for module, names in _MODULES.items():
        if name in names:
            require("pydantic", "bench", "run benchmarks")
            return getattr(import_module(f"vitrail.bench.{module}"), name)
    raise AttributeError(f"module 'vitrail.bench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
