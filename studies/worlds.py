"""Run the plans of all worlds, and measure whether the check of single maps tells right maps from wrong ones.

    python studies/worlds.py --device cuda --out OUT
    python studies/worlds.py --pairs 4 --checked 2 --methods attnlrp transformer_mm --out OUT    # rehearsal on the CPU

One process for each world and part, all at the same time; one that is not done after ``--minutes`` is ended. In OUT,
each plan has a folder with ``results.parquet`` and ``manifest.json``, which ``results/worlds.py OUT/PLAN …`` reads, and
``checks.json`` has the areas under the ROC curve of the check's statistic, computed from the values of each map in
``checks-TASK.parquet`` (statistic, p-value and whether it passes, by kind and source of the map, two targets for each
example), which ``results/worlds.py --checks`` copies. A run that was ended continues where it was.

The check: right maps are the cells of the target itself (the ground truth) and the maps of methods that tell the two
things apart on the world; wrong maps are the same maps inverted, shuffled, or of the other thing, and noise. The area
is that of all maps together, as for classifiers. Intervals are percentile bootstraps over the examples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from check_values import WORLD_DRAWS, removal_values, summarise_known
from run_plan import COLUMNS, with_methods
from study import Clock, manifest, options, save_json
from torch import Tensor
from value_tables import Values, in_single_precision, values_path, write_values

import vitrail
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.plan_file import PlanOverrides, find_plan
from vitrail.bench.run import open_run, run_missing
from vitrail.bench.world_tasks import WORLD_TASKS
from vitrail.errors import GuessWarning, MapWarning
from vitrail.trust import check_maps
from vitrail.trust.signal_check import cell_means

PLANS = ("scenes_clip", "scenes_detr", "scenes_seg", "scenes_video", "tones")
#: Model of each task, and the methods that tell its two things apart in at least 95 % of the maps.
CHECKED = {
    "captions": ("scenes-clip", ("attnlrp",)),
    "boxes": ("scenes-detr", ("attnlrp", "transformer_mm", "grad_rollout")),
    "regions": ("scenes-seg", ("attnlrp", "transformer_mm", "leadlight")),
    "movements": ("scenes-video", ("attnlrp",)),
    "tones": ("tones", ("attnlrp", "transformer_mm", "leadlight")),
}


def run_world(plan: str, pairs: int, methods: Sequence[str], device: str, out: Path) -> None:
    """Run a plan, and write its scores as one table."""
    file = with_methods(plan, methods, out / plan) if methods else find_plan(plan)
    text = file.read_text(encoding="utf-8").replace("count = 200", f"count = {pairs}")
    (out / plan).mkdir(parents=True, exist_ok=True)
    (out / plan / "plan.toml").write_text(text, encoding="utf-8")
    store = open_run(out / plan / "plan.toml", out / "runs", device=device, overrides=PlanOverrides(home=None))
    run_missing(store, LocalEngine(1, device, store.context.plan.threads))
    table = pa.concat_tables([pq.read_table(chunk.path, columns=list(COLUMNS)) for chunk in store.chunks])
    pq.write_table(table, out / plan / "results.parquet", compression="zstd")
    content = (store.folder / "manifest.json").read_text(encoding="utf-8")
    (out / plan / "manifest.json").write_text(content, encoding="utf-8")


def with_map(explanation: Any, values: Tensor, b: int, k: int) -> Any:
    """An explanation with one map replaced, given the values of its cells."""
    size = explanation.maps.shape[2:]
    grid = explanation.maps.new_zeros(*explanation.maps.shape[:2], *values.shape)
    grid[b, k] = values.to(grid)
    maps = explanation.maps.clone()
    maps[b, k] = F.interpolate(values[None, None].to(maps), size=tuple(size))[0, 0]
    return replace(explanation, grid=grid, maps=maps, constant=torch.zeros_like(explanation.constant))


def maps_of(found: Any, masks: Tensor, cells: tuple[int, ...], b: int, k: int) -> dict[tuple[str, str], Any]:
    """Right and wrong maps of one target, by kind and name."""
    generator = torch.Generator().manual_seed(2 * b + k)
    first = next(iter(found.values()))
    own = {"truth": [cell_means(masks[b, i].double(), cells) for i in range(2)]}
    for method, one in found.items():
        grid = one.grid if tuple(one.grid.shape[2:]) == cells else None
        own[method] = [
            cell_means(one.maps[b, i].double().cpu(), cells) if grid is None else grid[b, i].double().cpu()
            for i in range(2)
        ]
    made: dict[tuple[str, str], Any] = {}
    for name, values in own.items():
        order = torch.randperm(values[k].numel(), generator=generator)
        made["right", name] = values[k]
        made["inverted", name] = -values[k]
        made["shuffled", name] = values[k].flatten()[order].view(cells)
        made["other thing", name] = values[1 - k]
    made["noise", "noise"] = torch.rand(cells, generator=generator, dtype=torch.float64)
    return {key: with_map(first, values, b, k) for key, values in made.items()}


def check_world(task: str, count: int, device: str) -> tuple[dict[str, Any], Values]:
    """Area under the ROC curve of the check's statistic on one world, share of the maps that pass, and their values."""
    name, methods = CHECKED[task]
    loaded = vitrail.load(name)
    loaded.module.to(device)
    clock, checked = Clock(), []
    for start in range(0, count, 20):
        batch = WORLD_TASKS[task](loaded.module, "test", range(start, min(start + 20, count)))
        found = vitrail.explain(loaded, batch.on(device), methods=list(methods), target=batch.targets)
        source = next(iter(found.values())).source
        for b in range(len(batch.targets)):
            for k in range(2):
                made = maps_of(found, batch.masks, batch.cells, b, k)
                named = {f"{kind}: {label}": one for (kind, label), one in made.items()}
                checks = check_maps(source, named, b, k, tests=["removal"], batch_size=512)
                checked += [(key, checks[key]) for key in named]
    values = in_single_precision(removal_values(checked))
    settings = {"model": name, "examples": count, "removal": checked[0][1].removal}
    return {
        **settings,
        **summarise_known(values, WORLD_DRAWS),
        "seconds": clock.seconds,
        "manifest": manifest(device),
    }, values


