"""The numbers three papers published, as data, and what each of them is called here."""

from vitrail.papers.book import PaperMetric, PaperNumber, PaperSource, PaperTable, find_table, tables

__all__ = ["PaperMetric", "PaperNumber", "PaperSource", "PaperTable", "find_table", "tables"]
