"""Checks of the maps of a job, with `vitrail.trust`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitrail.explain import explain
from vitrail.explanation import Explanation
from vitrail.map_source import MapSource
from vitrail.targets import Target, contrast
from vitrail.trust.check_run import BUDGETS
from vitrail.trust.checker import check_maps
from vitrail.trust.map_check import VERDICTS, MapCheck
from vitrail.web.ignored_warnings import ignored_warnings
from vitrail.web.jobs import Job

BUDGET = "quick"


def target_of(job: Job) -> Target:
    """The target of a job in the form that `vitrail.explain` takes."""
    assert job.targets is not None
    return [job.targets] if job.contrast is None else contrast(job.targets[0], job.contrast)


def check_map(job: Job, explanation: Explanation, k: int, advance: Callable[[int], None]) -> dict[str, Any]:
    """Check the map of one method for target ``k`` of a job; see `vitrail.Explanation.check`.

    Args:
        job: The job; its model and input are used.
        explanation: The explanation of the job's targets by one method.
        k: Which target.
        advance: Called with the number of images after each batch of images with removed patches.
    """
    with ignored_warnings():
        checks = check_maps(
            _source(job), {explanation.method: explanation}, 0, k, budget=BUDGET, batch_size=job.served.batch_size,
            seed=job.seed, advance=advance,
        )  # fmt: skip
    return _check_json(next(iter(checks.values())))


def check_evaluations() -> int:
    """Images with removed patches that the check of one map evaluates."""
    return BUDGETS[BUDGET].removals


def _source(job: Job) -> MapSource:
    """The model and input of a job."""
    served = job.served

    def explain_again(images: Tensor, methods: Mapping[str, Mapping[str, Any]], target: Target) -> Mapping[str, Any]:
        return explain(served.loaded, images, methods=methods, target=target, batch_size=served.batch_size)

    target = target_of(job)
    function = target if callable(target) else None
    return MapSource(served.loaded, served.model_inputs(job.raw_input), served.structure, function, explain_again)


def _check_json(check: MapCheck) -> dict[str, Any]:
    return {
        "verdict": check.verdict, "meaning": VERDICTS[check.verdict], "passed": check.passed,
        "failures": list(check.failures), "p_value": check.p_value, "sentences": list(check.sentences),
    }  # fmt: skip
