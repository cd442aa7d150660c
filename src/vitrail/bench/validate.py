"""Everything that can be wrong with a plan, found before anything runs and told all at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitrail.bench.context import BenchContext, BenchImages, BenchModel, open_context
from vitrail.bench.ground_truth import read_ground_truth
from vitrail.bench.plan import Plan, PlanOverrides, PlanProblem, find_plan, listed, parse
from vitrail.bench.protocols import PROTOCOLS
from vitrail.bench.reexplain import outputs_for
from vitrail.data import DATASETS, Sample
from vitrail.errors import ModelError, OptionError, VitrailError
from vitrail.methods import find
from vitrail.models.catalogue import short_name
from vitrail.models.loading import FETCHING, at_hand, offline
from vitrail.scores.presets import PRESETS, find_presets

#: What stands in for a key that is not well formed, so that the rest of a plan can be looked at.
_STAND_INS: dict[str, Any] = {
    "name": "plan", "models": "scenes", "dataset": {"name": "scenes", "limit": 1}, "methods": "random",
    "protocols": "complexity",
}  # fmt: skip
#: Samples that are looked at to find out what a data set knows.
LOOKED_AT = 4


def read_plan(source: str | Path, device: str = "cpu", given: PlanOverrides | None = None) -> tuple[Plan, str]:
    """Read a plan by path or name and check all of it.

    Args:
        source: A file, or the name of a plan of the package.
        device: Where its models will be put.
        given: What is said beside it: folders of data sets, files of weights, a limit.

    Returns:
        The plan and the text it was read from.

    Raises:
        PlanError: Lists every problem with its line and what to do.
    """
    plan, text, problems = look(source, device, given, fetch=True)
    if problems:
        raise listed(problems, text, source)
    return plan, text


def look(
    source: str | Path, device: str = "cpu", given: PlanOverrides | None = None, *, fetch: bool = False
) -> tuple[Plan, str, list[PlanProblem]]:
    """As `read_plan`, but problems of files and weights that are not on this machine are returned, not raised.

    Args:
        source: A file, or the name of a plan of the package.
        device: Where its models will be put.
        given: What is said beside it.
        fetch: Whether weights that are not here are fetched.
    """
    path = find_plan(source)
    text = path.read_text(encoding="utf-8")
    plan, raw, problems = parse(text, path.parent.resolve(), given or PlanOverrides())
    bad = {str(p.path[0]) for p in problems if p.path}
    if plan is None:
        kept = {key: value for key, value in raw.items() if key not in bad}
        plan = Plan.model_validate({key: value for key, value in _STAND_INS.items() if key not in kept} | kept)
    problems += check(plan, frozenset(bad), device, fetch=fetch)
    if not all(problem.absent for problem in problems):
        raise listed(problems, text, source)
    return plan, text, problems


def check(
    plan: Plan, skip: frozenset[str] = frozenset(), device: str = "cpu", *, fetch: bool = True
) -> list[PlanProblem]:
    """Every problem of a well-formed plan.

    Args:
        plan: The plan.
        skip: Keys that are known to be wrong and hold stand-ins.
        device: Where its models will be put.
        fetch: Whether weights that are not here are fetched. Where something else is wrong they are not: nobody waits
            for a download to be told of a slip.
    """
    stage = open_context(plan.model_dump_json(), device)
    problems = [*_methods(plan), *_protocols(plan)]
    problems += [p for number in range(len(plan.dataset)) for p in _data(stage, number, skip)]
    lost = frozenset(int(p.path[1]) for p in problems if p.path[0] == "dataset" and len(p.path) > 1)
    unknown = {i for p in problems if p.path[0] == "methods" for i in p.path[1:]}
    wrong = bool(problems or skip)
    away = not fetch or wrong
    with offline() if away else nullcontext():
        found = [p for i in range(len(plan.models)) for p in _model(stage, i, skip, bool(unknown), lost, away)]
    problems += [p for p in found if not (fetch and wrong and p.absent and FETCHING in p.text)]
    return [p for p in problems if str(p.path[0]) not in skip]


def _methods(plan: Plan) -> Iterator[PlanProblem]:
    for i, spec in enumerate(plan.methods):
        if spec == "@single":
            continue
        try:
            find(spec)
        except OptionError as error:
            yield PlanProblem(path=("methods", i), text=str(error))


def _protocols(plan: Plan) -> Iterator[PlanProblem]:
    for i, name in enumerate(plan.protocols):
        reason = _unknown(name)
        if reason:
            yield PlanProblem(path=("protocols", i), text=reason)
            continue
        explains = PROTOCOLS[name].explains if name in PROTOCOLS else find_presets(name)[0].explains
        if explains and not set(explains) & set(plan.targets):
            text = f"{name} scores maps of the {' or '.join(explains)} class: add it to targets, or leave {name} out"
            yield PlanProblem(path=("protocols", i), text=text)
    for key, things in (("dataset", plan.dataset), ("models", plan.models)):
        titles = [thing.title for thing in things]
        for i, title in enumerate(titles):
            if title in titles[:i]:
                yield PlanProblem(path=(key, i), text=f"two of {key} are called {title!r}: give one of them a label")
    for i, data in enumerate(plan.dataset):
        for name in data.protocols or ():
            if name not in plan.protocols:
                text = f"{name!r} is not among the plan's protocols: add it there, or leave it out here"
                yield PlanProblem(path=("dataset", i, "protocols"), text=text)


def _unknown(name: str) -> str | None:
    if name in PROTOCOLS:
        return None
    try:
        find_presets(name)
    except OptionError:
        known = ", ".join([*PROTOCOLS, *PRESETS])
        return f"unknown protocol {name!r}: choose from {known}; a preset takes another fill as in chefer21-mean"
    return None


def _data(stage: BenchContext, number: int, skip: frozenset[str]) -> Iterator[PlanProblem]:
    """Can the data set be opened, and does it know what the protocols and targets ask for?"""
    plan = stage.plan
    data = plan.dataset[number]
    key = "root" if data.root is not None else "ids" if data.ids is not None else "name"
    if data.root is None and data.name in DATASETS and data.name != "scenes":
        text = (
            f"{data.title} is read from files, and where they are is not said: give --data {data.title}=FOLDER, or set "
            f"VITRAIL_DATA to a folder that holds {data.title}/, or write root = … here"
        )
        yield PlanProblem(path=("dataset", number, "name"), text=text, absent=True)
        return
    try:
        pictures = stage.pictures(number)
        samples = _samples(pictures)
    except VitrailError as error:
        gone = data.root is not None and not Path(data.root).exists()
        yield PlanProblem(path=("dataset", number, key), text=str(error), absent=gone)
        return
    if all(sample.image is None for sample, _ in samples):
        yield PlanProblem(
            path=("dataset", number, "name"), text=f"{data.name} holds texts: the benchmark is for pictures"
        )
        return
    has = {
        "mask": any(s.mask is not None for s, _ in samples),
        "boxes": any(s.boxes is not None for s, _ in samples),
        "label": any(s.label is not None for s, _ in samples),
        "things": any(len(things) > 1 or len(set(s.labels)) > 1 for s, things in samples),
        "classes": any(things for _, things in samples),
    }
    words = {"mask": "masks", "boxes": "boxes", "label": "labels", "things": "pictures with two known classes",
             "classes": "masks that tell classes apart"}  # fmt: skip
    for i, name in enumerate(plan.protocols):
        if name in PROTOCOLS and name in plan.protocols_of(data):
            for need in PROTOCOLS[name].needs:
                if not has[need]:
                    text = (
                        f"{name} cannot be run on {data.title}, which has no {words[need]}: leave it out, or say which "
                        "protocols are meant with protocols = […] in its [[dataset]]"
                    )
                    yield PlanProblem(path=("protocols", i), text=text)
    if "label" in plan.targets and not has["label"] and "targets" not in skip:
        text = f"targets holds 'label', and {data.title} has no labels: explain the predicted class"
        yield PlanProblem(path=("targets",), text=text)


def _samples(pictures: BenchImages) -> list[tuple[Sample, dict[int, Any]]]:
    """The first samples; some may be damaged, as that is for the table to say, but not all."""
    found: list[tuple[Sample, dict[int, Any]]] = []
    trouble: VitrailError | None = None
    for index in pictures.indices[:LOOKED_AT]:
        try:
            found.append(read_ground_truth(pictures.dataset, index))
        except VitrailError as error:
            trouble = error
    if trouble is not None and not found:
        raise trouble
    return found


def _model(
    stage: BenchContext, number: int, skip: frozenset[str], unsure: bool, lost: frozenset[int], away: bool
) -> Iterator[PlanProblem]:
    """Can the model be loaded, does any method apply, and does it know the data set's classes?"""
    plan, network = stage.plan, stage.plan.models[number]
    name = network.name
    try:
        if away and network.weights is None and not at_hand(name):  # known before a large model is made for nothing
            raise ModelError(f"the weights of {name} are not here ({FETCHING} they are fetched when the plan is run)")
        model = stage.model(number)
    except VitrailError as error:
        file = network.weights not in (None, "random") and not Path(str(network.weights)).is_file()
        fetched = network.weights is None and isinstance(error, ModelError) and FETCHING in str(error)
        advice = f"; or give --weights {network.label or short_name(name)}=FILE" if fetched else ""
        yield PlanProblem(path=("models", number), text=f"{error}{advice}", absent=file or fetched)
        return
    own = [spec for spec in plan.specs() if spec not in model.refused]
    if not unsure and not own:
        reasons = "; ".join(dict.fromkeys(model.refused.values()))
        yield PlanProblem(path=("models", number), text=f"no method of the plan applies to {name}: {reasons}")
    if "sanity" in plan.protocols:
        try:
            stages = len(model.stages)
            if not stages:
                raise ModelError("it has none")
        except VitrailError as error:
            text = f"sanity cannot be run on {name}, whose parts were not found ({error}): leave it out"
            yield PlanProblem(path=("protocols", plan.protocols.index("sanity")), text=text)
    if "dataset" in skip or "models" in skip:
        return
    for i in sorted(set(range(len(plan.dataset))) - lost):  # what is lost was told where the data set is looked at
        yield from _classes(stage, number, i, model)


def _classes(stage: BenchContext, number: int, i: int, model: BenchModel) -> Iterator[PlanProblem]:
    """Do the model's classes mean what the data set's do, where a protocol or target needs that?"""
    plan, data, name = stage.plan, stage.plan.dataset[i], stage.plan.models[number].name
    known, own = stage.pictures(i).dataset.classes, plan.protocols_of(data)
    if "multiclass" in own:
        try:
            outputs_for(known, model.classes)
        except VitrailError as error:
            text = f"multiclass cannot be run with {name} on {data.title}: {error}; leave it out, or take another model"
            yield PlanProblem(path=("protocols", plan.protocols.index("multiclass")), text=text)
    needs = [p for p in own if p in PROTOCOLS and "things" in PROTOCOLS[p].needs]
    if not stage.same_classes(number, i) and ("label" in plan.targets or needs):
        text = (
            f"{name} has {model.classes} classes and {data.title} has {len(known or ())}, so its labels mean nothing "
            f"to the model: {'leave out ' + ', '.join(needs) if needs else 'explain the predicted class'}, or take a "
            "model of these classes"
        )
        yield PlanProblem(path=("targets",) if "label" in plan.targets else ("models", number), text=text)
