"""The numbers three papers published, as data, and what each of them is called here."""

from vitrail.papers.book import Metric, Number, Source, Table, find_table, tables

__all__ = ["Metric", "Number", "Source", "Table", "find_table", "tables"]
