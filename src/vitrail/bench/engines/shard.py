"""Shards: a fixed share of the work, for any launcher that starts n processes (Slurm, Kubernetes, torchrun)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from vitrail.errors import OptionError

T = TypeVar("T")
#: Environment variables: index of the process, number of processes, and the first index or the variable that holds it.
SHARD_VARIABLES = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    ("RANK", "WORLD_SIZE", "0"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "0"),
)


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Parse ``2/8`` as (1, 8), the second of eight; ``env`` reads it from Slurm, torchrun or Kubernetes.

    Example:
        >>> parse_shard("2/8"), parse_shard("env", {"RANK": "3", "WORLD_SIZE": "4"})
        ((1, 8), (3, 4))
        >>> parse_shard("9/8")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: --shard 9/8: expected i/n with i from 1 to n, such as 2/8, or env
    """
    if text == "env":
        for index, count, first in SHARD_VARIABLES:
            if index in environment and count in environment:
                start = int(first) if first.isdigit() else int(environment.get(first, "0"))
                return int(environment[index]) - start, int(environment[count])
        names = " or ".join(f"{index} and {count}" for index, count, _ in SHARD_VARIABLES)
        raise OptionError(f"--shard env: none of {names} is set; write i/n instead")
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise OptionError(f"--shard {text}: expected i/n with i from 1 to n, such as 2/8, or env")
    return int(match[1]) - 1, int(match[2])


def select_shard(chunks: Sequence[T], shard: tuple[int, int]) -> list[T]:
    """Return every n-th chunk. Chunks of one group of methods are adjacent, so that shards cost about the same.

    Example:
        >>> select_shard("abcdefg", (1, 3))
        ['b', 'e']
    """
    index, count = shard
    return list(chunks[index::count])
