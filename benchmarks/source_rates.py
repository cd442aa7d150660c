"""Images per second from tar shards, by workers, against the same images in memory."""

from __future__ import annotations

import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measuring import Run
from PIL import Image
from torch import Tensor

from vitrail.bench import folder_chunk
from vitrail.bench.engines import BenchTask
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.folder import explain_folder
from vitrail.bench.folder_chunk import FolderChunk, _image_reader
from vitrail.data.addresses import open_source
from vitrail.data.scenes import render
from vitrail.models import load
from vitrail.models.preprocess import open_image
from vitrail.pipeline import map_rows
from vitrail.pipeline.explain import explain
from vitrail.pipeline.map_rows import explain_rows
from vitrail.pipeline.memory import BatchLimit


def encoded_images(assets: Path | None, count: int, side: int) -> list[bytes]:
    """JPEG files: photographs enlarged to a shorter side, as files of ImageNet have it, or scenes without assets."""
    if assets is None:
        images = (Image.fromarray(render(number, 2).image) for number in range(count))
    else:
        images = (Image.open(path).convert("RGB") for path in sorted(assets.glob("imagenet/val/*/*.JPEG"))[:count])

    def encoded(image: Image.Image) -> bytes:
        content = io.BytesIO()
        scale = side / min(image.size) if assets is not None else 1
        image.resize((round(image.width * scale), round(image.height * scale))).save(content, "JPEG", quality=95)
        return content.getvalue()

    with ThreadPoolExecutor() as pool:
        return list(islice(cycle(list(pool.map(encoded, images))), count))


def write_shards(folder: Path, files: list[bytes], per_shard: int) -> None:
    """Write image files as tar shards."""
    for shard, start in enumerate(range(0, len(files), per_shard)):
        with tarfile.open(folder / f"images-{shard:03d}.tar", "w") as tar:
            for number, content in enumerate(files[start : start + per_shard], start):
                info = tarfile.TarInfo(f"{number:06d}.jpg")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


class Sections:
    """`vitrail.explain` that measures its calls, the wait for the device after each, and the time between two."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.ended = device, 0.0
        self.spent: dict[str, list[float]] = {"call": [], "device": [], "between": []}

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Explain and measure."""
        begun = time.perf_counter()
        if self.ended:
            self.spent["between"].append(begun - self.ended)
        result = explain(*args, **options)
        called = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.ended = time.perf_counter()
        self.spent["call"].append(called - begun)
        self.spent["device"].append(self.ended - called)
        return result

    def milliseconds(self) -> dict[str, float]:
        """Mean of each section; empty where this process called nothing."""
        return {name: round(1000 * statistics.mean(one), 2) for name, one in self.spent.items() if one}


def processor_seconds(processes: Sequence[BaseProcess]) -> float:
    """Processor time that processes of this machine have used, under Linux; of the calling one if there are none."""
    if not processes:
        return time.process_time()
    stats = (Path(f"/proc/{process.pid}/stat") for process in processes)
    fields = (path.read_text("ascii").rpartition(")")[2].split() for path in stats if path.exists())
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def steady_rate(
    times: Sequence[float], used: Sequence[float], chunk: int, workers: int, *, one_late: bool
) -> tuple[float, float]:
    """Images per second, and processor seconds per image, after the part with which every worker has begun.

    Args:
        times: When each part was reported as done.
        used: Processor time at these moments.
        chunk: Images of a part.
        workers: Number of workers.
        one_late: Whether a part is reported when the next one is computed, as by a worker in the calling process. The
            last two parts are then reported together, and the last report counts for nothing.
    """
    last = -2 if one_late else -1
    images = chunk * (len(times) - workers - one_late)
    return images / (times[last] - times[workers - 1]), (used[last] - used[workers - 1]) / images


