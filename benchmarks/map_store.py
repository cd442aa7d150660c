"""Case of the store of maps: a million maps on disk, opened and read one by one."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import Run

from vitrail.bench.map_store import open_maps, write_index, write_shard


def write_store(folder: Path, maps: int, shard: int, grid: int) -> None:
    """Write random maps under ids like those of ImageNet."""
    rows: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(0)
    for number, start in enumerate(range(0, maps, shard)):
        count = min(shard, maps - start)
        relevance = torch.rand(count, grid, grid, generator=generator)
        part = f"part-{number:05d}"
        write_shard(folder / "parts" / f"{part}.safetensors", {"gradtoken": relevance}, {"key": "benchmark"})
        rows += [
            {
                "image": f"n{(start + i) % 1000:08d}/ILSVRC2012_{start + i:08d}.JPEG", "method": "gradtoken",
                "class": (start + i) % 1000, "name": f"class {(start + i) % 1000}", "flat": False, "part": part,
                "probability": float(relevance[i, 0, 0]), "offset": i,
            }
            for i in range(count)
        ]  # fmt: skip
    write_index(folder, rows, {"key": "benchmark", "model": "random", "methods": ["gradtoken"], "grid": [grid, grid]})


def map_store(
    run: Run, *, maps: int = 1_000_000, shard: int = 8192, grid: int = 14, reads: int = 1000
) -> dict[str, Any]:
    """Size of a store of maps, time to open it, and time to read one map by its id."""
    maps, reads, repeats = run.count(maps, 100), run.count(reads, 10), run.repeats or run.count(5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder, maps, run.count(shard, 30), grid)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        opened = [_timed(lambda: open_maps(folder)) for _ in range(repeats)]
        store = open_maps(folder)
        ids = random.Random(0).sample(store.ids, min(reads, maps))  # noqa: S311 - a sample, not a secret
        store = open_maps(folder)  # no file of maps is open yet
        taken = [_timed(lambda image=image: store.read(image)) for image in ids]
    results = {
        "maps": maps, "grid": grid, "files": -(-maps // run.count(shard, 30)), "megabytes": size / 1e6,
        "open_seconds": _summary([wall for wall, _ in opened]),
        "open_processor_seconds": _summary([own for _, own in opened]),
        "read_ms": _summary([1000 * wall for wall, _ in taken]),
        "read_processor_ms": _summary([1000 * own for _, own in taken]), "cores": os.cpu_count(),
    }  # fmt: skip
    print("  ".join(f"{key} {value}" for key, value in results.items()))
    return results


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and seconds of this process, which do not depend on other processes."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - own


def _summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"median": statistics.median(ordered), "99_percent": ordered[int(0.99 * (len(ordered) - 1))]}
    return {name: round(value, 4) for name, value in (at | {"largest": ordered[-1]}).items()}
