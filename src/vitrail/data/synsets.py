"""ImageNet classes by WordNet id, and the label files of the validation images."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitrail.errors import DataError, require

__all__ = ["Synsets", "imagenet_wnids", "read_label_file"]

WNID_PATTERN = re.compile(r"n\d{8}")
LABEL_FILES = (
    "ILSVRC2012_validation_ground_truth.txt",
    "imagenet_2012_validation_synset_labels.txt",
    "synset_labels.txt",
    "LOC_val_solution.csv",
    "val_labels.txt",
    "val.txt",
)
"""Usual names of the label files of the validation images."""


@lru_cache(maxsize=1)
def imagenet_wnids() -> tuple[str, ...]:
    """WordNet ids of the 1,000 classes of ILSVRC2012, sorted: their positions are the class indices of the models.

    Example:
        >>> imagenet_wnids()[1], len(imagenet_wnids())
        ('n01443537', 1000)
    """
    return tuple(Path(__file__).with_name("wnids.txt").read_text(encoding="ascii").split())


@dataclass(frozen=True)
class Synsets:
    """Class indices and names by WordNet id.

    Attributes:
        index: Class index of each WordNet id.
        names: Class names by index, or None if no file provides them.
    """

    index: dict[str, int]
    names: tuple[str, ...] | None = None

    @classmethod
    def find(cls, *folders: Path) -> Synsets:
        """Read ``classes.csv`` (columns index, wnid and optionally name) from a folder, else use the standard order.

        Raises:
            DataError: The file exists but is not such a table.
        """
        for folder in folders:
            path = folder / "classes.csv"
            if path.is_file():
                return cls._read(path)
        return cls({wnid: k for k, wnid in enumerate(imagenet_wnids())})

    @classmethod
    def _read(cls, path: Path) -> Synsets:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            index = {row["wnid"]: int(row["index"]) for row in rows}
            names = {int(row["index"]): row.get("name", "").replace("_", " ") for row in rows}
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            raise DataError(f"{path} is not a table of classes: expected the columns index and wnid") from error
        if sorted(names) != list(range(len(rows))) or len(index) != len(rows):
            raise DataError(f"{path} must map its {len(rows)} WordNet ids to the distinct indices 0 to {len(rows) - 1}")
        return cls(index, tuple(names[k] for k in range(len(rows))) if all(names.values()) else None)


def read_label_file(path: Path) -> dict[str, str]:
    """Read the WordNet id of each validation image, by file name without suffix.

    Args:
        path: A file in one of three formats: lines "file wnid" (separated by spaces or commas; further columns and a
            header are skipped), one WordNet id per line in the order of the files, or the numbers of the development
            kit with its ``meta.mat`` in the same folder.

    Raises:
        DataError: The file has none of these formats.
        MissingExtraError: The file is from the development kit and scipy is not installed.
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
            raise DataError(f"{path} has class {min(unknown)}, which is not in meta.mat: unpack both files again")
        lines = [[by_number[int(line[0])]] for line in lines]
    if lines and all(len(line) == 1 and WNID_PATTERN.fullmatch(line[0]) for line in lines):
        return {f"ILSVRC2012_val_{k:08d}": line[0] for k, line in enumerate(lines, 1)}
    pairs = {Path(line[0]).stem: line[1] for line in lines if len(line) > 1 and WNID_PATTERN.fullmatch(line[1])}
    if not pairs or len(pairs) < len(lines) - 1:
        raise DataError(
            f'{path} is not a list of labels: expected lines like "ILSVRC2012_val_00000001.JPEG n01751748", one '
            "WordNet id per line in the order of the files, or the list of numbers of the development kit"
        )
    return pairs


def _read_meta(label_file: Path) -> dict[int, str]:
    """WordNet ids by the class numbers of the development kit, which are not the class indices of the models."""
    path = label_file.with_name("meta.mat")
    if not path.is_file():
        raise DataError(
            f"{label_file} uses the class numbers of the development kit, and {path}, which maps them to WordNet ids, "
            "is missing: copy it from the folder data of the kit (image-net.org, ILSVRC2012 development kit, task 1)"
        )
    try:
        table = require("scipy.io", "data", "read meta.mat").loadmat(str(path), squeeze_me=True)["synsets"]
        return {int(k): str(wnid) for k, wnid in zip(table["ILSVRC2012_ID"], table["WNID"], strict=True)}
    except (KeyError, TypeError, ValueError, IndexError, OSError, NotImplementedError) as error:
        raise DataError(f"{path} is not the meta.mat of the development kit ({error}): unpack the kit again") from error
