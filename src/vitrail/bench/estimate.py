"""A dry run: how many forwards a plan takes, and about how long, from a cost model and one small batch that is timed.

Costs are counted in forwards of one picture, a backward being two. An explanation by one pass costs three and, with
several classes, two more for each; sampling methods cost what their options say. A perturbation test costs a forward
for each level that is neither untouched nor empty; levels that presets share count once, and a second class counts for
the pictures it differs on, taken as one in five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitrail.bench.chunk import Chunk
from vitrail.bench.context import BenchContext, grouped
from vitrail.bench.cost import ModelCost, measured
from vitrail.bench.parts import read_note
from vitrail.bench.plan import DatasetSpec, Plan
from vitrail.bench.protocols import PROTOCOLS
from vitrail.methods import ModelSize, find
from vitrail.scores.fills import TOKENS
from vitrail.scores.presets import find_presets

#: Share of pictures whose label is the model's answer, for the cost of a second class.
ACCURACY = 0.8
#: Explanations of the sensitivity score.
AGAIN = 10
#: Classes in a picture of VOC, on average.
CLASSES = 1.5


@dataclass(frozen=True)
class Estimate:
    """What a plan would take.

    Attributes:
        images: Pictures, of all data sets.
        maps: Maps, of all models and methods.
        forwards: Forwards of one picture, in all.
        explaining: Those that go into making maps.
        left: Share of the work that is not done yet.
        work: Seconds it would take one worker from the beginning.
        workers: How many work.
        memory: Bytes that one worker takes at the most.
        timed: How the time of a forward is known.
    """

    images: int
    maps: int
    forwards: float
    explaining: float
    left: float
    work: float
    workers: int
    memory: int
    timed: str = "measured"

    @property
    def seconds(self) -> float:
        """Until it is done."""
        return self.work * self.left / self.workers

    @property
    def time(self) -> str:
        """The same in words.

        Example:
            >>> Estimate(1, 1, 1.0, 1.0, 1.0, 7200.0, 1, 1).time
            '2.0 h'
        """
        return f"{self.seconds / 3600:,.1f} h" if self.seconds > 5400 else f"{self.seconds / 60:.1f} min"

    def rows(self) -> list[tuple[str, str]]:
        """As words for a table."""
        each = 1000 * self.work / self.forwards if self.forwards else 0.0
        return [
            ("images", f"{self.images:,}"),
            ("maps", f"{self.maps:,}"),
            ("forwards", f"{self.forwards:,.0f}, of which {self.explaining:,.0f} make maps and the rest score them"),
            ("left to do", f"{100 * self.left:.0f} %"),
            ("a forward", f"{each:.2f} ms, {self.timed}"),
            ("time", f"about {self.time} with {self.workers} worker{'s' if self.workers > 1 else ''}"),
            ("memory", f"about {self.memory / 2**30:.1f} GiB a worker"),
        ]


def estimate(stage: BenchContext, chunks: Sequence[Chunk], workers: int) -> Estimate:
    """Count the forwards of a plan that can be run, and time a small batch.

    Args:
        stage: The opened plan.
        chunks: Its pieces of work.
        workers: How many will work.
    """
    bodies = [measured(stage, stage.model(i)) for i in range(len(stage.plan.models))]
    pieces = [(c.model, c.data, c.methods, len(c.indices), read_note(c.path) != c.note) for c in chunks]
    images = sum(len(stage.pictures(i).indices) for i in range(len(stage.plan.dataset)))
    return _sum(stage.plan, bodies, pieces, images, workers, "measured")


def sketch(plan: Plan, bodies: Sequence[ModelCost], counts: Mapping[int, int], workers: int, timed: str) -> Estimate:
    """Count the forwards of a plan from what is known of its models and data sets, neither of which need be there.

    Args:
        plan: The plan.
        bodies: What is known of each model.
        counts: Pictures, by data set.
        workers: How many would work.
        timed: How the time of a forward is known.
    """
    pieces = [
        (m, d, methods, count, True)
        for m, body in enumerate(bodies) for methods in grouped(body.methods) for d, count in counts.items()
    ]  # fmt: skip
    return _sum(plan, bodies, pieces, sum(counts.values()), workers, timed)


def _sum(
    plan: Plan,
    bodies: Sequence[ModelCost],
    pieces: Sequence[tuple[int, int, tuple[str, ...], int, bool]],
    images: int,
    workers: int,
    timed: str,
) -> Estimate:
    """Add up pieces of work: model, data set, methods, pictures, and whether it is still to be done."""
    total = explaining = work = left = 0.0
    maps = 0
    for model, data, methods, count, missing in pieces:
        body = bodies[model]
        making = count * sum(explanation_cost(plan, plan.dataset[data], methods, spec, body) for spec in methods)
        own = making + count * (2 + scoring_cost(plan, plan.dataset[data], methods, body))
        total, explaining, work = total + own, explaining + making, work + own * body.seconds
        left += own * body.seconds if missing else 0.0
        maps += count * len(methods)
    memory = max(body.memory for body in bodies)
    return Estimate(images, maps, total, explaining, left / work if work else 0.0, work, workers, memory, timed)


def explanation_cost(plan: Plan, data: DatasetSpec, methods: Sequence[str], spec: str, body: ModelCost) -> float:
    """Forwards that one picture's maps take by one of some methods done together; methods of one pass share it."""
    _, method, options = find(spec)
    protocols = plan.protocols_of(data)
    targets = 1.0 + (1 - ACCURACY if len(plan.targets) > 1 else 0.0) + ("selectivity" in protocols)
    targets += CLASSES if "multiclass" in protocols else 0.0
    again = 1 + (AGAIN if "sensitivity" in protocols else 0) + (body.blocks + 3 if "sanity" in protocols else 0)
    size = ModelSize(body.grid or (body.size[0] // 16, body.size[1] // 16), body.width, body.blocks)
    own = method.cost(options, size, 1).forwards
    if own:
        return again * own * (1.0 if method.family == "perturbation" else targets)
    shared = sum(find(other)[1].cost(find(other)[2], size, 1).forwards == 0 for other in methods)
    return again * (1 + 2 * targets) / max(1, shared)


def scoring_cost(plan: Plan, data: DatasetSpec, methods: Sequence[str], body: ModelCost) -> float:
    """Forwards that scoring one picture's maps of some methods takes."""
    presets = find_presets([n for n in plan.protocols_of(data) if n not in PROTOCOLS])
    if not presets:
        return 0.0
    height, width = body.size
    rows, columns = body.grid or (14, 14)
    cost = 1.0
    for target in plan.targets:
        levels = set()
        for curve in (c for p in presets if target in p.explains for c in p.curves):
            units = rows * columns if curve.fill == TOKENS else height * width
            levels |= {(curve.order, curve.fill, k) for k in curve.removed(units) if 0 < k < units}
        for spec in methods:
            second = target == "label" and "predicted" in plan.targets
            share = (1 - ACCURACY if find(spec)[1].class_specific else 0.0) if second else 1.0
            # With patches left out a forward takes about half as long.
            cost += share * sum(0.5 if fill == TOKENS else 1.0 for _, fill, _ in levels)
    return cost
