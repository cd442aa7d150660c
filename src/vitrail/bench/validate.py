"""Validate a plan before anything runs, and report all of its problems at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitrail.bench.context import AnyBenchModel, BenchContext, BenchImages, BenchModel, open_context
from vitrail.bench.ground_truth import read_ground_truth
from vitrail.bench.multiclass_protocols import MULTICLASS, MULTICLASS_ORIGINAL, class_outputs
from vitrail.bench.plan import TEXT_DATASETS, WORLD_DATASETS, Plan, PlanProblem
from vitrail.bench.plan_file import PlanOverrides, find_plan, parse_plan, plan_error
from vitrail.bench.protocols import PROTOCOLS
from vitrail.data import DATASETS, ImageGrids, ImageSource, Sample
from vitrail.data.datasets import RENDERED
from vitrail.errors import ModelError, OptionError, VitrailError
from vitrail.methods import find
from vitrail.methods.plugins import import_modules, load_plugins
from vitrail.models.catalogue import short_name
from vitrail.models.loading import NO_NETWORK, offline, weights_cached
from vitrail.scores.presets import PRESETS, find_presets

#: Values that replace malformed keys, so that the rest of a plan can be checked.
_PLACEHOLDERS: dict[str, Any] = {
    "name": "plan", "models": "scenes", "dataset": {"name": "scenes", "limit": 1}, "methods": "random",
    "protocols": "complexity",
}  # fmt: skip
#: Samples that are read to find out which ground truth a data set has.
SAMPLES_READ = 4
#: About how many others are tried, spread over the data set, if none of these can be read.
OTHER_SAMPLES = 16
#: What a protocol may need of a data set, in words.
_NEEDS = {"mask": "masks", "boxes": "boxes", "label": "labels", "two classes": "images with two known classes",
          "class masks": "masks that distinguish classes", "grid": "grids of images",
          "rationale": "marked words"}  # fmt: skip


def read_plan(source: str | Path, device: str = "cpu", overrides: PlanOverrides | None = None) -> tuple[Plan, str]:
    """Read a plan by path or name and validate it.

    Args:
        source: A file, or the name of a plan of the package.
        device: Device of its models.
        overrides: Settings given in addition to the plan: folders of data sets, weights files, a limit.

    Returns:
        The plan and its text.

    Raises:
        PlanError: The plan has problems; the message lists each with its line and its fix.
    """
    plan, text, problems = inspect_plan(source, device, overrides, fetch=True)
    if problems:
        raise plan_error(problems, text, source)
    return plan, text


def inspect_plan(
    source: str | Path, device: str = "cpu", overrides: PlanOverrides | None = None, *, fetch: bool = False
) -> tuple[Plan, str, list[PlanProblem]]:
    """Read and validate a plan like `read_plan`, but return problems of files and weights that are not available.

    Args:
        source: A file, or the name of a plan of the package.
        device: Device of its models.
        overrides: Settings given in addition to the plan.
        fetch: Whether to download missing weights.

    Returns:
        The plan, its text, and the problems of unavailable files and weights.

    Raises:
        PlanError: The plan has other problems.
    """
    path = find_plan(source)
    text = path.read_text(encoding="utf-8")
    plan, raw, problems = parse_plan(text, path.parent.resolve(), overrides or PlanOverrides())
    malformed = {str(p.path[0]) for p in problems if p.path}
    if plan is None:
        valid = {key: value for key, value in raw.items() if key not in malformed}
        plan = Plan.model_validate({key: value for key, value in _PLACEHOLDERS.items() if key not in valid} | valid)
    problems += check_plan(plan, frozenset(malformed), device, fetch=fetch)
    if not all(problem.unavailable for problem in problems):
        raise plan_error(problems, text, source)
    return plan, text, problems


def check_plan(
    plan: Plan, malformed: frozenset[str] = frozenset(), device: str = "cpu", *, fetch: bool = True
) -> list[PlanProblem]:
    """Return every problem of a well-formed plan.

    Args:
        plan: The plan.
        malformed: Keys that hold placeholders and are not checked.
        device: Device of its models.
        fetch: Whether to download missing weights. They are not downloaded if the plan has another problem, so that
            nobody waits for a download to learn of a typing error.
    """
    for i, name in enumerate(plan.imports):  # without it, its methods and scores are unknown
        try:
            import_modules([name])
        except OptionError as error:
            return [PlanProblem(path=("imports", i), text=str(error))]
    context = open_context(plan.model_dump_json(), device)
    problems = [*_check_methods(plan), *_check_protocols(plan)]
    problems += [p for index in range(len(plan.dataset)) for p in _check_dataset(context, index, malformed)]
    bad_datasets = frozenset(int(p.path[1]) for p in problems if p.path[0] == "dataset" and len(p.path) > 1)
    bad_methods = any(p.path[0] == "methods" for p in problems)
    has_problems = bool(problems or malformed)
    no_download = not fetch or has_problems
    with offline() if no_download else nullcontext():
        model_problems = [
            p for index in range(len(plan.models))
            for p in _check_model(context, index, malformed, bad_methods, bad_datasets, no_download)
        ]  # fmt: skip
    if fetch and has_problems:  # weights that were not downloaded only for this reason are no problem
        model_problems = [p for p in model_problems if not (p.unavailable and NO_NETWORK in p.text)]
    return [p for p in [*problems, *model_problems] if str(p.path[0]) not in malformed]


def _check_methods(plan: Plan) -> Iterator[PlanProblem]:
    for i, spec in enumerate(plan.methods):
        if spec == "@single":
            continue
        try:
            find(spec)
        except OptionError as error:
            yield PlanProblem(path=("methods", i), text=str(error))


def _check_protocols(plan: Plan) -> Iterator[PlanProblem]:
    for i, name in enumerate(plan.protocols):
        if name in PROTOCOLS:
            continue
        try:
            explains = find_presets(name)[0].explains
        except OptionError:
            load_plugins("vitrail.scores")
            known = ", ".join([*PROTOCOLS, *PRESETS])
            text = f"unknown protocol {name!r}: choose from {known}; a preset takes another fill as in chefer21-mean"
            yield PlanProblem(path=("protocols", i), text=text)
            continue
        if explains and not set(explains) & set(plan.targets):
            text = f"{name} scores maps of the {' or '.join(explains)} class: add it to targets, or remove {name}"
            yield PlanProblem(path=("protocols", i), text=text)
    for key, entries in (("dataset", plan.dataset), ("models", plan.models)):
        titles = [entry.title for entry in entries]
        for i, title in enumerate(titles):
            if title in titles[:i]:
                yield PlanProblem(path=(key, i), text=f"two of {key} are called {title!r}: give one of them a label")
    for i, data in enumerate(plan.dataset):
        for name in data.protocols or ():
            if name not in plan.protocols:
                text = f"{name!r} is not among the plan's protocols: add it there, or remove it here"
                yield PlanProblem(path=("dataset", i, "protocols"), text=text)


def _check_dataset(context: BenchContext, index: int, malformed: frozenset[str]) -> Iterator[PlanProblem]:
    """Check that a data set can be opened and has the ground truth that the protocols and targets need."""
    plan = context.plan
    data = plan.dataset[index]
    key = "root" if data.root is not None else "ids" if data.ids is not None else "name"
    if data.root is None and data.name in DATASETS and data.name not in RENDERED:
        text = (
            f"the folder of {data.title} is not given: use --data {data.title}=FOLDER, or set VITRAIL_DATA to a folder "
            f"that contains {data.title}/, or write root = … here"
        )
        yield PlanProblem(path=("dataset", index, "name"), text=text, unavailable=True)
        return
    try:
        samples = _first_samples(context.images(index))
    except VitrailError as error:
        unavailable = data.root is not None and not Path(data.root).exists()
        yield PlanProblem(path=("dataset", index, key), text=str(error), unavailable=unavailable)
        return
    yield from _check_kind(plan, index)
    has = {
        "mask": any(s.mask is not None for s, _ in samples),
        "boxes": any(s.boxes is not None for s, _ in samples),
        "label": any(s.label is not None for s, _ in samples),
        "two classes": any(len(masks) > 1 or len(set(s.labels)) > 1 for s, masks in samples),
        "class masks": any(masks for _, masks in samples),
        "grid": isinstance(context.images(index).dataset, ImageGrids),
        "rationale": any(s.spans is not None for s, _ in samples),
    }
    for i, name in enumerate(plan.protocols):
        if name in PROTOCOLS and name in plan.protocols_of(data) and PROTOCOLS[name].text == plan.reads_texts:
            for need in PROTOCOLS[name].needs:
                if not has[need]:
                    text = (
                        f"{name} cannot be run on {data.title}, which has no {_NEEDS[need]}: remove it, or list the "
                        "protocols of each data set with protocols = […] in its [[dataset]]"
                    )
                    yield PlanProblem(path=("protocols", i), text=text)
    if "label" in plan.targets and not has["label"] and "targets" not in malformed:
        text = f"targets contains 'label', and {data.title} has no labels: explain the predicted class"
        yield PlanProblem(path=("targets",), text=text)


def _check_kind(plan: Plan, index: int) -> Iterator[PlanProblem]:
    """Check that a data set and its protocols are all of texts or all of images."""
    data = plan.dataset[index]
    text = data.name in TEXT_DATASETS
    if (data.name in WORLD_DATASETS) != plan.reads_worlds:
        yield PlanProblem(path=("dataset", index, "name"), text="a plan has only pairs of the worlds or none: split it")
    if text != plan.reads_texts:
        yield PlanProblem(path=("dataset", index, "name"), text="a plan has either images or texts: split it in two")
    elif (text or plan.reads_worlds) and plan.keep_maps:
        kind = "texts" if text else "pairs of the worlds"
        yield PlanProblem(path=("keep_maps",), text=f"keep_maps saves maps of images: remove it from a plan of {kind}")
    for i, name in enumerate(plan.protocols):
        world = name in PROTOCOLS and PROTOCOLS[name].world
        if name in plan.protocols_of(data) and world != (data.name in WORLD_DATASETS):
            scored = "pairs of the worlds" if world else "images or texts"
            yield PlanProblem(
                path=("protocols", i), text=f"{name} scores {scored}, and {data.title} has others: remove it"
            )
        elif name in plan.protocols_of(data) and text != (name in PROTOCOLS and PROTOCOLS[name].text):
            scored, kind = ("images", "texts") if text else ("texts", "images")
            known = ", ".join(protocol.name for protocol in PROTOCOLS.values() if protocol.text)
            advice = f"choose from {known}" if text else "remove it"
            yield PlanProblem(
                path=("protocols", i), text=f"{name} scores {scored}, and {data.title} has {kind}: {advice}"
            )


def _first_samples(images: BenchImages) -> list[tuple[Sample, dict[int, Any]]]:
    """Read the first samples, and others where these are damaged, which becomes rows of the results.

    Nothing is read of a source, whose labels are listed: a run that is resumed would read it again.
    """
    if isinstance(images.dataset, ImageSource):
        listed = [images.dataset.source.items[index] for index in images.indices]
        labelled = next((item for item in listed if item.label is not None), listed[0])
        return [(Sample(labelled.id, label=labelled.label), {})]
    samples: list[tuple[Sample, dict[int, Any]]] = []
    failure: VitrailError | None = None
    others = images.indices[SAMPLES_READ :: max(1, len(images.indices) // OTHER_SAMPLES)]
    for number, index in enumerate((*images.indices[:SAMPLES_READ], *others)):
        if number >= SAMPLES_READ and samples:
            break
        try:
            samples.append(read_ground_truth(images.dataset, index))
        except VitrailError as error:
            failure = failure or error
    if failure is not None and not samples:
        raise failure
    return samples


def _check_model(
    context: BenchContext,
    index: int,
    malformed: frozenset[str],
    bad_methods: bool,
    bad_datasets: frozenset[int],
    no_download: bool,
) -> Iterator[PlanProblem]:
    """Check that a model can be loaded, that a method applies to it, and that it has the data set's classes."""
    plan, spec = context.plan, context.plan.models[index]
    name = spec.name
    try:
        if no_download and spec.weights is None and not weights_cached(name):  # checked before a large model is created
            raise ModelError(
                f"the weights of {name} are not on this machine ({NO_NETWORK} they are fetched when the plan is run)"
            )
        model = context.any_model(index)
    except VitrailError as error:
        no_file = spec.weights not in (None, "random") and not Path(str(spec.weights)).exists()
        no_cache = spec.weights is None and isinstance(error, ModelError) and NO_NETWORK in str(error)
        kind = "FOLDER" if plan.reads_texts else "FILE"
        advice = f"; or give --weights {spec.label or short_name(name)}={kind}" if no_cache else ""
        yield PlanProblem(path=("models", index), text=f"{error}{advice}", unavailable=no_file or no_cache)
        return
    applicable = [method for method in plan.specs() if method not in model.not_applicable]
    if not bad_methods and not applicable:
        reasons = "; ".join(dict.fromkeys(model.not_applicable.values()))
        yield PlanProblem(path=("models", index), text=f"no method of the plan applies to {name}: {reasons}")
    if "sanity" in plan.protocols and isinstance(model, BenchModel):
        try:
            if not model.randomisation_steps:
                raise ModelError("it has none")
        except VitrailError as error:
            text = f"sanity cannot be run on {name}, whose blocks were not found ({error}): remove it"
            yield PlanProblem(path=("protocols", plan.protocols.index("sanity")), text=text)
    if "dataset" in malformed or "models" in malformed:
        return
    for i in sorted(set(range(len(plan.dataset))) - bad_datasets):  # problems of the others are reported already
        yield from _check_classes(context, index, i, model)


