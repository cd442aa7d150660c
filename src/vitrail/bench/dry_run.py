"""What plans would take, also where their pictures or weights are not on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.bench.chunk import chunks
from vitrail.bench.context import BenchContext, open_context
from vitrail.bench.cost import ModelCost, known, measured, pictures_of, speed_of
from vitrail.bench.estimate import Estimate, estimate, sketch
from vitrail.bench.plan import Plan, PlanOverrides, PlanProblem, parse, plans
from vitrail.bench.validate import look
from vitrail.errors import VitrailError


class Trial(NamedTuple):
    """A plan that was looked at and not run.

    Attributes:
        plan: The plan.
        folder: The run's folder, or None where it cannot be named without the pictures and weights.
        found: What it would take.
        notes: What is not here, and how it was counted instead.
    """

    plan: Plan
    folder: Path | None
    found: Estimate
    notes: tuple[str, ...]


def trial(
    source: str | Path, out: Path, workers: int, device: str = "cpu", given: PlanOverrides | None = None
) -> Trial:
    """Check a plan and count what it would take.

    Args:
        source: A file, or the name of a plan of the package.
        out: The folder of all runs.
        workers: How many would work.
        device: Where its models are put.
        given: What is said beside the plan.

    Raises:
        PlanError: Something is wrong with it that more files would not mend.
    """
    plan, _, absent = look(source, device, given)
    if not absent:
        stage = open_context(plan.model_dump_json(), device)
        folder = out / stage.key
        return Trial(plan, folder, estimate(stage, chunks(stage, folder.resolve()), workers), ())
    return _without(plan, absent, workers, device)


def _without(plan: Plan, absent: Sequence[PlanProblem], workers: int, device: str) -> Trial:
    """Count with random weights and published numbers of pictures where the true ones are not here."""
    lost = {int(p.path[1]) for p in absent if p.path[0] == "models"}
    notes = [f"the weights of {plan.models[i].title} are not here: the time is a guess" for i in sorted(lost)]
    bare = [n.model_copy(update={"weights": "random"}) if i in lost else n for i, n in enumerate(plan.models)]
    stage, speed = BenchContext(plan.model_copy(update={"models": tuple(bare)}), device), speed_of(device)
    bodies = []
    for i, network in enumerate(bare):
        found = known(plan, network.name, speed) if i in lost else None
        bodies.append(found or measured(stage, stage.model(i)))
    counts, remarks = _counted(plan)
    how = "from its size" if lost else "measured"
    return Trial(plan, None, sketch(plan, bodies, counts, workers, how), (*notes, *remarks))


def _counted(plan: Plan) -> tuple[dict[int, int], list[str]]:
    found = [pictures_of(data) for data in plan.dataset]
    return {i: count for i, (count, _) in enumerate(found)}, [remark for _, remark in found if remark]


def overview(workers: int, device: str = "cpu", given: PlanOverrides | None = None) -> list[tuple[str, Trial]]:
    """All plans of the package and about what each would take; no weights are fetched and none are needed.

    The time of a forward comes from the number of its multiplications and the device's speed at those.

    Args:
        workers: How many would work.
        device: Where they would be put.
        given: Where data sets are.
    """
    rows, speed = [], speed_of(device)
    for name, path in plans().items():
        plan, _, _ = parse(path.read_text(encoding="utf-8"), path.parent, given or PlanOverrides())
        assert plan is not None
        counts, notes = _counted(plan)
        bodies = [_body(plan, i, speed, device) for i in range(len(plan.models))]
        rows.append((name, Trial(plan, None, sketch(plan, bodies, counts, workers, "from its size"), tuple(notes))))
    return rows


def _body(plan: Plan, number: int, speed: float, device: str) -> ModelCost:
    """A model of the papers from what is written about it, an embedded one by looking at it."""
    found = known(plan, plan.models[number].name, speed)
    if found is None:
        stage = BenchContext(plan, device)
        found = measured(stage, stage.model(number))
    return found


def about(name: str) -> str:
    """The first line of a plan of the package, which says what it is.

    Example:
        >>> about("smoke")
        'A few scenes and three methods: does everything run?'
    """
    path = plans().get(name)
    first = "" if path is None else path.read_text(encoding="utf-8").partition("\n")[0]
    if not first.startswith("# "):
        raise VitrailError(f"there is no plan {name!r}, or its first line does not say what it is")
    return first.removeprefix("# ")
