"""Recompute the published means and intervals from the values of each example, and compare.

    python studies/recompute.py                   # all tables
    python studies/recompute.py pairs --show      # the numbers of one of them

Values are kept in single precision, so that numbers agree to about 10⁻⁵. A table that differs is named, and the command
ends with exit code 1. Tables of ``results/`` are recomputed by their own scripts there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pairs
from study import RESULTS, read_json
from value_tables import read_values, values_path

#: What a row is, its published numbers, and the same from the values of each example.
Row = tuple[str, list[float], list[float]]
TOLERANCE = 2e-5


def class_discrimination() -> Iterator[Row]:
    """Class-discrimination accuracy and relevance mass on scenes."""
    for name in ("pairs-scenes", "pairs-gradtoken"):
        path = RESULTS / f"{name}.json"
        for result in read_json(path, None)["results"]:
            rows = pairs.summarise(read_values(values_path(path, result["model"])))
            for method, published in result["methods"].items():
                for score in pairs.SCORES:
                    yield f"{name} {method} {score}", published[score], rows[method][score]


TABLES: dict[str, Callable[[], Iterator[Row]]] = {"pairs": class_discrimination}


def is_same(published: list[float], recomputed: list[float]) -> bool:
    """Whether two rows of numbers agree up to the precision of the values."""
    return len(published) == len(recomputed) and np.allclose(published, recomputed, atol=TOLERANCE, rtol=TOLERANCE)


def main() -> None:
    """Compare the tables that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--show", action="store_true", help="print every row")
    args = parser.parse_args()
    failed = False
    for name in args.tables or TABLES:
        rows = list(TABLES[name]())
        differ = [row for row in rows if not is_same(*row[1:])]
        print(f"{name}: {len(rows)} rows, {len(differ)} differ")
        for what, published, recomputed in rows if args.show else differ:
            print(f"  {what}: {published} published, {recomputed} recomputed")
        failed = failed or bool(differ) or not rows
    sys.exit(failed)


if __name__ == "__main__":
    main()
