"""Everything that can be wrong with a plan, found before anything runs and told all at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.bench.plan import Plan, Problem, find_plan, listed, parse
from vitrail.bench.protocols import PROTOCOLS
from vitrail.bench.stage import Pictures, Stage, open_stage
from vitrail.bench.truth import read
from vitrail.data import Sample
from vitrail.errors import OptionError, VitrailError
from vitrail.methods import find
from vitrail.scores.presets import PRESETS, find_presets

#: What stands in for a key that is not well formed, so that the rest of a plan can be looked at.
_STAND_INS: dict[str, Any] = {
    "name": "plan", "models": "scenes", "dataset": {"name": "scenes", "limit": 1}, "methods": "random",
    "protocols": "complexity",
}  # fmt: skip
#: Samples that are looked at to find out what a data set knows.
LOOKED_AT = 4


def read_plan(source: str | Path, device: str = "cpu") -> tuple[Plan, str]:
    """Read a plan by path or name and check all of it.

    Args:
        source: A file, or the name of a plan of the package.
        device: Where its models will be put.

    Returns:
        The plan and the text it was read from.

    Raises:
        PlanError: Lists every problem with its line and what to do.
    """
    path = find_plan(source)
    text = path.read_text(encoding="utf-8")
    plan, raw, problems = parse(text, path.parent.resolve())
    bad = {str(p.path[0]) for p in problems if p.path}
    if plan is None:
        kept = {key: value for key, value in raw.items() if key not in bad}
        plan = Plan.model_validate({key: value for key, value in _STAND_INS.items() if key not in kept} | kept)
    problems += check(plan, frozenset(bad), device)
    if problems:
        raise listed(problems, text, source)
    return plan, text


def check(plan: Plan, skip: frozenset[str] = frozenset(), device: str = "cpu") -> list[Problem]:
    """Every problem of a well-formed plan.

    Args:
        plan: The plan.
        skip: Keys that are known to be wrong and hold stand-ins.
        device: Where its models will be put.
    """
    stage = open_stage(plan.model_dump_json(), device)
    problems = [*_methods(plan), *_protocols(plan)]
    problems += [p for number in range(len(plan.dataset)) for p in _data(stage, number, skip)]
    unknown = {i for p in problems if p.path[0] == "methods" for i in p.path[1:]}
    for number in range(len(plan.models)):
        problems += _model(stage, number, skip, bool(unknown))
    return [p for p in problems if str(p.path[0]) not in skip]


def _methods(plan: Plan) -> Iterator[Problem]:
    for i, spec in enumerate(plan.methods):
        if spec == "@single":
            continue
        try:
            find(spec)
        except OptionError as error:
            yield Problem(path=("methods", i), text=str(error))


def _protocols(plan: Plan) -> Iterator[Problem]:
    for i, name in enumerate(plan.protocols):
        reason = _unknown(name)
        if reason:
            yield Problem(path=("protocols", i), text=reason)
            continue
        explains = PROTOCOLS[name].explains if name in PROTOCOLS else find_presets(name)[0].explains
        if explains and not set(explains) & set(plan.targets):
            text = f"{name} scores maps of the {' or '.join(explains)} class: add it to targets, or leave {name} out"
            yield Problem(path=("protocols", i), text=text)
    for key, things in (("dataset", plan.dataset), ("models", plan.models)):
        titles = [thing.title for thing in things]
        for i, title in enumerate(titles):
            if title in titles[:i]:
                yield Problem(path=(key, i), text=f"two of {key} are called {title!r}: give one of them a label")
    for i, data in enumerate(plan.dataset):
        for name in data.protocols or ():
            if name not in plan.protocols:
                text = f"{name!r} is not among the plan's protocols: add it there, or leave it out here"
                yield Problem(path=("dataset", i, "protocols"), text=text)


def _unknown(name: str) -> str | None:
    if name in PROTOCOLS:
        return None
    try:
        find_presets(name)
    except OptionError:
        known = ", ".join([*PROTOCOLS, *PRESETS])
        return f"unknown protocol {name!r}: choose from {known}; a preset takes another fill as in chefer21-mean"
    return None


def _data(stage: Stage, number: int, skip: frozenset[str]) -> Iterator[Problem]:
    """Can the data set be opened, and does it know what the protocols and targets ask for?"""
    plan = stage.plan
    data = plan.dataset[number]
    key = "root" if data.root is not None else "ids" if data.ids is not None else "name"
    try:
        pictures = stage.pictures(number)
        samples = _samples(pictures)
    except VitrailError as error:
        yield Problem(path=("dataset", number, key), text=str(error))
        return
    if all(sample.image is None for sample, _ in samples):
        yield Problem(path=("dataset", number, "name"), text=f"{data.name} holds texts: the benchmark is for pictures")
        return
    has = {
        "mask": any(s.mask is not None for s, _ in samples),
        "boxes": any(s.boxes is not None for s, _ in samples),
        "label": any(s.label is not None for s, _ in samples),
        "things": any(len(things) > 1 or len(set(s.labels)) > 1 for s, things in samples),
    }
    words = {"mask": "masks", "boxes": "boxes", "label": "labels", "things": "pictures with two known classes"}
    for i, name in enumerate(plan.protocols):
        if name in PROTOCOLS and name in plan.protocols_of(data):
            for need in PROTOCOLS[name].needs:
                if not has[need]:
                    text = (
                        f"{name} cannot be run on {data.title}, which has no {words[need]}: leave it out, or say which "
                        "protocols are meant with protocols = […] in its [[dataset]]"
                    )
                    yield Problem(path=("protocols", i), text=text)
    if "label" in plan.targets and not has["label"] and "targets" not in skip:
        text = f"targets holds 'label', and {data.title} has no labels: explain the predicted class"
        yield Problem(path=("targets",), text=text)


def _samples(pictures: Pictures) -> list[tuple[Sample, dict[int, Any]]]:
    """The first samples; some may be damaged, as that is for the table to say, but not all."""
    found: list[tuple[Sample, dict[int, Any]]] = []
    trouble: VitrailError | None = None
    for index in pictures.indices[:LOOKED_AT]:
        try:
            found.append(read(pictures.dataset, index))
        except VitrailError as error:
            trouble = error
    if trouble is not None and not found:
        raise trouble
    return found


def _model(stage: Stage, number: int, skip: frozenset[str], unsure: bool) -> Iterator[Problem]:
    """Can the model be loaded, does any method apply, and does it know the data set's classes?"""
    plan, name = stage.plan, stage.plan.models[number].name
    try:
        model = stage.model(number)
    except VitrailError as error:
        yield Problem(path=("models", number), text=str(error))
        return
    own = [spec for spec in plan.specs() if spec not in model.refused]
    if not unsure and not own:
        reasons = "; ".join(dict.fromkeys(model.refused.values()))
        yield Problem(path=("models", number), text=f"no method of the plan applies to {name}: {reasons}")
    if "dataset" in skip or "models" in skip:
        return
    for i, data in enumerate(plan.dataset):
        try:
            agree = stage.same_classes(number, i)
        except VitrailError:
            continue  # told where the data set is looked at
        needs = [p for p in plan.protocols_of(data) if p in PROTOCOLS and "things" in PROTOCOLS[p].needs]
        if not agree and ("label" in plan.targets or needs):
            known = stage.pictures(i).dataset.classes or ()
            text = (
                f"{name} has {model.classes} classes and {data.title} has {len(known)}, so its labels mean nothing to "
                f"the model: {'leave out ' + ', '.join(needs) if needs else 'explain the predicted class'}, or take a "
                "model of these classes"
            )
            yield Problem(path=("targets",) if "label" in plan.targets else ("models", number), text=text)
