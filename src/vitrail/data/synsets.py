"""Synsets: ImageNet's classes by WordNet id, and the files that say which image shows which."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitrail.errors import DataError, require

__all__ = ["Synsets", "read_truth", "wnids"]

WNID = re.compile(r"n\d{8}")
TRUTHS = (
    "ILSVRC2012_validation_ground_truth.txt",
    "imagenet_2012_validation_synset_labels.txt",
    "synset_labels.txt",
    "LOC_val_solution.csv",
    "val_labels.txt",
    "val.txt",
)
"""Names that the label files of the validation images commonly have."""


@lru_cache(maxsize=1)
def wnids() -> tuple[str, ...]:
    """The WordNet ids of the thousand classes of ILSVRC2012, sorted: their places are the models' class indices.

    Example:
        >>> wnids()[1], len(wnids())
        ('n01443537', 1000)
    """
    return tuple(Path(__file__).with_name("wnids.txt").read_text(encoding="ascii").split())


@dataclass(frozen=True)
class Synsets:
    """Class indices by WordNet id.

    Attributes:
        index: The class index of each WordNet id.
        names: The names of the classes by index, where a file gives them.
    """

    index: dict[str, int]
    names: tuple[str, ...] | None = None

    @classmethod
    def find(cls, *folders: Path) -> Synsets:
        """From a ``classes.csv`` (columns index, wnid and perhaps name) in one of the folders, else the usual order.

        Raises:
            DataError: The file is there but is not such a table.
        """
        for folder in folders:
            path = folder / "classes.csv"
            if path.is_file():
                return cls._read(path)
        return cls({wnid: k for k, wnid in enumerate(wnids())})

    @classmethod
    def _read(cls, path: Path) -> Synsets:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            index = {row["wnid"]: int(row["index"]) for row in rows}
            names = {int(row["index"]): row.get("name", "").replace("_", " ") for row in rows}
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise DataError(f"{path} is not a table of classes: it needs the columns index and wnid") from error
        if sorted(names) != list(range(len(rows))) or len(index) != len(rows):
            raise DataError(f"{path} must give each of its {len(rows)} WordNet ids an index of its own, from 0 up")
        return cls(index, tuple(names[k] for k in range(len(rows))) if all(names.values()) else None)


def read_truth(path: Path) -> dict[str, str]:
    """WordNet id of each validation image, by file name without its ending.

    Args:
        path: One of: lines "file wnid" (divided by blanks or commas; more columns are passed over, so is a heading),
            one WordNet id a line in the order of the files, or the devkit's list of numbers with its ``meta.mat``
            next to it.

    Raises:
        DataError: It is none of these.
        MissingExtraError: The devkit's file is given and scipy is not installed.
    """
    try:
        lines = [re.split(r"[\s,;]+", line.strip()) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a list of labels ({error})") from error
    lines = [line for line in lines if line != [""]]
    if lines and all(len(line) == 1 and line[0].isdecimal() for line in lines):
        by_number = _read_meta(path)
        unknown = {line[0] for line in lines} - {str(k) for k in by_number}
        if unknown:
            raise DataError(f"{path} speaks of class {min(unknown)}, which meta.mat does not have")
        lines = [[by_number[int(line[0])]] for line in lines]
    if lines and all(len(line) == 1 and WNID.fullmatch(line[0]) for line in lines):
        return {f"ILSVRC2012_val_{k:08d}": line[0] for k, line in enumerate(lines, 1)}
    pairs = {Path(line[0]).stem: line[1] for line in lines if len(line) > 1 and WNID.fullmatch(line[1])}
    if not pairs or len(pairs) < len(lines) - 1:
        raise DataError(
            f'{path} is not a list of labels: expected lines like "ILSVRC2012_val_00000001.JPEG n01751748", one '
            "WordNet id a line in the order of the files, or the devkit's list of numbers"
        )
    return pairs


def _read_meta(truth: Path) -> dict[int, str]:
    """WordNet ids by the devkit's own numbering, which is not the order of the models."""
    path = truth.with_name("meta.mat")
    if not path.is_file():
        raise DataError(
            f"{truth} numbers the classes in the devkit's own order; {path}, which translates it, is missing: "
            "both are in the folder data of the devkit (image-net.org, ILSVRC2012 development kit, task 1)"
        )
    try:
        table = require("scipy.io", "bench", "read meta.mat").loadmat(str(path), squeeze_me=True)["synsets"]
        return {int(k): str(wnid) for k, wnid in zip(table["ILSVRC2012_ID"], table["WNID"], strict=True)}
    except (KeyError, TypeError, ValueError, IndexError, OSError, NotImplementedError) as error:
        raise DataError(f"{path} is not the devkit's meta.mat ({error}): unpack the devkit again") from error
