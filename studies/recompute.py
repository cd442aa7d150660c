"""Recompute the published means and intervals from the values of each example, and compare.

    python studies/recompute.py                   # all tables
    python studies/recompute.py pairs --show      # the numbers of one of them
    python studies/recompute.py trust --folder OUT --strict

Values are kept in single precision, so that numbers agree to about 10⁻⁵. A row that differs is named, and the command
ends with exit code 1. Rows that were measured before values were kept have none: they are counted, and fail only with
``--strict``. Tables of ``results/`` that runs of plans give are recomputed by their own scripts there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import recomputed_maps as maps
import recomputed_protocols as protocols
import recomputed_scores as scores
from study import RESULTS
from value_tables import RecomputedRow

TOLERANCE = 2e-5
TABLES: dict[str, Callable[[Path], Iterator[RecomputedRow]]] = {
    "pairs": maps.class_discrimination, "trust": maps.checks, "worlds": maps.world_checks, "needles": maps.needles,
    "compare": maps.comparisons, "paper-tables": scores.paper_tables, "ablations": scores.ablations,
    "gradtoken": scores.gradtoken, "vitcx": scores.vitcx, "shapley": scores.shapley,
    "overdetermination": scores.overdetermined, "cards": scores.cards, "vit_shapley": scores.vit_shapley,
    "grids": protocols.grids, "movies": protocols.movies, "funnybirds": protocols.birds,
}  # fmt: skip


def is_same(published: list[float], recomputed: list[float]) -> bool:
    """Whether two rows of numbers agree up to the precision of the values."""
    return len(published) == len(recomputed) and np.allclose(published, recomputed, atol=TOLERANCE, rtol=TOLERANCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the tables that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="folder of the results (studies/results)")
    parser.add_argument("--show", action="store_true", help="print every row")
    parser.add_argument("--strict", action="store_true", help="rows without values are failures")
    args = parser.parse_args(arguments)
    failed = False
    for name in args.tables or TABLES:
        rows = list(TABLES[name](args.folder))
        without = [row for row in rows if row[2] is None]
        differ = [row for row in rows if row[2] is not None and not is_same(row[1], row[2])]
        print(f"{name}: {len(rows)} rows, {len(differ)} differ, {len(without)} without values")
        for what, published, recomputed in rows if args.show else differ + without * args.strict:
            print(
                f"  {what}: {published} published, {'no values' if recomputed is None else f'{recomputed} recomputed'}"
            )
        failed = failed or bool(differ) or not rows or (args.strict and bool(without))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
