"""Movie reviews of the ERASER benchmark: texts with passages that annotators marked as evidence for the label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitrail.data.archive import FileCollection, open_files
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

__all__ = ["Movies"]

CLASSES = ("NEG", "POS")
COUNTS = {"train": 1600, "val": 200, "test": 199}
SOURCE = "eraserbenchmark.com, movies.tar.gz"


class Movies(BaseDataset):
    """A split of the Movie Reviews of the ERASER benchmark.

    A sample has its words in ``tokens``, the marked passages in ``spans`` as (first token, end token, exclusive), and
    label 0 for NEG or 1 for POS. When the data set is opened, the text of every passage is compared with the words at
    its position. Twenty passages of the published test split are empty and are not in ``spans``.

    Args:
        root: The unpacked folder, a folder above it, or ``movies.tar.gz``, which is not unpacked.
        split: "train", "val" or "test".

    Attributes:
        passage_count: Number of marked passages of the split, including the empty ones.

    Raises:
        DataError: Files are missing or damaged, or a passage does not match its words.
    """

    name = "movies"

    def __init__(self, root: str | Path, split: str = "test") -> None:
        if split not in COUNTS:
            raise DataError(f"movies has no split {split!r}: use one of {', '.join(COUNTS)}")
        self.split = split
        files = open_files(root, rf"(?:[^/]+/)*(?:{split}[.]jsonl|docs[.]jsonl|docs/[^/]+)")
        lists = [name for name in files.sizes if name.rpartition("/")[2] == f"{split}.jsonl"]
        if len(lists) != 1:
            raise DataError(
                f"{files.root} holds {len(lists)} files {split}.jsonl: expected one, next to a folder docs with 2,000 "
                f"reviews or a file docs.jsonl ({SOURCE})"
            )
        lines = _read_jsonl(files, lists[0])
        documents = _read_documents(files, lists[0].removesuffix(f"{split}.jsonl"))
        self.passage_count = sum(len(group) for _, line in lines for group in line.get("evidences", ()))
        self._reviews = tuple(_parse_review(line, documents, f"{files.path(lists[0])}, line {k}") for k, line in lines)
        ids = [str(line["annotation_id"]) for _, line in lines]
        super().__init__(ids, COUNTS[split], f"unpack the archive again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...]:
        """NEG and POS."""
        return CLASSES

    def _read(self, index: int) -> Sample:
        tokens, label, spans = self._reviews[index]
        return Sample(self.ids[index], text=" ".join(tokens), tokens=tokens, spans=spans, label=label)


def _parse_review(
    line: dict[str, Any], documents: dict[str, tuple[str, ...]], location: str
) -> tuple[tuple[str, ...], int, tuple[tuple[int, int], ...]]:
    """Tokens, label and marked passages of one line of a split file."""
    try:
        evidence = [item for group in line["evidences"] for item in group]
        names = {*(line.get("docids") or ()), *(item["docid"] for item in evidence)} or {line["annotation_id"]}
        label = CLASSES.index(line["classification"])
        spans = [(int(item["start_token"]), int(item["end_token"]), item["text"]) for item in evidence]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{location} has an unexpected layout ({error!r}): unpack it again ({SOURCE})") from error
    if len(names) != 1:
        raise DataError(f"{location} refers to {len(names)} reviews, expected one: unpack it again ({SOURCE})")
    name = names.pop()
    if name not in documents:
        raise DataError(
            f"{location} refers to the review {name}, which is missing; {len(documents):,} of 2,000 reviews were "
            f"found: unpack docs again ({SOURCE})"
        )
    tokens = documents[name]
    for start, end, text in spans:
        if not 0 <= start <= end <= len(tokens) or list(tokens[start:end]) != text.split():
            raise DataError(
                f"{location}: words {start} to {end} of {name} are not {text!r}: unpack the archive again ({SOURCE})"
            )
    return tokens, label, tuple(sorted({(start, end) for start, end, _ in spans if start < end}))


def _read_jsonl(files: FileCollection, name: str) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file, with their line numbers."""
    objects = []
    for k, line in enumerate(_read_text(files, name).split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{files.path(name)}, line {k}, is truncated or damaged: unpack it again") from error
            if not isinstance(value, dict) or not {"annotation_id", "docid"} & set(value):
                raise DataError(f"{files.path(name)}, line {k}, has an unexpected layout: download {SOURCE}")
            objects.append((k, value))
    return objects


def _read_documents(files: FileCollection, folder: str) -> dict[str, tuple[str, ...]]:
    """The words of every review by name, split at whitespace."""
    single_file = f"{folder}docs.jsonl"
    if single_file in files.sizes:
        texts = {str(line["docid"]): str(line.get("document", "")) for _, line in _read_jsonl(files, single_file)}
    else:
        texts = {
            name.rpartition("/")[2]: _read_text(files, name)
            for name in files.sizes
            if name.startswith(f"{folder}docs/")
        }
    if not texts:
        raise DataError(
            f"{files.root} holds no reviews: expected a folder docs with 2,000 files, or docs.jsonl, next to the split "
            f"files ({SOURCE})"
        )
    return {name: tuple(text.split()) for name, text in texts.items()}


def _read_text(files: FileCollection, name: str) -> str:
    try:
        return files.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{files.path(name)} is damaged ({error}): unpack it again ({SOURCE})") from error
