"""Set up a run: seed, device, logging, command line options, and parallel processing."""

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
Result = TypeVar("Result")


def set_up(seed: int) -> torch.device:
    """Seed all generators, choose the device and precision, and log to stdout."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- not used here, but possibly by a library
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)  # training/__init__.py limits the data processes to one thread
    return device


def autocast(device: torch.device, enabled: bool = True) -> torch.autocast:
    """Autocast to bfloat16 on a GPU; no effect on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled and device.type == "cuda")


def add_options(parser: argparse.ArgumentParser, minutes: float, scope: str) -> None:
    """Add the options that all scripts share."""
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log.jsonl and manifest.json")
    parser.add_argument("--minutes", type=float, default=minutes, help=f"time limit for {scope} (%(default)s)")
    parser.add_argument("--epochs", type=int, default=None, help="maximum number of epochs")
    parser.add_argument("--batch", type=int, default=None, help="batch size")
    parser.add_argument("--lr", type=float, default=None, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and augmentation (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that prepare the data")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    parser.add_argument("--smoke", action="store_true", help="test the script with tiny settings, in seconds")


def parallel_map(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Generator[Result, None, None]:
    """Yield the results of a function in the order of the jobs, from several processes; closing it stops them.

    On Linux the processes are forked, which saves each of them the import of torch. CUDA does not survive a fork, so
    the data are prepared before CUDA is used.
    """
    if workers <= 1:
        yield from map(function, jobs)
        return
    cuda_unused = not torch.cuda.is_initialized()
    method = "fork" if sys.platform == "linux" and cuda_unused else "spawn"
    with multiprocessing.get_context(method).Pool(min(workers, max(1, len(jobs)))) as pool:
        yield from pool.imap(function, jobs)