def run_all(args: Any) -> None:
    """Start a process for each part, wait for all of them, and collect the checks."""
    args.out.mkdir(parents=True, exist_ok=True)
    parts = [f"plan:{plan}" for plan in args.plans] + [f"check:{task}" for task in args.tasks]
    command = [sys.executable, __file__, "--device", args.device, "--out", str(args.out), "--pairs", str(args.pairs),
               "--checked", str(args.checked), *(["--methods", *args.methods] if args.methods else [])]  # fmt: skip
    clock, running, waiting = Clock(args.minutes), {}, list(parts)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    while running or waiting:
        while waiting and len(running) < args.processes:
            part = waiting.pop(0)
            log = (args.out / f"{part.replace(':', '-')}.log").open("w", encoding="utf-8")
            running[part] = subprocess.Popen([*command, "--part", part], stdout=log, stderr=log, env=environment)  # noqa: S603
        time.sleep(0.5)
        for part, process in list(running.items()):
            late = clock.seconds > clock.limit
            if late:
                process.terminate()
            if late or process.poll() is not None:
                state = "ended after the limit" if late else "failed, see its log" if process.returncode else "done"
                print(f"{part}: {state}, {clock}", flush=True)
                del running[part]
        if clock.seconds > clock.limit:
            waiting.clear()
    checks = {task: json.loads(file.read_text(encoding="utf-8"))
              for task in CHECKED if (file := args.out / f"check-{task}.json").is_file()}  # fmt: skip
    save_json(args.out / "checks.json", checks)


def main() -> None:
    """Run all parts, or the one that is named."""
    parser = options(__doc__, minutes=4.0, methods=None)
    parser.set_defaults(out=Path("out/worlds"))
    parser.add_argument("--pairs", type=int, default=200, help="examples of each plan")
    parser.add_argument("--checked", type=int, default=40, help="examples whose maps are checked")
    parser.add_argument("--processes", type=int, default=10, help="parts that run at the same time")
    parser.add_argument("--plans", nargs="*", default=list(PLANS))
    parser.add_argument("--tasks", nargs="*", default=list(CHECKED))
    parser.add_argument("--part", default="", help="one part only, plan:NAME or check:TASK")
    args = parser.parse_args()
    for category in (GuessWarning, MapWarning):
        warnings.simplefilter("ignore", category)
    kind, _, name = args.part.partition(":")
    if kind == "plan":
        run_world(name, args.pairs, args.methods or (), args.device, args.out)
    elif kind == "check":
        result, values = check_world(name, args.checked, args.device)
        save_json(args.out / f"check-{name}.json", result)
        write_values(values_path(args.out / "checks.json", name), values)
    else:
        run_all(args)


if __name__ == "__main__":
    main()
