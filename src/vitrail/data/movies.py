"""Movie reviews of ERASER: texts in which people marked the words that give the verdict away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vitrail.data.archive import Files, open_files
from vitrail.data.sample import Listing, Sample
from vitrail.errors import DataError

__all__ = ["Movies"]

CLASSES = ("NEG", "POS")
COUNTS = {"train": 1600, "val": 200, "test": 199}
SOURCE = "eraserbenchmark.com, movies.tar.gz"


class Movies(Listing):
    """A split of the Movie Reviews of the ERASER benchmark.

    A sample has its words in ``tokens``, the marked passages in ``spans`` as (first token, token after the last), and
    label 0 for NEG, 1 for POS. Every passage is compared with the words it points to when the set is opened. Twenty
    passages of the published test split are empty: they mark no word, and are left out of ``spans``.

    Args:
        root: The unpacked folder, one above it, or ``movies.tar.gz``, which stays packed.
        split: "train", "val" or "test".

    Attributes:
        passages: How many passages the list has, the empty ones included; all of them were compared.

    Raises:
        DataError: Files are missing or damaged, or a passage does not match its words.
    """

    name = "movies"

    def __init__(self, root: str | Path, split: str = "test") -> None:
        if split not in COUNTS:
            raise DataError(f"movies has no split {split!r}: take one of {', '.join(COUNTS)}")
        self.split = split
        files = open_files(root, rf"(?:[^/]+/)*(?:{split}[.]jsonl|docs[.]jsonl|docs/[^/]+)")
        lists = [name for name in files.sizes if name.rpartition("/")[2] == f"{split}.jsonl"]
        if len(lists) != 1:
            raise DataError(
                f"{files.root} holds {len(lists)} files {split}.jsonl: expected one, next to a folder docs with 2,000 "
                f"reviews or a file docs.jsonl ({SOURCE})"
            )
        lines = _lines(files, lists[0])
        documents = _documents(files, lists[0].removesuffix(f"{split}.jsonl"))
        self.passages = sum(len(group) for _, line in lines for group in line.get("evidences", ()))
        self._reviews = tuple(self._review(line, documents, f"{files.path(lists[0])}, line {k}") for k, line in lines)
        ids = [str(line["annotation_id"]) for _, line in lines]
        super().__init__(ids, COUNTS[split], f"unpack the archive again ({SOURCE})")

    @property
    def classes(self) -> tuple[str, ...]:
        """NEG and POS."""
        return CLASSES

    def _review(
        self, line: dict[str, Any], documents: dict[str, tuple[str, ...]], where: str
    ) -> tuple[tuple[str, ...], int, tuple[tuple[int, int], ...]]:
        """Tokens, label and marked passages of one line of the list."""
        try:
            evidence = [item for group in line["evidences"] for item in group]
            names = {*(line.get("docids") or ()), *(item["docid"] for item in evidence)} or {line["annotation_id"]}
            label = CLASSES.index(line["classification"])
            spans = [(int(item["start_token"]), int(item["end_token"]), item["text"]) for item in evidence]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{where} is not laid out as expected ({error!r}): unpack it again ({SOURCE})") from error
        if len(names) != 1:
            raise DataError(f"{where} speaks of {len(names)} reviews, not of one")
        name = names.pop()
        if name not in documents:
            raise DataError(
                f"{where} speaks of the review {name}, which is missing; {len(documents):,} reviews were found of "
                f"2,000: unpack docs again ({SOURCE})"
            )
        tokens = documents[name]
        for start, end, text in spans:
            if not 0 <= start <= end <= len(tokens) or list(tokens[start:end]) != text.split():
                raise DataError(f"{where}: the words {start} to {end} of {name} are not {text!r}, as the list says")
        return tokens, label, tuple(sorted({(start, end) for start, end, _ in spans if start < end}))

    def _read(self, index: int) -> Sample:
        tokens, label, spans = self._reviews[index]
        return Sample(self.ids[index], text=" ".join(tokens), tokens=tokens, spans=spans, label=label)


def _lines(files: Files, name: str) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file that holds one on each line, with the number of the line."""
    found = []
    for k, line in enumerate(_text(files, name).split("\n"), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{files.path(name)}, line {k}, is cut short or damaged: unpack it again") from error
            if not isinstance(value, dict) or not {"annotation_id", "docid"} & set(value):
                raise DataError(f"{files.path(name)}, line {k}, is not laid out as expected: get {SOURCE}")
            found.append((k, value))
    return found


def _documents(files: Files, folder: str) -> dict[str, tuple[str, ...]]:
    """The words of every review, by name: blanks divide them, and line ends count as blanks."""
    single = f"{folder}docs.jsonl"
    if single in files.sizes:
        texts = {str(line["docid"]): str(line.get("document", "")) for _, line in _lines(files, single)}
    else:
        texts = {
            name.rpartition("/")[2]: _text(files, name) for name in files.sizes if name.startswith(f"{folder}docs/")
        }
    if not texts:
        raise DataError(
            f"there are no reviews in {files.root}: expected a folder docs with 2,000 files, or docs.jsonl, next to "
            f"the lists ({SOURCE})"
        )
    return {name: tuple(text.split()) for name, text in texts.items()}


def _text(files: Files, name: str) -> str:
    try:
        return files.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{files.path(name)} is damaged ({error}): unpack it again ({SOURCE})") from error
