"""Reports of benchmark runs: tables, curves, example images, and comparison with published numbers."""

from vitrail.bench.report.export import write_report
from vitrail.bench.report.rationale import write_rationale_report
from vitrail.bench.report.run_folder import Run, find_run
from vitrail.bench.report.summary import ReportSummary, summarise

__all__ = ["ReportSummary", "Run", "find_run", "summarise", "write_rationale_report", "write_report"]
