"""Reports of benchmark runs: tables, curves, example images, and comparison with published numbers."""

from vitrail.report.export import write_report
from vitrail.report.rationale import write_rationale_report
from vitrail.report.run import Run, find_run
from vitrail.report.summary import ReportSummary, summarise

__all__ = ["ReportSummary", "Run", "find_run", "summarise", "write_rationale_report", "write_report"]
