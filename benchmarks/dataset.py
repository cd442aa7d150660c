"""Case of `vitrail bench` from files on disk to finished parts, against the rate of its forward passes.

The validation images of the assets are copied to a temporary folder until there are as many files as asked for, and
run through the path of `vitrail bench`: decoding, preprocessing, maps, perturbation tests, parts. Two plans:

- "reading": 2 methods and one class, so that files count;
- "table": the 20 methods of a single pass, predicted and true class, `chefer21` with both orders of removal.

Weights are random by default. The labels of the copies are the model's own predictions, except for one image in five,
which has the next class: about as often wrong as a trained model. The first chunk, which compiles the model and starts
the device, is not part of the rates, and is reported as "start".

Two bounds are measured in the same process, with images that are already on the device: "forwards" is the evaluator's
forward pass on full batches, nothing else; "in memory" explains and scores one batch again and again. The shares are
the times these would need, divided by the time of the run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import torch
from measuring import BASE, SINGLE_PASS_METHODS, TINY, Run, Timer, profile_call

from vitrail.bench import chunk as chunk_module
from vitrail.bench.chunk import Chunk
from vitrail.bench.context import BenchContext, open_context
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.explainer import ChunkExplainer
from vitrail.bench.parts import ScoreRows
from vitrail.bench.results_store import ResultsStore
from vitrail.bench.run import open_run
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import find_presets

TABLE_IMAGES = 50_000
PLANS: dict[str, tuple[list[str], str]] = {
    "reading": (["rollout", "gradcam"], "predicted"),
    "table": (list(SINGLE_PASS_METHODS), "both"),
}
#: Functions of the run whose time is added up, by the name of the phase.
PHASES: list[tuple[str, type, str]] = [
    ("predict", chunk_module._ChunkRunner, "_predict"),  # noqa: SLF001 - phases are private to the run
    ("explain", ChunkExplainer, "__call__"),
    ("score", Evaluator, "__call__"),
    ("explanation rows", ScoreRows, "add_explanations"),
    ("score rows", ScoreRows, "add_scores"),
]


class OutOfTimeError(Exception):
    """The time limit is over."""


def copy_images(assets: Path, root: Path, count: int) -> list[Path]:
    """Copy the images of the assets until there are ``count`` files, and drop them from the file cache."""
    sources = sorted((assets / "imagenet" / "val").rglob("*.*"))
    sources = [path for path in sources if path.suffix.lower() in (".jpeg", ".jpg", ".png")]
    (root / "val").mkdir(parents=True)
    shutil.copy(assets / "imagenet" / "classes.csv", root / "classes.csv")
    files = []
    for i in range(count):
        source = sources[i % len(sources)]
        target = root / "val" / f"{i:06d}{source.suffix}"
        target.write_bytes(source.read_bytes())
        files.append(target)
    os.sync()
    drop_from_cache(files)
    return files


def drop_from_cache(files: list[Path]) -> None:
    """Drop files from the file cache of the system, so that they are read from the disk."""
    for path in files if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_labels(root: Path, files: list[Path], classes: list[int]) -> None:
    """Label each file with a class, except for one in five, which gets the next class."""
    rows = [line.split(",") for line in (root / "classes.csv").read_text(encoding="utf-8").splitlines()[1:]]
    wnids = {int(row[0]): row[1] for row in rows}
    wrong = [(k + (i % 5 == 0)) % len(wnids) for i, k in enumerate(classes)]
    lines = [f"{file.name} {wnids[k]}" for file, k in zip(files, wrong, strict=True)]
    (root / "val_labels.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def plan_text(name: str, root: Path, args: SimpleNamespace) -> str:
    """The plan as TOML."""
    methods, targets = PLANS[name]
    dtype = f', dtype = "{args.dtype}"' if args.dtype else ""
    return f"""
