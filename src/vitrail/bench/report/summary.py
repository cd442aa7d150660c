"""Summary of a run: the content of a report, before it is rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vitrail.bench.report.costs import (
    FailureCount,
    MethodCost,
    NotApplicableRow,
    failure_counts,
    method_costs,
    not_applicable_methods,
)
from vitrail.bench.report.curves import MeanCurves, WordCurves, mean_curves, word_curves
from vitrail.bench.report.example_images import ExampleImages, render_examples
from vitrail.bench.report.examples import select_examples
from vitrail.bench.report.paper_comparison import PaperComparison, compare_with_paper
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import ReportSection, report_sections


@dataclass(frozen=True, eq=False)
class ReportSummary:
    """Content of a report.

    Attributes:
        name: Name of the plan.
        manifest: Manifest of the run.
        missing_chunks: Number of chunks that are not done.
        sections: Scores by model, data set, protocol and target.
        paper_comparison: Comparison with a paper's table, or None.
        curves: Curves of perturbation tests, or of token-F1.
        examples: Example images.
        costs: Costs by model and method.
        not_applicable: Methods that do not apply to a model.
        failures: Reasons for missing scores.
    """

    name: str
    manifest: dict[str, Any] = field(repr=False)
    missing_chunks: int
    sections: tuple[ReportSection, ...]
    paper_comparison: PaperComparison | None
    curves: tuple[MeanCurves | WordCurves, ...]
    examples: tuple[ExampleImages, ...]
    costs: tuple[MethodCost, ...]
    not_applicable: tuple[NotApplicableRow, ...]
    failures: tuple[FailureCount, ...]

    @property
    def unfinished_warning(self) -> str:
        """Warning about missing chunks, or ""."""
        if not self.missing_chunks:
            return ""
        total = self.manifest["parts"]
        return (
            f"This run is not finished: {self.missing_chunks:,} of {total:,} chunks are missing. The numbers below "
            "are for the images that are done. Methods may have different images and are compared on those they "
            "share. Run the plan again to finish it."
        )


def summarise(
    run: Run, examples: int = 1, device: str = "cpu", advance: Callable[[], None] = lambda: None
) -> ReportSummary:
    """Compute the content of a report.

    Args:
        run: The run.
        examples: Number of best, of worst and of disagreement images for each model and data set; with 0, and for
            texts, no data are read and no model is loaded.
        device: Device of the maps that are computed again for examples.
        advance: Called after each section and each example.
    """
    sections = []
    for section in report_sections(run):
        sections.append(section)
        advance()
    selected = select_examples(run, sections, examples) if examples and not run.plan.reads_texts else []
    images = render_examples(run, selected, device, advance) if selected else []
    curves: Iterable[MeanCurves | WordCurves] = word_curves(sections) if run.plan.reads_texts else mean_curves(run)
    return ReportSummary(
        run.plan.name, run.manifest, run.missing_chunks, tuple(sections), compare_with_paper(run, sections),
        tuple(curves), tuple(images), tuple(method_costs(run)), tuple(not_applicable_methods(run)),
        tuple(failure_counts(run)),
    )  # fmt: skip
