"""Match a paper's models, data sets, protocols and methods with those of a plan, and list the differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.bench.papers import PaperMetric, PaperSource, PaperTable
from vitrail.methods import find
from vitrail.models import EMBEDDED_MODELS

if TYPE_CHECKING:
    from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan


@dataclass(frozen=True)
class PaperMatch:
    """The plan's counterpart of a model or data set of the paper.

    Attributes:
        title: Its title in the run's tables.
        same: Whether it is the paper's own.
        difference: How it differs from the paper's, or "".
    """

    title: str
    same: bool
    difference: str = ""


def match_models(table: PaperTable, plan: Plan) -> dict[str, PaperMatch]:
    """Match each model of the paper with one of the plan: by name, else with a substitute.

    Substitutes are used only if the plan has none of the paper's models.
    """
    named = {name: _find_model(source, plan.models) for name, source in table.models.items()}
    matches: dict[str, PaperMatch] = {}
    for i, (name, source) in enumerate(table.models.items()):
        spec = named[name]
        if spec is not None:
            matches[name] = _match_model(name, source, spec)
        elif not any(named.values()):
            other = plan.models[min(i, len(plan.models) - 1)]
            kind = "an embedded model" if other.name in EMBEDDED_MODELS else "another model"
            matches[name] = PaperMatch(other.title, False, f"{name}: replaced by {other.title}, {kind}.")
    return matches


def match_datasets(table: PaperTable, plan: Plan, images: Mapping[str, int]) -> dict[str, PaperMatch]:
    """Match each data set of the paper with one of the plan: by name, else with one that has the same protocols."""
    matches = {}
    paper_names = {name for source in table.datasets.values() for name in source.names}
    for name, source in table.datasets.items():
        wanted = {table.metric(n).protocol for n in table.numbers if n.dataset == name} - {""}
        count = {data.title: _count_protocols(plan, data, wanted) for data in plan.dataset}
        usable = sorted((data for data in plan.dataset if count[data.title]), key=lambda data: -count[data.title])
        same = [data for data in usable if data.name in source.names]
        # Another data set of the same paper is not a substitute.
        chosen = next(iter([*same, *(data for data in usable if data.name not in paper_names)]), None)
        if chosen is not None:
            matches[name] = _match_dataset(name, source, chosen, bool(same), images.get(chosen.title, 0))
    return matches


def match_protocol(metric: PaperMetric, protocols: Sequence[str]) -> tuple[str, str] | None:
    """Match a metric with a protocol of the plan and its score; None where there is none.

    A preset with another fill replaces one that is not run.

    Example:
        >>> match_protocol(PaperMetric("vtranm", "aopc(black)"), ["segmentation", "vtranm-tokens"])
        ('vtranm-tokens', 'aopc(tokens)')
    """
    name = _find_protocol(protocols, metric.protocol)
    if name is None:
        return None
    fill = name.removeprefix(f"{metric.protocol}-") if name != metric.protocol else ""
    return name, f"{metric.score.partition('(')[0]}({fill})" if fill else metric.score


def match_method(table: PaperTable, name: str, specs: Sequence[str]) -> str:
    """Match a method of the paper with a spec of the plan: with the same options, else the only one of its name.

    Returns "" where there is none. In ablations, where several rows are the same method, options must be the same.
    """
    wanted = [find(spec)[1:] for spec in table.methods[name]]
    for method, options in wanted:
        for spec in specs:
            if find(spec)[1].name == method.name and find(spec)[2] == options:
                return spec
    bases = [_base_name(names[0]) for names in table.methods.values() if names]
    if not wanted or bases.count(wanted[0][0].name) > 1:
        return ""
    same = [spec for spec in specs if _base_name(spec) == wanted[0][0].name]
    return same[0] if len(same) == 1 else ""


def setup_differences(table: PaperTable, plan: Plan, datasets: Collection[str]) -> list[str]:
    """Differences that concern the whole table: preprocessing, precision and explained classes."""
    differences = []
    if plan.view != table.view:
        differences.append(
            f"Images are preprocessed with the model's own transform (view = {plan.view!r}); the paper resizes them "
            "to the model's input size without cropping."
        )
    if plan.precision != "float32":
        differences.append(f"Perturbation tests ran in {plan.precision}.")
    wanted = {table.metric(number).target for number in table.numbers if number.dataset in datasets}
    missing = sorted(wanted - {*plan.targets, "things"})
    if missing:
        differences.append(f"The plan does not explain the {' and '.join(missing)} class.")
    return differences


def _count_protocols(plan: Plan, data: DatasetSpec, wanted: Collection[str]) -> int:
    """Number of the wanted protocols that are run on a data set."""
    return sum(_find_protocol(plan.protocols_of(data), name) is not None for name in wanted)


def _find_protocol(protocols: Sequence[str], wanted: str) -> str | None:
    if wanted in protocols:
        return wanted
    return next((name for name in protocols if name.startswith(f"{wanted}-")), None)


def _find_model(source: PaperSource, networks: Sequence[ModelSpec]) -> ModelSpec | None:
    for name in source.names:
        for network in networks:
            if _architecture(network.name) == _architecture(name):
                return network
    return None


def _architecture(name: str) -> str:
    """Name of a model without the tag of its weights."""
    return name.partition(".")[0]


def _base_name(spec: str) -> str:
    return spec.partition(":")[0]


def _match_model(name: str, source: PaperSource, spec: ModelSpec) -> PaperMatch:
    if spec.weights == "random":
        return PaperMatch(spec.title, False, f"{name}: {spec.name} with random weights.")
    if spec.weights is not None:
        difference = f"{name}: weights of {spec.name} from a file; it is not known whether they are the paper's."
        return PaperMatch(spec.title, True, difference)
    if spec.name not in source.names:
        return PaperMatch(spec.title, True, f"{name}: weights of {spec.name} instead of {source.names[0]}.")
    return PaperMatch(spec.title, True)


def _match_dataset(name: str, source: PaperSource, spec: DatasetSpec, same: bool, count: int) -> PaperMatch:
    if not same:
        kind = "rendered images" if spec.name == "scenes" else "images"
        return PaperMatch(spec.title, False, f"{name}: replaced by {count:,} {kind} of {spec.title}.")
    if count < source.images:
        return PaperMatch(spec.title, True, f"{name}: {count:,} images instead of {source.images:,}.")
    return PaperMatch(spec.title, True)