name = "{name}"
models = [{{ name = "timm:{args.model}", weights = "{args.weights}"{dtype} }}]
methods = {json.dumps(methods)}
controls = false
targets = "{targets}"
protocols = ["chefer21"]
precision = "{args.precision}"
matmul = "tf32"
batch = {args.batch}
explain_batch = {args.explain_batch}
chunk = {args.chunk}
compile = {str(args.compile).lower()}
dataset = {{ name = "imagenet", root = "{root}", options = {{ labels = "{root}/val_labels.txt", boxes = false }} }}
"""


@contextmanager
def timed_phases() -> Iterator[dict[str, float]]:
    """Add up the seconds of each of ``PHASES`` in a block."""
    seconds = {name: 0.0 for name, _, _ in PHASES}
    originals = [(owner, name, getattr(owner, name)) for _, owner, name in PHASES]

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[phase] += time.perf_counter() - started

        return timed

    try:
        for (phase, owner, name), (_, _, function) in zip(PHASES, originals, strict=True):
            setattr(owner, name, wrap(phase, function))
        yield seconds
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    """Precision of a model."""
    return next(module.parameters()).dtype


def predict_all(context: BenchContext, count: int, distinct: int) -> list[int]:
    """Classes the model predicts for the first ``distinct`` images, repeated for their copies."""
    model = context.model(0)
    read = chunk_module.image_reader(Chunk("", "", "", "", 0, 0, 0, 0, (), ()), context)
    found: list[int] = []
    with torch.inference_mode(), chunk_module.matmul_precision(context.plan.matmul):
        for batch in context.read_ahead.batches("labels", read, range(distinct), context.plan.batch):
            assert batch.inputs is not None
            found += (
                model.loaded.module(batch.inputs.to(context.device, dtype_of(model.loaded.module))).argmax(1).tolist()
            )
    return [found[i % distinct] for i in range(count)]


def forwards_per_image(chunks: list[Chunk]) -> float:
    """Images evaluated for each image of some finished chunks, from the costs in their parts."""
    total, images = 0.0, 0
    for one in chunks:
        table = pq.read_table(one.path, columns=["image", "method", "protocol", "forwards", "error"]).to_pylist()
        errors = [row["error"] for row in table if row["error"]]
        if errors:
            raise SystemExit(f"{len(errors)} rows of {one.name} have errors, the first: {errors[0]}")
        costs = {(row["image"], row["method"]): row["forwards"] for row in table if row["protocol"] == "chefer21"}
        total, images = total + sum(costs.values()), images + len(one.indices)
    return total / max(images, 1)


def measure_run(store: ResultsStore, args: SimpleNamespace) -> dict[str, Any]:
    """Run all chunks, the first one apart; seconds, images and waits."""
    engine, chunks = LocalEngine(1, args.device, 1), store.chunks
    started = time.perf_counter()
    engine.run(chunks[:1])
    start = time.perf_counter() - started
    print(f"  first chunk {start:.1f} s", flush=True)
    ahead, finished = store.context.read_ahead, []
    ahead.waited, began = 0.0, time.perf_counter()

    def done(task: Any) -> None:
        finished.append((task, time.perf_counter() - began))
        images = sum(len(one.indices) for one, _ in finished)
        if len(finished) % max(1, len(chunks) // 10) == 0:
            print(f"  {images} images in {finished[-1][1]:.1f} s", flush=True)
        if finished[-1][1] > args.seconds:
            raise OutOfTimeError

    with timed_phases() as phases:
        try:
            engine.run(chunks[1:], done)
        except OutOfTimeError:
            print("  out of time", flush=True)
    seconds = finished[-1][1]
    images = sum(len(one.indices) for one, _ in finished)
    return {
        "images": images, "seconds": seconds, "images_per_second": images / seconds, "start_seconds": start,
        "forwards_per_image": forwards_per_image([one for one, _ in finished[:4]]),
        "seconds_waiting_for_data": ahead.waited, "seconds_by_phase": phases,
        "hours_for_50000": (start + TABLE_IMAGES * seconds / images) / 3600,
    }  # fmt: skip


def bounds(store: ResultsStore, name: str, args: SimpleNamespace, timer: Timer) -> dict[str, float]:
    """Rates of the evaluator's bare forward passes, and of explaining and scoring a batch in memory."""
    context = store.context
    model, one = context.model(0), store.chunks[0]
    read = chunk_module.image_reader(one, context)
    size = min(args.batch, args.bound_images)
    batch = next(context.read_ahead.batches("bounds", read, one.indices[:size], size))
    assert batch.inputs is not None
    images = batch.inputs.to(context.device, dtype_of(model.loaded.module))
    evaluate = context.evaluator(model, find_presets(["chefer21"]), context.batch)
    full = images[torch.arange(args.batch, device=images.device) % len(images)]

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(8):
                evaluate.log_probs(full)

    explain = ChunkExplainer(context, model, context.key)
    methods, both = list(one.methods), PLANS[name][1] == "both"
    ids = tuple(truth.id for truth in batch.truths)
    labels = torch.tensor([truth.label for truth in batch.truths])
    with torch.inference_mode():
        predicted = evaluate.model(images).argmax(1).cpu()
    # Where the label is the predicted class, the row has one class twice, as in the run.
    classes = torch.stack([predicted, labels], 1) if both else predicted[:, None]
    in_memory = {"explain": 0.0, "score": 0.0}

    def explain_batch() -> Any:
        return explain(ids, images, classes, methods)[0]

    with chunk_module.matmul_precision(context.plan.matmul):
        per_pass = min(timer.seconds(forward) for _ in range(3)) / 8 / args.batch
        found = explain_batch()
        in_memory["explain"] = timer.seconds(explain_batch)
        maps = {method: own.maps[:, 0] for method, own in found.items()}
        label_maps = {method: own.maps[:, 1] for method, own in found.items()} if both else {}
        for method in label_maps:
            if method in ("rollout", "raw_attention"):
                label_maps[method] = maps[method]
        settings = {"labels": labels, "label_maps": label_maps, "ids": ids, "predicted": predicted}
        counted: list[int] = []
        in_memory["score"] = timer.seconds(lambda: counted.append(evaluate(images, maps, **settings).forwards.total))
        passes = counted[0]
    return {
        "forward_passes_per_second": 1 / per_pass,
        "scored_passes_per_second": passes / in_memory["score"],
        "explain_ms_per_image": 1e3 * in_memory["explain"] / len(images),
        "score_ms_per_image": 1e3 * in_memory["score"] / len(images),
        "passes_per_image": passes / len(images),
        "images_per_second": len(images) / sum(in_memory.values()),
    }


