"""Print the coverage of each package, lines and branches together, and fail where it is below its floor.

Reads .coverage, which the tests write with COVERAGE=1, and the floors in pyproject.toml.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Sum by package and compare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", path], cwd=ROOT, check=True)
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
    with (ROOT / "pyproject.toml").open("rb") as file:
        floors = tomllib.load(file)["tool"]["vitrail"]["coverage"]
    covered: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for name, found in files.items():
        parts = Path(name).parts[2:]  # after src/vitrail
        one = found["summary"]
        for package in (parts[0] if len(parts) > 1 else "top level", "all"):
            covered[package] += one["covered_lines"] + one["covered_branches"]
            total[package] += one["num_statements"] + one["num_branches"]
    low = []
    print(f"{'package':14} {'coverage':>9} {'floor':>7}")
    for package in sorted(total, key=lambda p: (p == "all", p)):
        share, floor = 100 * covered[package] / max(1, total[package]), floors.get(package)
        print(f"{package:14} {share:8.1f}% {'' if floor is None else f'{floor:6}%'}")
        if floor is not None and share < floor:
            low.append(f"{package}: {share:.1f} % is below the floor of {floor} %")
    sys.exit("\n".join(low) or 0)


if __name__ == "__main__":
    main()
