"""Change models between two calls and compare their maps with those of fresh copies, on any device.

    python benchmarks/changed_models.py --device cuda

Each change of `tests.battery.model_changes` is made to a model that was explained often enough to have recorded passes;
the maps after the change must be those of a copy that was changed alike and never explained. Prints one line for each
change with the methods that are stale, then their number; the exit status is the number of stale changes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Run all changes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("--calls", type=int, default=4, help="calls before the change, so that passes are recorded")
    parser.add_argument("--only", default="", help="changes whose name holds this text")
    parser.add_argument("--alone", action="store_true", help="also each method in calls of its own, as users call it")
    chosen = parser.parse_args()

    from tests.battery.changed_maps import ONE_PASS, stale_methods
    from tests.battery.changed_vit import adapted_vit, changed_vit
    from tests.battery.model_changes import ADAPTER_CHANGES, CHANGES

    groups = [ONE_PASS, *((name,) for name in ONE_PASS if chosen.alone)]
    cases = [
        (name, make, change)
        for make, changes in ((changed_vit, CHANGES), (adapted_vit, ADAPTER_CHANGES))
        for name, change in changes.items()
        if chosen.only in name
    ]
    failed = 0
    for name, make, change in cases:
        began = perf_counter()
        stale = [m for group in groups for m in stale_methods(make, change, group, chosen.device, chosen.calls)]
        failed += bool(stale)
        print(f"{name:<45} {perf_counter() - began:6.1f} s  {', '.join(stale) or 'as a fresh copy'}", flush=True)
    print(f"{failed} of {len(cases)} changes stale × {len(ONE_PASS)} methods on {chosen.device}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