def measure(name: str, root: Path, files: list[Path], args: SimpleNamespace, timer: Timer) -> dict[str, Any]:
    """Rate of one plan, and its bounds."""
    count = args.reads if name == "reading" else args.images
    plan = root.parent / f"{name}.toml"
    write_labels(root, files, [0] * len(files))
    text = plan_text(name, root, args).replace("dataset = {", f"dataset = {{ limit = {count},")
    plan.write_text(text, encoding="utf-8")
    if args.classes is None:
        store = open_run(plan, root.parent / "labels", device=args.device)
        distinct = min(args.distinct, count)
        args.classes = predict_all(store.context, len(files), distinct)
        open_context.cache_clear()
    write_labels(root, files, args.classes)
    drop_from_cache(files)
    store = open_run(plan, root.parent / "runs", device=args.device)
    print(f"{name}: {count} images, {len(store.chunks)} chunks of {args.chunk}", flush=True)
    result = measure_run(store, args)
    limits = bounds(store, name, args, timer)
    rate = result["images_per_second"]
    result["bounds"] = limits
    result["share_of_forwards"] = rate * result["forwards_per_image"] / limits["forward_passes_per_second"]
    result["share_of_in_memory"] = rate / limits["images_per_second"]
    print(f"{name}: {rate:.1f} images/s, {rate * result['forwards_per_image']:.0f} forward passes/s "
          f"({result['forwards_per_image']:.0f} per image), bare {limits['forward_passes_per_second']:.0f}/s; in "
          f"memory {limits['images_per_second']:.1f} images/s (explain {limits['explain_ms_per_image']:.2f} ms, score "
          f"{limits['score_ms_per_image']:.2f} ms per image); share of forwards {result['share_of_forwards']:.3f}, of "
          f"in memory {result['share_of_in_memory']:.3f}; waited {result['seconds_waiting_for_data']:.2f} s of "
          f"{result['seconds']:.1f}; {result['hours_for_50000']:.2f} h for {TABLE_IMAGES:,}; phases "
          f"{ {k: round(v, 2) for k, v in result['seconds_by_phase'].items()} }", flush=True)  # fmt: skip
    again = partial(LocalEngine(1, args.device, 1).run, store.chunks[:2])
    return result | {"again": partial(profile_call, again)}


def dataset(
    run: Run, *, model: str = BASE, weights: str = "random", plans: tuple[str, ...] = tuple(PLANS), reads: int = 5000,
    images: int = 1000, distinct: int = 1000, batch: int = 256, explain_batch: int = 64, bound_images: int = 128,
    chunk: int = 256, precision: str = "bfloat16", dtype: str = "", compile: bool = False, seconds: float = 90.0,  # noqa: A002
) -> dict[str, Any]:  # fmt: skip
    """`vitrail bench` from files on disk: images per second, and shares of the rates of its passes; needs --assets."""
    if run.assets is None:
        raise SystemExit("dataset copies images: pass --assets, a folder with imagenet/val and imagenet/classes.csv")
    args = SimpleNamespace(**{name: value for name, value in locals().items() if name != "run"})
    args.device, args.classes = str(run.device), None
    if run.tiny:
        plans, args.model, args.reads, args.images, args.distinct, args.batch = plans[:1], TINY, 4, 4, 2, 2
        args.chunk, args.explain_batch, args.bound_images, args.precision = 2, 2, 2, "float32"
    timer, results = run.timer(1), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "imagenet"
        most = max(args.reads if "reading" in plans else 0, args.images if "table" in plans else 0)
        files = copy_images(run.assets.resolve(), root, most)
        for name in plans:
            results[name] = measure(name, root, files, args, timer)
            if run.profile:
                results[name]["profile"] = results[name].pop("again")(run.device)
                print(json.dumps(results[name]["profile"], indent=1), flush=True)
            else:
                del results[name]["again"]
            run.save(results)
            open_context.cache_clear()
    return results
