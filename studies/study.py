"""Shared by the studies: options of the command line, time limits, results that are resumed, manifests."""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail.methods.registry import METHODS
from vitrail.pipeline.provenance import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
#: Attention, gradient and relevance methods.
SINGLE_PASS_METHODS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance")]
#: Options of several studies, as `options` adds them by name.
OPTIONS: dict[str, dict[str, Any]] = {
    "--assets": {"type": Path, "help": "folder with weights/ and the data sets that the description names"},
    "--batch": {"type": int, "help": "most images in a forward pass (%(default)s)"},
    "--images": {"type": int, "help": "number of images (%(default)s)"},
    "--minutes": {"type": float, "help": "start nothing new after this time; run again to continue (%(default)s)"},
    "--methods": {"nargs": "+"},
    "--models": {"nargs": "+"},
    "--device": {"default": "cpu"},
    "--out": {"type": Path, "help": "file of the results; most studies continue one that exists"},
}


def options(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Parser with ``--device``, ``--out`` and those of ``OPTIONS`` that have a default here; ``...`` is required."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, usual in OPTIONS.items():
        name = flag.removeprefix("--")
        if name in defaults or name in ("device", "out"):
            given = defaults.get(name, usual.get("default"))
            parser.add_argument(flag, **(usual | ({"required": True} if given is ... else {"default": given})))
    return parser


class Clock:
    """Time since a study began, and whether its limit is over."""

    def __init__(self, minutes: float = float("inf")) -> None:
        self.started, self.limit = time.monotonic(), 60 * minutes

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s"

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.started

    def is_over(self, before: str) -> bool:
        """Whether the limit is over; if so, print what was not begun."""
        over = self.seconds > self.limit
        if over:
            print(f"stopped before {before} after {self}: run again to continue", flush=True)
        return over


def timed(call: Callable[[], Any], device: torch.device | str) -> tuple[Any, float]:
    """Result and seconds of a call; waits for the device before and after."""
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = call()
    if cuda:
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def device_name(device: str) -> str:
    """Name of the GPU, or the device as given."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device


def manifest(device: str, **more: Any) -> dict[str, Any]:
    """What decides the numbers: what is given, device and versions."""
    return {**more, "device": device_name(device), "versions": versions()}


def joined_runs(before: Sequence[dict[str, Any]], run: dict[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """The runs that rows of a file are from, each with its methods, after a further run of some methods.

    Args:
        before: Runs of the rows so far.
        run: What decides the numbers of the further run.
        methods: Its methods, whose rows replace those of earlier runs.
    """
    measured = set(methods)
    runs = []
    for one in before:
        kept = set(one["methods"]) - measured
        if {**one, "methods": []} == {**run, "methods": []}:
            measured |= kept
        elif kept:
            runs.append({**one, "methods": sorted(kept)})
    return [*runs, {**run, "methods": sorted(measured)}]


def read_json(path: Path | None, default: Any) -> Any:
    """Content of a file, or the default where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else default


def save_json(path: Path | None, content: Any) -> None:
    """Write JSON, and make its folder; without a path, do nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def save_csv(path: Path, rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> None:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
