"""Setting a run up: seed, device, log, options, and work in parallel."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

logger = logging.getLogger("training")

Job = TypeVar("Job")
Done = TypeVar("Done")


def set_up(seed: int) -> torch.device:
    """Seed everything, choose the device and the precision, and send the log to stdout."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- nothing here draws from it, but a library might
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)  # one thread is for the workers, see training/__init__.py
    return device


def add_options(parser: argparse.ArgumentParser, minutes: float, what: str) -> None:
    """Options of every script."""
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log.jsonl and manifest.json")
    parser.add_argument("--minutes", type=float, default=minutes, help=f"wall-clock limit for {what} (%(default)s)")
    parser.add_argument("--epochs", type=int, default=None, help="end after so many epochs, if time allows as many")
    parser.add_argument("--batch", type=int, default=None, help="pictures per step")
    parser.add_argument("--lr", type=float, default=None, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and augmentation (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that prepare the data")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds with tiny settings, to try the script")


def in_parallel(work: Callable[[Job], Done], jobs: Sequence[Job], workers: int) -> Generator[Done, None, None]:
    """Results of ``work`` in the order of ``jobs``, from several processes; leaving the loop early stops them.

    Where possible the processes are forked, which spares each of them the import of torch; this is why data are
    prepared before the first use of CUDA, which does not survive a fork.
    """
    if workers <= 1:
        yield from map(work, jobs)
        return
    untouched = not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    method = "fork" if sys.platform == "linux" and untouched else "spawn"
    with multiprocessing.get_context(method).Pool(min(workers, max(1, len(jobs)))) as pool:
        yield from pool.imap(work, jobs)