def _check_classes(context: BenchContext, model_index: int, index: int, model: AnyBenchModel) -> Iterator[PlanProblem]:
    """Check that the model has the data set's classes, where a protocol or target needs that."""
    plan, data, name = context.plan, context.plan.dataset[index], context.plan.models[model_index].name
    classes, protocols = context.images(index).dataset.classes, plan.protocols_of(data)
    for protocol in [p for p in (MULTICLASS, MULTICLASS_ORIGINAL) if p in protocols]:
        try:
            class_outputs(classes, model.classes)
        except VitrailError as error:
            text = f"{protocol} cannot be run with {name} on {data.title}: {error}; remove it, or use another model"
            yield PlanProblem(path=("protocols", plan.protocols.index(protocol)), text=text)
    if MULTICLASS_ORIGINAL in protocols and isinstance(model, BenchModel) and not model.preprocess.squash:
        text = f'{MULTICLASS_ORIGINAL} needs maps of whole images, and {name} crops them: add view = "squash"'
        yield PlanProblem(path=("protocols", plan.protocols.index(MULTICLASS_ORIGINAL)), text=text)
    need_classes = [p for p in protocols if p in PROTOCOLS and {"two classes", "grid"} & set(PROTOCOLS[p].needs)]
    if not context.same_classes(model_index, index) and ("label" in plan.targets or need_classes):
        advice = f"remove {', '.join(need_classes)}" if need_classes else "explain the predicted class"
        text = (
            f"{name} has {model.classes} classes and {data.title} has {len(classes or ())}, so that labels have no "
            f"meaning for the model: {advice}, or use a model of these classes"
        )
        yield PlanProblem(path=("targets",) if "label" in plan.targets else ("models", model_index), text=text)
