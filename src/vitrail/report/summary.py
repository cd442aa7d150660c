"""All that a report says, before it is written down in any form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vitrail.report.costs import Cost, Failure, NotApplicableRow, costs, failures, refusals
from vitrail.report.curves import Curves, curves
from vitrail.report.example_images import ExampleImage, show
from vitrail.report.examples import cases
from vitrail.report.paper_comparison import PaperComparison, beside
from vitrail.report.run import Run
from vitrail.report.section import ReportSection, blocks


@dataclass(frozen=True, eq=False)
class ReportSummary:
    """A run, summed up.

    Attributes:
        name: The plan's.
        manifest: As the run's folder has it.
        missing: Parts that are still to be done.
        blocks: Scores by model, data set, protocol and target.
        beside: The paper's table, or None.
        curves: Of perturbation tests.
        shown: Pictures.
        costs: By model and method.
        refused: Methods that do not apply.
        failed: Reasons in place of scores.
    """

    name: str
    manifest: dict[str, Any] = field(repr=False)
    missing: int
    blocks: tuple[ReportSection, ...]
    beside: PaperComparison | None
    curves: tuple[Curves, ...]
    shown: tuple[ExampleImage, ...]
    costs: tuple[Cost, ...]
    refused: tuple[NotApplicableRow, ...]
    failed: tuple[Failure, ...]

    @property
    def unfinished(self) -> str:
        """What is missing, in a sentence, or ""."""
        if not self.missing:
            return ""
        total = self.manifest["parts"]
        return (
            f"This run is not finished: {self.missing:,} of {total:,} parts are missing. What follows is about the "
            "pictures that are done; methods may have different ones, and are compared on those they share. Run the "
            "plan again to go on."
        )


def make_sheet(
    run: Run, each: int = 1, device: str = "cpu", advance: Callable[[], None] = lambda: None
) -> ReportSummary:
    """Sum up a run.

    Args:
        run: The run.
        each: How many best, worst and disagreement cases are shown of each model and data set; with 0 no picture is
            read and no model loaded.
        device: Where maps of these are made.
        advance: Called after each step.
    """
    found = []
    for block in blocks(run):
        found.append(block)
        advance()
    chosen = cases(run, found, each) if each else []
    shown = show(run, chosen, device, advance) if chosen else []
    return ReportSummary(
        run.plan.name, run.manifest, run.missing, tuple(found), beside(run, found), tuple(curves(run)), tuple(shown),
        tuple(costs(run)), tuple(refusals(run)), tuple(failures(run)),
    )  # fmt: skip
