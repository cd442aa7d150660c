"""Shares of the work, for anything that starts n processes and has a common folder: Slurm, Kubernetes, torchrun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from vitrail.errors import OptionError

T = TypeVar("T")
#: Variables that hold a process's number and the number of processes; which number is the first, or the variable.
VARIABLES = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", "0"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "0"),
)


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """``2/8`` as (1, 8): the second of eight; ``env`` takes it from Slurm, torchrun or Kubernetes.

    Example:
        >>> parse_shard("2/8"), parse_shard("env", {"RANK": "3", "WORLD_SIZE": "4"})
        ((1, 8), (3, 4))
        >>> parse_shard("9/8")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: --shard 9/8: write i/n with i from 1 to n, as 2/8, or env
    """
    if text == "env":
        for index, count, first in VARIABLES:
            if index in environment and count in environment:
                start = int(first) if first.isdigit() else int(environment.get(first, "0"))
                return int(environment[index]) - start, int(environment[count])
        names = " or ".join(f"{index} and {count}" for index, count, _ in VARIABLES)
        raise OptionError(f"--shard env: neither of {names} is set; write i/n")
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise OptionError(f"--shard {text}: write i/n with i from 1 to n, as 2/8, or env")
    return int(found[1]) - 1, int(found[2])


def share(chunks: Sequence[T], shard: tuple[int, int]) -> list[T]:
    """Every n-th piece: pieces of one group of methods stand together, so that shares cost about the same.

    Example:
        >>> share("abcdefg", (1, 3))
        ['b', 'e']
    """
    index, count = shard
    return list(chunks[index::count])
