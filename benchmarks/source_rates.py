"""Images per second from tar shards, by workers, against the same images in memory."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Run
from PIL import Image

from vitrail.bench.engines import BenchTask
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.folder import explain_folder
from vitrail.data.addresses import open_source
from vitrail.data.scenes import render
from vitrail.models import load
from vitrail.models.preprocess import open_image
from vitrail.pipeline.map_rows import explain_rows
from vitrail.pipeline.memory import BatchLimit


def write_shards(folder: Path, images: int, per_shard: int) -> None:
    """Write scenes as tar shards of JPEG files."""
    for shard, start in enumerate(range(0, images, per_shard)):
        with tarfile.open(folder / f"scenes-{shard:03d}.tar", "w") as tar:
            for number in range(start, min(images, start + per_shard)):
                content = io.BytesIO()
                Image.fromarray(render(number, 2).image).save(content, "JPEG")
                info = tarfile.TarInfo(f"{number:06d}.jpg")
                info.size = content.tell()
                content.seek(0)
                tar.addfile(info, content)


def source_rates(
    run: Run, *, model: str = "scenes", methods: tuple[str, ...] = ("gradtoken", "vtranm"), images: int = 512,
    batch: int = 32, workers: tuple[int, ...] = (1, 2, 4),
) -> dict[str, Any]:  # fmt: skip
    """`vitrail explain` of tar shards, images per second by workers, against the same images in memory.

    The rate of a run is taken between its first and its last part, so start-up does not count. In memory, one process
    explains preprocessed images.
    """
    batch = run.count(batch, 4)
    count = run.count(images, 4 * batch)
    with tempfile.TemporaryDirectory(prefix="vitrail-shards-") as name:
        folder = Path(name)
        write_shards(folder, count, 2 * batch)
        loaded = load(model)
        loaded.module.to(run.device)
        source = open_source(folder)
        assert loaded.preprocess is not None
        inputs = {item.id: loaded.preprocess(open_image(item.id, source.open(item))) for item in source.items}
        names = list(inputs)

        def explain_batch(start: int) -> None:
            some = {one: inputs[one] for one in names[start : start + batch]}
            list(explain_rows(loaded, some, methods, None, BatchLimit(batch)))

        explain_batch(0)
        begun = time.perf_counter()
        for start in range(0, count, batch):
            explain_batch(start)
        found: dict[str, Any] = {"in_memory": count / (time.perf_counter() - begun), "from_shards": {}}
        for number in workers[:1] if run.tiny else workers:
            times: list[float] = []

            def note(_: BenchTask, times: list[float] = times) -> None:
                times.append(time.perf_counter())

            explain_folder(
                folder, folder / f"out{number}", model=model, methods=methods, chunk=batch, batch=batch,
                device=str(run.device), engine=LocalEngine(number, str(run.device)), done=note,
            )  # fmt: skip
            rate = (count - batch) / (times[-1] - times[0])
            found["from_shards"][str(number)] = rate
            print(f"{number} workers: {rate:.1f} images per second", flush=True)
    best = max(found["from_shards"].values())
    return found | {"images": count, "cores": os.cpu_count(), "share_of_in_memory": best / found["in_memory"]}
