"""Run a plan within a time limit and write its scores as one small table; run it again to continue.

    python studies/run_plan.py results/three_models.toml --data imagenet=DIR --data pets=DIR \
        --weights dinov2-s=FILE --device cuda --minutes 8 --out out/three_models

It does the same as ``vitrail bench``, with three differences. Parts are computed in the order of the images, all models
and methods of the first images first, so that a run that is stopped early has all models on fewer images. The tables
are joined with pyarrow alone. And what it writes is what ``results/collect.py`` and ``results/three_models.py`` read:
``manifest.json`` and, for each model, ``scores-MODEL.parquet`` with the scores of all images for which every model and
method is done, without curves. With ``--by-method``, methods are computed one after the other in the order given, and
the table has those that are done on all images; others are in ``incomplete-MODEL.parquet``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.bench.chunk import Chunk
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.plan_file import PlanOverrides, find_plan
from vitrail.bench.results_store import ResultsStore
from vitrail.bench.run import open_run

#: Columns of the tables.
COLUMNS = ("model", "dataset", "image", "method", "target", "protocol", "score", "value", "explained", "error")


def by_images(chunk: Chunk) -> tuple[int, int, int, int]:
    """Sort key: the first images of all data sets and models first."""
    return chunk.number, chunk.dataset, chunk.model, chunk.group


def with_methods(plan: str, methods: Sequence[str], out: Path, controls: bool = True) -> Path:
    """Write a copy of a plan with other methods, so that a few can be run again on the same images."""
    text = find_plan(plan).read_text(encoding="utf-8")
    if not controls:  # the plan may say the same
        text = re.sub(r"^controls = .*\n", "", text, flags=re.MULTILINE)
    line = f"methods = {json.dumps(list(methods))}" + ("" if controls else "\ncontrols = false")
    text = re.sub(r"^methods = \[.*?\]$", lambda _: line, text, flags=re.MULTILINE | re.DOTALL)
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.toml").write_text(text, encoding="utf-8")
    return out / "plan.toml"


def finished_chunks(store: ResultsStore, by_method: bool) -> list[Chunk]:
    """Chunks of those images for which every model and method is done, or of methods that are done on all images."""

    def unit(chunk: Chunk) -> tuple[int, ...]:
        return (chunk.model, chunk.group) if by_method else (chunk.dataset, chunk.number)

    missing = {unit(chunk) for chunk in store.missing()}
    return [chunk for chunk in store.chunks if unit(chunk) not in missing]


def join(chunks: Sequence[Chunk], out: Path) -> int:
    """Write the scores of some chunks as one table; return its number of rows."""
    parts = [pq.read_table(chunk.path, columns=list(COLUMNS)) for chunk in chunks]
    table = pa.concat_tables(parts)
    table = table.sort_by([(name, "ascending") for name in COLUMNS[:7]])
    texts = [name for name in COLUMNS if pa.types.is_string(table.schema.field(name).type)]
    pq.write_table(table, out, compression="zstd", use_dictionary=texts)
    return table.num_rows


def main() -> None:
    """Compute the missing parts, and write table and manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="name of a plan, or a file")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--weights", action="append", default=[], metavar="MODEL=FILE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=None, help="run these methods instead of the plan's")
    parser.add_argument("--no-controls", action="store_true", help="with --methods: without the plan's controls")
    parser.add_argument("--by-method", action="store_true", help="finish a method on all images before the next")
    parser.add_argument("--first", type=int, default=0, help="number of the first chunk of images (%(default)s)")
    parser.add_argument("--limit", type=int, default=None, help="maximum number of images of each data set")
    parser.add_argument("--minutes", type=float, default=8.0, help="start no further part after this time")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    pairs = [dict(word.split("=", 1) for word in given) for given in (args.data, args.weights)]
    overrides = PlanOverrides(*pairs, limit=args.limit)
    plan = with_methods(args.plan, args.methods, args.out, not args.no_controls) if args.methods else args.plan
    store = open_run(plan, args.out / "runs", device=args.device, overrides=overrides)
    engine = LocalEngine(1, args.device, store.context.plan.threads)
    specs = store.context.plan.specs()
    missing = sorted(store.missing(), key=by_images)
    missing = [chunk for chunk in missing if chunk.number >= args.first]
    if args.by_method:
        missing.sort(key=lambda chunk: min(map(specs.index, chunk.methods)))
    print(f"{store.context.key}: {len(missing)} of {len(store.chunks)} parts to do", flush=True)
    spent: dict[tuple[int, str], float] = {}
    for count, chunk in enumerate(missing):
        before = time.perf_counter()
        if before - started > 60 * args.minutes:
            print(f"stopped with {len(missing) - count} parts left: run again to continue", flush=True)
            break
        engine.run([chunk])
        key = chunk.model, chunk.methods[0] if len(chunk.methods) == 1 else "single-pass methods"
        spent[key] = spent.get(key, 0.0) + time.perf_counter() - before
        print(f"{chunk.name} {key[1]} {time.perf_counter() - before:.1f} s, "
              f"{time.perf_counter() - started:.0f} s in total", flush=True)  # fmt: skip
    done = finished_chunks(store, args.by_method)
    rows = 0
    for index, model in enumerate(store.context.plan.models):
        own = [chunk for chunk in done if chunk.model == index]
        rows += join(own, args.out / f"scores-{model.title}.parquet") if own else 0
        begun = [c for c in store.chunks if c.model == index and c not in own and c.path.is_file()]
        if args.by_method and begun:
            join(begun, args.out / f"incomplete-{model.title}.parquet")
    shutil.copy(store.folder / "manifest.json", args.out / "manifest.json")
    manifest = json.loads((args.out / "manifest.json").read_text(encoding="utf-8"))
    manifest["images"] = {
        data.title: len({i for chunk in done if chunk.dataset == d for i in chunk.indices})
        for d, data in enumerate(store.context.plan.dataset)
    }
    if args.by_method:
        manifest["plan"]["methods"] = [spec for spec in specs if any(spec in chunk.methods for chunk in done)]
        manifest["plan"]["controls"] = False  # those that were computed are among the methods
    (args.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{rows} rows of {manifest['images']} images; by model and method: {spent}", flush=True)


if __name__ == "__main__":
    main()
