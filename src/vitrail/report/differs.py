"""What a plan does otherwise than the paper whose table it repeats, found by looking at both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.models import EMBEDDED_MODELS
from vitrail.papers import PaperMetric, PaperSource, PaperTable

if TYPE_CHECKING:
    from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan


@dataclass(frozen=True)
class Match:
    """Which model or data set of a plan stands for one of the paper's.

    Attributes:
        title: What it is called in the run's tables.
        same: Whether it is the paper's.
        remark: What is not the paper's about it, or "".
    """

    title: str
    same: bool
    remark: str = ""


def match_models(table: PaperTable, plan: Plan) -> dict[str, Match]:
    """For each of the paper's models the plan's: by name, else one that stands in.

    A paper's model has none where the plan has others of the paper's.
    """
    named = {name: _named(source, plan.models) for name, source in table.models.items()}
    found: dict[str, Match] = {}
    for i, (name, source) in enumerate(table.models.items()):
        own = named[name]
        if own is not None:
            found[name] = _model(name, source, own)
        elif not any(named.values()):
            other = plan.models[min(i, len(plan.models) - 1)]
            kind = "an embedded model" if other.name in EMBEDDED_MODELS else "another model"
            found[name] = Match(other.title, False, f"{name}: {other.title}, {kind}, stands in for it.")
    return found


def match_data(table: PaperTable, plan: Plan, images: Mapping[str, int]) -> dict[str, Match]:
    """For each of the paper's data sets the plan's: by name, else one on which the same protocols are run.

    Args:
        table: The paper's table.
        plan: The plan.
        images: By title, how many pictures of it are used.
    """
    found = {}
    others = {name for source in table.datasets.values() for name in source.names}
    for name, source in table.datasets.items():
        wanted = {table.metric(n).protocol for n in table.numbers if n.dataset == name} - {""}
        count = {data.title: _fits(plan, data, wanted) for data in plan.dataset}
        fit = sorted((data for data in plan.dataset if count[data.title]), key=lambda data: -count[data.title])
        same = [data for data in fit if data.name in source.names]
        # What is another of the paper's data sets stands for that one, not for this.
        chosen = next(iter([*same, *(data for data in fit if data.name not in others)]), None)
        if chosen is not None:
            found[name] = _data(name, source, chosen, bool(same), images.get(chosen.title, 0))
    return found


def protocol_of(metric: PaperMetric, protocols: Sequence[str]) -> tuple[str, str] | None:
    """The protocol of a data set that gives a metric, and the score's name there; None where none does.

    A preset with another fill stands for one that is not run.

    Example:
        >>> protocol_of(Metric("vtranm", "aopc(black)"), ["segmentation", "vtranm-tokens"])
        ('vtranm-tokens', 'aopc(tokens)')
    """
    name = _run_as(protocols, metric.protocol)
    if name is None:
        return None
    fill = name.removeprefix(f"{metric.protocol}-") if name != metric.protocol else ""
    return name, f"{metric.score.partition('(')[0]}({fill})" if fill else metric.score


def set_up(table: PaperTable, plan: Plan, datasets: Collection[str]) -> list[str]:
    """What differs for the whole table: view, precision, targets of the paper's data sets that are run."""
    found = []
    if plan.view != table.view:
        found.append(f"Pictures are prepared as the model wants it (view = {plan.view!r}); the paper resizes them "
                     "straight to the model's size, so that nothing is cut off.")  # fmt: skip
    if plan.precision != "float32":
        found.append(f"Perturbation tests ran in {plan.precision}.")
    wanted = {table.metric(number).target for number in table.numbers if number.dataset in datasets}
    lost = sorted(wanted - {*plan.targets, "things"})
    if lost:
        found.append(f"Maps of the {' and '.join(lost)} class are not part of the plan.")
    return found


def _fits(plan: Plan, data: DatasetSpec, wanted: Collection[str]) -> int:
    """How many of some protocols are run on a data set."""
    return sum(_run_as(plan.protocols_of(data), name) is not None for name in wanted)


def _run_as(protocols: Sequence[str], wanted: str) -> str | None:
    if wanted in protocols:
        return wanted
    return next((name for name in protocols if name.startswith(f"{wanted}-")), None)


def _named(source: PaperSource, networks: Sequence[ModelSpec]) -> ModelSpec | None:
    for name in source.names:
        for network in networks:
            if _architecture(network.name) == _architecture(name):
                return network
    return None


def _architecture(name: str) -> str:
    """A model's name without the tag of its weights."""
    return name.partition(".")[0]


def _model(name: str, source: PaperSource, own: ModelSpec) -> Match:
    if own.weights == "random":
        return Match(own.title, False, f"{name}: {own.name} with random weights.")
    if own.weights is not None:
        return Match(own.title, True, f"{name}: weights of {own.name} from a file; whether they are the paper's is not "
                     "known here.")  # fmt: skip
    if own.name not in source.names:
        return Match(own.title, True, f"{name}: the weights of {own.name}, not of {source.names[0]}.")
    return Match(own.title, True)


def _data(name: str, source: PaperSource, own: DatasetSpec, same: bool, count: int) -> Match:
    if not same:
        kind = "drawn pictures" if own.name == "scenes" else "pictures"
        return Match(own.title, False, f"{name}: {count:,} {kind} of {own.title} stand in for it.")
    if count < source.images:
        return Match(own.title, True, f"{name}: {count:,} pictures instead of {source.images:,}.")
    return Match(own.title, True)
