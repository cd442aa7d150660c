"""Published numbers of three papers, as data, mapped to this package's methods, models, data sets and scores."""

from vitrail.bench.papers.tables import (
    PaperMetric,
    PaperNumber,
    PaperSource,
    PaperTable,
    current_name,
    find_table,
    former_name,
    paper_tables,
)

__all__ = [
    "PaperMetric", "PaperNumber", "PaperSource", "PaperTable", "current_name", "find_table", "former_name",
    "paper_tables",
]  # fmt: skip
