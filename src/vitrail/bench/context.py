"""A plan with its data sets opened and its models loaded, each once in a process."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.bench.plan import SAMPLING, DatasetSpec, ModelSpec, Plan
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import ModelStructure, read_structure
from vitrail.data import Dataset, open_dataset
from vitrail.errors import DataError, DataWarning, InputError, ModelError, VitrailError
from vitrail.methods import Method, find
from vitrail.models import load
from vitrail.models.loaded import LoadedModel, class_count
from vitrail.models.preprocess import Preprocess
from vitrail.scores import sanity


@dataclass(frozen=True, eq=False)
class BenchImages:
    """A data set and which of its samples are used."""

    data: DatasetSpec
    dataset: Dataset
    indices: tuple[int, ...]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the samples that are used."""
        return tuple(self.dataset.ids[i] for i in self.indices)


@dataclass(frozen=True, eq=False)
class BenchModel:
    """A loaded model.

    Attributes:
        about: The model and its luggage, on the device.
        view: How it sees pictures in this plan.
        structure: What it is made of.
        weights: SHA-256 of its weights.
        refused: Methods that do not apply to it, and why.
    """

    about: LoadedModel
    view: Preprocess
    structure: ModelStructure
    weights: str
    refused: dict[str, str] = field(default_factory=dict)

    @cached_property
    def stages(self) -> tuple[sanity.RandomisationStep, ...]:
        """Its parameters from the head down, for tests that randomise them."""
        return sanity.randomisation_steps(self.about.module, _noise(self.view))

    @property
    def classes(self) -> int | None:
        """How many classes it knows."""
        return class_count(self.about.module) or (len(self.about.classes) if self.about.classes else None)


class BenchContext:
    """A plan, opened.

    Args:
        plan: A valid plan.
        device: Where models are put.
    """

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        self.plan, self.device = plan, device
        #: Most pictures in a forward pass; halved when memory runs out, for as long as the process lives.
        self.batch = plan.batch
        self._models: dict[int, BenchModel] = {}
        self._pictures: dict[int, BenchImages] = {}

    def pictures(self, number: int) -> BenchImages:
        """One of the data sets."""
        if number not in self._pictures:
            self._pictures[number] = open_images(self.plan.dataset[number])
        return self._pictures[number]

    def model(self, number: int) -> BenchModel:
        """One of the models."""
        if number not in self._models:
            self._models[number] = self._load(self.plan.models[number])
        return self._models[number]

    @cached_property
    def key(self) -> str:
        """See `Plan.key`."""
        weights = [self.model(i).weights for i in range(len(self.plan.models))]
        return self.plan.key(weights, [self.pictures(i).ids for i in range(len(self.plan.dataset))])

    def same_classes(self, model: int, data: int) -> bool:
        """Whether a data set's classes are the model's, as far as can be told: they are equally many."""
        known, own = self.pictures(data).dataset.classes, self.model(model).classes
        return known is None or own is None or len(known) == own

    def groups(self, model: int) -> list[tuple[str, ...]]:
        """The methods that apply to a model: each that samples by itself, then those of one pass together."""
        return grouped([spec for spec in self.plan.specs() if spec not in self.model(model).refused])

    def _load(self, network: ModelSpec) -> BenchModel:
        if network.weights == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.plan.seed)
                about = load(network.name, pretrained=False)
        else:
            about = load(network.name, network.weights)
        weights = fingerprint(about.module)
        try:
            about = replace(about, module=unwrap(about.module).to(self.device), name=network.name)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {self.device!r} cannot be used: {str(error).splitlines()[0]}") from error
        view = about.preprocess
        if not isinstance(view, Preprocess):
            raise ModelError(f"how {network.name} wants its images is unknown")
        if hasattr(about.module, "encode_text"):
            raise ModelError(f"{network.name} has no classes, only texts to compare with: it cannot be scored")
        if self.plan.view == "squash":  # as evaluation code does it, whatever the model was trained with
            view = replace(view, squash=True, resample="bilinear")
        structure = read_structure(about.module, ModelInputs((_noise(view),)).onto(about.module))
        refused = {}
        for spec in self.plan.specs():
            try:
                _, method, options = find(spec)
                method.check(structure, options)
            except VitrailError as error:
                refused[spec] = str(error)
        return BenchModel(about, view, structure, weights, refused)


def _noise(view: Preprocess) -> Tensor:
    return torch.randn(1, len(view.mean), *view.size, generator=torch.Generator().manual_seed(0))


@lru_cache(maxsize=2)
def open_context(plan: str, device: str = "cpu") -> BenchContext:
    """The stage of a plan given as JSON; a process that is asked again gets the same, models loaded and all."""
    return BenchContext(Plan.model_validate_json(plan), device)


def grouped(specs: Sequence[str]) -> list[tuple[str, ...]]:
    """Methods that are done together: each that samples by itself, then those of one pass.

    Example:
        >>> grouped(["rollout", "tam", "random"])
        [('tam',), ('rollout', 'random')]
    """
    alone: list[tuple[str, ...]] = [(spec,) for spec in specs if samples(spec)]
    together = tuple(spec for spec in specs if not samples(spec))
    return [*alone, together] if together else alone


def samples(spec: str) -> bool:
    """Whether a method looks at many pictures for one map, itself or as what is inverted.

    Example:
        >>> samples("tam"), samples("rollout"), samples("inverted:of=integrated_gradients")
        (True, False, True)
    """
    _, method, options = find(spec)
    return method.family in SAMPLING or (method.name == "inverted" and samples(str(options["of"])))


def method_of(spec: str) -> Method:
    """The registry line of a method as users type it."""
    return find(spec)[1]


def open_images(data: DatasetSpec) -> BenchImages:
    """Open a data set and find the samples a plan asks for.

    Raises:
        DataError: It cannot be opened, or an id is not in it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a selection is what plans are about
        try:
            dataset = open_dataset(data.name, data.root, **data.options)
        except TypeError as error:
            raise DataError(f"{data.name} does not take these options ({error})") from error
    return BenchImages(data, dataset, _chosen(data, dataset.ids))


def _chosen(data: DatasetSpec, ids: Sequence[str]) -> tuple[int, ...]:
    if data.ids is not None:
        wanted = data.ids
        if isinstance(wanted, str):
            if not Path(wanted).is_file():
                raise DataError(f"{wanted} does not exist: ids is a list, or a file with one id a line")
            wanted = tuple(Path(wanted).read_text(encoding="utf-8").split())
        at = {name: i for i, name in enumerate(ids)}
        lost = [name for name in wanted if name not in at]
        if lost:
            raise DataError(f"{len(lost)} of {len(wanted)} ids are not in {data.name}, as {lost[0]!r}")
        chosen = sorted({at[name] for name in wanted})
    else:
        chosen = list(range(len(ids)))
    if data.limit is None or data.limit >= len(chosen):
        return tuple(chosen)
    # Evenly spread: sets sorted by class would otherwise be cut to their first classes.
    return tuple(chosen[i * len(chosen) // data.limit] for i in range(data.limit))


def fingerprint(module: nn.Module) -> str:
    """SHA-256 of a model's weights: names, types, shapes and bytes, in order of name.

    Example:
        >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
        False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
