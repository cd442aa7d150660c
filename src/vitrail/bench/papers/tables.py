"""Published tables: each number with its method, model, data set and metric, by the paper's names and by ours."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from io import StringIO
from typing import Any, NamedTuple

from vitrail.errors import OptionError

#: Prefixes that names of tables and plans had in earlier versions, and what they are now.
FORMER_PREFIXES = {"000": "vtranm", "003": "gradtoken", "004": "vitcx"}


class PaperNumber(NamedTuple):
    """A published number; the value is None where the paper gives none."""

    table: str
    model: str
    dataset: str
    method: str
    metric: str
    direction: str
    value: float | None


@dataclass(frozen=True)
class PaperMetric:
    """A paper's metric and our corresponding score.

    Attributes:
        protocol: Name of a preset or protocol.
        score: Name of the score in results.
        target: Explained class: "predicted", "label" or "things".
        factor: Factor from our units to the paper's.
        quoted: Score of the rows that the paper quotes from an earlier one and that were scored differently.
        short: Short name for a column heading; the paper's name by default.
        reason: Reason why we have no such score, or "".
    """

    protocol: str = ""
    score: str = ""
    target: str = "predicted"
    factor: float = 1.0
    quoted: str = ""
    short: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PaperSource:
    """A model or data set of a paper.

    Attributes:
        names: Our names, the best match first.
        images: Number of images that the paper used, 0 for models.
        note: What the paper does not specify about it.
        instead: Protocols that replace those of the metrics on this data set.
        target: Explained class on this data set, if it differs from the metric's.
    """

    names: tuple[str, ...]
    images: int = 0
    note: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table, or the numbers of a figure.

    Attributes:
        key: Its name in plans (``paper = "..."``).
        paper: Name of the paper.
        cite: BibTeX key in ``docs/bibliography.bib``.
        title: The paper's title of it, such as "Table 2".
        about: What it shows.
        view: The paper's preprocessing, as a plan's ``view``.
        numbers: In the paper's order.
        methods: For each of the paper's methods our specs, the best match first; empty where we have none.
        models: Its models.
        datasets: Its data sets.
        metrics: Its metrics.
        notes: What the paper does not specify, and known disagreements between papers and released code.
        quoted: Data set and methods of the rows that the paper quotes from an earlier one.
    """

    key: str
    paper: str
    cite: str
    title: str
    about: str
    view: str
    numbers: tuple[PaperNumber, ...] = field(repr=False)
    methods: Mapping[str, tuple[str, ...]] = field(repr=False)
    models: Mapping[str, PaperSource] = field(repr=False)
    datasets: Mapping[str, PaperSource] = field(repr=False)
    metrics: Mapping[str, PaperMetric] = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    quoted: tuple[str, frozenset[str]] = ("", frozenset())

    def metric(self, number: PaperNumber) -> PaperMetric:
        """Our score for a number, given its data set and how its row was scored.

        Example:
            >>> table = find_table("gradtoken_table1")
            >>> [table.metric(n).score for n in table.numbers if n.metric == "mIoU (%)" and n.dataset[0] == "I"][5:7]
            ['miou', 'best_miou']
        """
        metric = self.metrics[number.metric]
        if metric.quoted and number.dataset == self.quoted[0] and number.method in self.quoted[1]:
            metric = replace(metric, score=metric.quoted)
        data = self.datasets[number.dataset]
        return replace(
            metric, protocol=data.instead.get(metric.protocol, metric.protocol), target=data.target or metric.target
        )

    def short(self, metric: str) -> str:
        """Short name of a metric for a column heading."""
        return self.metrics[metric].short or metric


@lru_cache(maxsize=1)
def paper_tables() -> dict[str, PaperTable]:
    """Load all tables, by key.

    Example:
        >>> {key: len(table.numbers) for key, table in paper_tables().items()}["vtranm_table2"]
        63
    """
    folder = files("vitrail.bench.papers")
    raw = tomllib.loads(folder.joinpath("papers.toml").read_text(encoding="utf-8"))
    lines = csv.DictReader(StringIO(folder.joinpath("numbers.csv").read_text(encoding="utf-8")))
    numbers = [_number(line) for line in lines]
    return {
        key: _table(key, about, raw["papers"][about["paper"]], tuple(n for n in numbers if n.table == key))
        for key, about in raw["tables"].items()
    }


def current_name(name: str) -> str:
    """Return the current name of a table or plan; any name that was never changed is returned as it is.

    Example:
        >>> current_name("000_table2"), current_name("scenes")
        ('vtranm_table2', 'scenes')
    """
    prefix, _, rest = name.partition("_")
    current = f"{FORMER_PREFIXES.get(prefix, prefix)}_{rest}"
    return current if current in paper_tables() else name


def former_name(name: str) -> str:
    """Return the name that a table or plan had in earlier versions; any other name is returned as it is.

    Example:
        >>> former_name("vtranm_table2"), former_name("scenes")
        ('000_table2', 'scenes')
    """
    if name not in paper_tables():
        return name
    prefix, _, rest = name.partition("_")
    return f"{next(former for former, current in FORMER_PREFIXES.items() if current == prefix)}_{rest}"


def find_table(key: str) -> PaperTable:
    """Find a table by its key, or by a former key.

    Example:
        >>> find_table("vitcx_table1").paper
        'ViT-CX'
    """
    key = current_name(key)
    if key not in paper_tables():
        raise OptionError(f"unknown table {key!r}: available are {', '.join(paper_tables())}")
    return paper_tables()[key]


def _number(line: Mapping[str, str]) -> PaperNumber:
    table, model, dataset, method, metric, direction = (line[name] for name in PaperNumber._fields[:-1])
    return PaperNumber(
        table, model, dataset, method, metric, direction, float(line["value"]) if line["value"] else None
    )


def _table(
    key: str, about: Mapping[str, Any], paper: Mapping[str, Any], numbers: tuple[PaperNumber, ...]
) -> PaperTable:
    def used(kind: str, column: str) -> dict[str, Any]:
        names = dict.fromkeys(getattr(number, column) for number in numbers)
        return {name: paper[kind][name] for name in names}

    quoted = about.get("quoted", {})
    return PaperTable(
        key, paper["title"], paper["cite"], about["title"], about["about"], paper["view"], numbers,
        {name: tuple(specs) for name, specs in used("methods", "method").items()},
        {name: _source(given) for name, given in used("models", "model").items()},
        {name: _source(given) for name, given in used("datasets", "dataset").items()},
        {name: PaperMetric(**given) for name, given in used("metrics", "metric").items()},
        tuple(about.get("notes", ())),
        (quoted.get("dataset", ""), frozenset(quoted.get("methods", ()))),
    )  # fmt: skip


def _source(given: Mapping[str, Any]) -> PaperSource:
    names = tuple(given["names"]) if "names" in given else (given["name"],)
    rest = {key: given[key] for key in ("images", "note", "instead", "target") if key in given}
    return PaperSource(names, **rest)