def source_rates(
    run: Run, *, model: str = "scenes", weights: str = "", methods: tuple[str, ...] = ("gradtoken", "vtranm"),
    images: int = 512, batch: int = 32, chunk: int = 32, side: int = 375, workers: tuple[int, ...] = (1, 2, 4),
    minutes: float = 8.0, decoders: int = folder_chunk.MAX_DECODERS,
) -> dict[str, Any]:  # fmt: skip
    """`vitrail explain` of tar shards, images per second by workers, against the same images in memory.

    The rate of a run is taken between the part with which every worker has begun and the last one, so start-up does
    not count. In memory, one process explains batches of preprocessed images, on a GPU from pinned memory, and writes
    nothing; ``command_in_memory`` is the same command as from shards, with images that were read before. Repeats are
    interleaved and end after some minutes. ``decoders`` is the most processes that decode images for a GPU.
    ``ms_per_batch`` says where the time of a single worker goes: calls of ``explain`` until they return, waiting for
    the device, and everything between two calls. Seconds of the processor do not count time in which other programs
    run.
    """
    folder_chunk.MAX_DECODERS = decoders
    begun = time.perf_counter()
    batch, chunk = run.count(batch, 4), run.count(chunk, 8)
    count = run.count(images, 4 * chunk)
    counts = workers[:1] if run.tiny else workers
    rates: dict[str, list[float]] = {
        "in_memory": [],
        "command_in_memory": [],
        **{f"workers_{number}": [] for number in counts},
    }
    waited: list[float] = []
    found: dict[str, Any] = {"images": count, "cores": os.cpu_count(), "seconds_waiting_for_images": waited}
    sections = found["ms_per_batch"] = {}
    processor: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="vitrail-shards-") as name:
        shards = Path(name)
        files = encoded_images(run.assets, count, side)
        found["mean_bytes"] = sum(map(len, files)) // count
        write_shards(shards, files, chunk)
        loaded = load(model, pretrained=False) if weights == "random" else load(model, weights or None)
        loaded.module.to(run.device)
        source = open_source(shards)
        preprocess = loaded.preprocess
        assert preprocess is not None
        with ThreadPoolExecutor() as pool:
            read = pool.map(lambda item: preprocess(open_image(item.id, source.open(item))), source.items)
            inputs = {item.id: one for item, one in zip(source.items, read, strict=True)}
        stacked = torch.stack(list(inputs.values()))
        stacked = stacked.pin_memory() if run.device.type == "cuda" else stacked
        print(f"{count} images ready after {time.perf_counter() - begun:.0f} s", flush=True)

        def in_memory(first: int = 0) -> float:
            start, ids = time.perf_counter(), list(inputs)
            with sectioned("in_memory"):
                for position in range(first, count, batch):
                    some = slice(position, position + batch)
                    given = stacked[some].to(run.device, non_blocking=True)
                    list(explain_rows(loaded, ids[some], given, methods, None, BatchLimit(batch)))
            return (count - first) / (time.perf_counter() - start)

        @contextmanager
        def sectioned(name: str) -> Iterator[None]:
            with mock.patch.object(map_rows, "explain", Sections(run.device)) as timed:
                yield
            sections[name] = timed.milliseconds() or sections.get(name)

        def command_in_memory(repeat: int) -> float:
            def reader(task: FolderChunk, _: str, group: int) -> Callable[[int], list[Tensor]]:
                return lambda start: [inputs[item.id] for item in task.images[start : start + group]]

            with mock.patch.object(FolderChunk, "_reader", reader):
                return from_shards(1, f"memory{repeat}", "command_in_memory")

        def from_shards(number: int, repeat: int | str, name: str = "shards") -> float:
            times: list[float] = []
            used: list[float] = []
            engine = LocalEngine(number, str(run.device))

            def note(_: BenchTask) -> None:
                times.append(time.perf_counter())
                used.append(processor_seconds(engine.processes))

            reader = _image_reader(str(run.device))
            before = reader.waited
            with sectioned(name):
                explain_folder(
                    shards, shards / f"out{repeat}-{number}", model=model, weights=weights or None, methods=methods,
                    chunk=chunk, batch=batch, device=str(run.device), done=note,
                    engine=engine,
                )  # fmt: skip
            if name == "shards":
                waited.append(reader.waited - before)  # in this process: of a single worker on a GPU
            rate, own = steady_rate(times, used, chunk, number, one_late=not engine.processes)
            processor.setdefault(f"{name}_{number}", []).append(own)
            return rate

        in_memory(max(0, count - 4 * batch))  # the model is read and its passes recorded
        from_shards(1, "first")  # the same, and processes that decode have started
        folder_chunk._decoder().wait()  # noqa: SLF001
        waited.clear()
        processor.clear()
        for repeat in range(run.repeats or run.count(3, 1)):
            if repeat and time.perf_counter() - begun > 60 * minutes * repeat / (repeat + 1):
                break
            rates["in_memory"].append(in_memory())
            rates["command_in_memory"].append(command_in_memory(repeat))
            for number in counts:
                rates[f"workers_{number}"].append(from_shards(number, repeat))
            found["rates"] = rates
            found["images_per_second"] = {key: statistics.median(values) for key, values in rates.items()}
            found["processor_seconds_per_image"] = {key: statistics.median(one) for key, one in processor.items()}
            found["share_of_in_memory"] = {
                key: statistics.median([a / b for a, b in zip(values, rates["in_memory"], strict=True)])
                for key, values in rates.items()
            }
            found["share_of_command_in_memory"] = statistics.median([
                a / b for a, b in zip(rates[f"workers_{counts[0]}"], rates["command_in_memory"], strict=True)
            ])  # fmt: skip
            run.save(found)
            print({key: round(values[-1], 1) for key, values in rates.items()}, flush=True)
    return found
