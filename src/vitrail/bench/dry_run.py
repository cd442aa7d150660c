"""Dry runs: check plans and estimate their cost, also where data or weights are not on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.bench.chunk import make_chunks
from vitrail.bench.context import BenchContext, open_context
from vitrail.bench.plan import Plan, PlanProblem
from vitrail.bench.plan_cost import (
    Estimate,
    ModelCost,
    catalogue_cost,
    count_images,
    device_speed,
    estimate_plan,
    estimate_run,
    measure_model,
    text_cost,
)
from vitrail.bench.plan_file import PlanOverrides, parse_plan, plans
from vitrail.bench.validate import inspect_plan
from vitrail.errors import VitrailError


class DryRun(NamedTuple):
    """A plan that was checked and not run.

    Attributes:
        plan: The plan.
        folder: Folder of its run, or None if its key is unknown without the data and weights.
        estimate: Its cost.
        notes: What is not on this machine, and what was assumed instead.
    """

    plan: Plan
    folder: Path | None
    estimate: Estimate
    notes: tuple[str, ...]


def dry_run_plan(
    source: str | Path, out: Path, workers: int, device: str = "cpu", overrides: PlanOverrides | None = None
) -> DryRun:
    """Check a plan and estimate its cost.

    Raises:
        PlanError: The plan has a problem other than missing files or weights.
    """
    plan, _, unavailable = inspect_plan(source, device, overrides)
    if unavailable:
        return _dry_run_without_files(plan, unavailable, workers, device)
    context = open_context(plan.model_dump_json(), device)
    folder = out / context.key
    return DryRun(plan, folder, estimate_run(context, make_chunks(context, folder.resolve()), workers), ())


def _dry_run_without_files(plan: Plan, unavailable: Sequence[PlanProblem], workers: int, device: str) -> DryRun:
    """Estimate with random weights and published data set sizes where the real ones are not on this machine."""
    no_weights = {int(p.path[1]) for p in unavailable if p.path[0] == "models"}
    notes = [f"the weights of {plan.models[i].title} are not on this machine: the time is a rough estimate"
             for i in sorted(no_weights)]  # fmt: skip
    models = tuple(
        spec.model_copy(update={"weights": "random"}) if i in no_weights else spec for i, spec in enumerate(plan.models)
    )
    context, speed = BenchContext(plan.model_copy(update={"models": models}), device), device_speed(device)
    costs = []
    for i, spec in enumerate(models):
        cost = _known_cost(plan, spec.name, speed) if i in no_weights else None
        costs.append(cost or measure_model(context, context.any_model(i)))
    counts, count_notes = _count_all_images(plan)
    timed = "computed from the model's size" if no_weights else "measured"
    return DryRun(plan, None, estimate_plan(plan, costs, counts, workers, timed), (*notes, *count_notes))


def _count_all_images(plan: Plan) -> tuple[dict[int, int], list[str]]:
    counted = [count_images(data) for data in plan.dataset]
    return {i: count for i, (count, _) in enumerate(counted)}, [note for _, note in counted if note]


def dry_run_all(workers: int, device: str = "cpu", overrides: PlanOverrides | None = None) -> list[tuple[str, DryRun]]:
    """Estimate the cost of all plans of the package, without downloading weights.

    The time of a forward pass is computed from its number of multiplications and the device's speed.
    """
    rows, speed = [], device_speed(device)
    for name, path in plans().items():
        plan, _, _ = parse_plan(path.read_text(encoding="utf-8"), path.parent, overrides or PlanOverrides())
        assert plan is not None
        counts, notes = _count_all_images(plan)
        costs = [_model_cost(plan, i, speed, device) for i in range(len(plan.models))]
        estimate = estimate_plan(plan, costs, counts, workers, "computed from the model's size")
        rows.append((name, DryRun(plan, None, estimate, tuple(notes))))
    return rows


def _model_cost(plan: Plan, index: int, speed: float, device: str) -> ModelCost:
    """Return the known cost of a model of the papers or of a text model, the measured cost of an embedded model."""
    cost = _known_cost(plan, plan.models[index].name, speed)
    if cost is None:
        context = BenchContext(plan, device)
        cost = measure_model(context, context.any_model(index))
    return cost


def _known_cost(plan: Plan, name: str, speed: float) -> ModelCost | None:
    return text_cost(plan, speed) if plan.reads_texts else catalogue_cost(plan, name, speed)


def plan_summary(name: str) -> str:
    """Return the first line of a plan of the package, which describes it.

    Example:
        >>> plan_summary("smoke")
        'A quick test of the installation: four scenes, two methods and the controls.'
    """
    path = plans().get(name)
    first = "" if path is None else path.read_text(encoding="utf-8").partition("\n")[0]
    if not first.startswith("# "):
        raise VitrailError(f"there is no plan {name!r}, or its first line is not a comment that describes it")
    return first.removeprefix("# ")
