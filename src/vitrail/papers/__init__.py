"""The numbers three papers published, as data, and what each of them is called here."""

from vitrail.papers.book import (
    PaperMetric,
    PaperNumber,
    PaperSource,
    PaperTable,
    current_name,
    find_table,
    former_name,
    tables,
)

__all__ = [
    "PaperMetric",
    "PaperNumber",
    "PaperSource",
    "PaperTable",
    "current_name",
    "find_table",
    "former_name",
    "tables",
]
