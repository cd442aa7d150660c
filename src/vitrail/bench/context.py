"""An opened plan: its data sets and loaded models, each opened once per process."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.bench.ground_truth import GroundTruth, LoadedImages, join_images
from vitrail.bench.method_groups import group_methods
from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan
from vitrail.bench.read_ahead import ReadAhead
from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure import read_structure
from vitrail.data import Dataset, open_dataset
from vitrail.errors import DataError, DataWarning, InputError, ModelError, VitrailError
from vitrail.methods import find
from vitrail.methods.plugins import import_modules
from vitrail.models import load
from vitrail.models.loaded import LoadedModel, class_count
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.memory import BatchLimit, HasBatchSize
from vitrail.scores import sanity
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import Preset
from vitrail.targets.text_call import reads_texts
from vitrail.text.tokens import TokenizerSettings, encode_texts, load_tokenizer, pad_windows

#: Text with which the structure of a text model is found.
EXAMPLE_TEXT = "a film with a slow plot and a lovely score"


@dataclass(frozen=True, eq=False)
class BenchImages:
    """A data set and the samples of it that a plan uses.

    Attributes:
        spec: The plan's entry.
        dataset: The opened data set.
        indices: Indices of the samples.
    """

    spec: DatasetSpec
    dataset: Dataset
    indices: tuple[int, ...]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the samples."""
        return tuple(self.dataset.ids[i] for i in self.indices)


@dataclass(frozen=True, eq=False, kw_only=True)
class AnyBenchModel:
    """A loaded model of a plan, for images or for texts.

    Attributes:
        loaded: The model on its device, with class names and other metadata.
        structure: What was found inside the model.
        weights_hash: SHA-256 of its weights; for a text model, of its tokenizer too.
        not_applicable: Methods that do not apply to it, with the reason.
    """

    loaded: LoadedModel
    structure: ModelStructure
    weights_hash: str
    not_applicable: dict[str, str] = field(default_factory=dict)

    @property
    def classes(self) -> int | None:
        """Number of classes, if known."""
        return class_count(self.loaded.module) or (len(self.loaded.classes) if self.loaded.classes else None)


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchModel(AnyBenchModel):
    """A loaded model for images.

    Attributes:
        preprocess: Preprocessing of images in this plan.
        disconnected: The model with disconnected cells and its layout, by cells in a row and the cell that is read,
            once a protocol has made them.
    """

    preprocess: Preprocess
    disconnected: dict[tuple[int, int | None], tuple[BenchModel, Layout]] = field(default_factory=dict)

    @cached_property
    def randomisation_steps(self) -> tuple[sanity.RandomisationStep, ...]:
        """Groups of parameters from the head down, for the parameter randomisation test."""
        return sanity.randomisation_steps(self.loaded.module, _noise_image(self.preprocess))


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchTextModel(AnyBenchModel):
    """A loaded model for texts.

    Attributes:
        settings: Its tokenizer, and how texts are read: the first window only, and a word has the maximum of its
            tokens' scores, as in the published experiments.
    """

    settings: TokenizerSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class BenchWorldModel(AnyBenchModel):
    """A loaded model for pairs of the worlds."""


class BenchContext:
    """An opened plan.

    Attributes:
        batch: Current maximum number of images in a forward pass. Halved when memory runs out, for the rest of the
            process.
        explaining: Holder of the maximum number of images while maps are computed; the context itself, unless the plan
            sets ``explain_batch``.
        read_ahead: Images of the next chunk.
    """

    def __init__(self, plan: Plan, device: str = "cpu", *, prompts: bool = False) -> None:
        import_modules(plan.imports)
        self.plan, self.device, self.prompts = plan, device, prompts
        self.batch = plan.batch
        self.explaining: HasBatchSize = self if plan.explain_batch is None else BatchLimit(plan.explain_batch)
        self.read_ahead: ReadAhead[GroundTruth | Exception, LoadedImages] = ReadAhead(
            partial(join_images, pin=device.startswith("cuda"))
        )
        self._evaluators: dict[Any, Evaluator] = {}
        self._models: dict[int, AnyBenchModel] = {}
        self._images: dict[int, BenchImages] = {}

    def images(self, index: int) -> BenchImages:
        """Return one of the data sets, by its position in the plan."""
        if index not in self._images:
            self._images[index] = open_images(self.plan.dataset[index])
        return self._images[index]

    def any_model(self, index: int) -> AnyBenchModel:
        """Return one of the models, for images or for texts, by its position in the plan."""
        if index not in self._models:
            spec = self.plan.models[index]
            if self.plan.reads_worlds:
                self._models[index] = self._load_world_model(spec)
            else:
                self._models[index] = self._load_text_model(spec) if self.plan.reads_texts else self._load(spec)
        return self._models[index]

    def model(self, index: int) -> BenchModel:
        """Return one of the models of a plan for images."""
        model = self.any_model(index)
        assert isinstance(model, BenchModel)
        return model

    def text_model(self, index: int) -> BenchTextModel:
        """Return one of the models of a plan for texts."""
        model = self.any_model(index)
        assert isinstance(model, BenchTextModel)
        return model

    def world_model(self, index: int) -> BenchWorldModel:
        """Return one of the models of a plan for pairs of the worlds."""
        model = self.any_model(index)
        assert isinstance(model, BenchWorldModel)
        return model

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the numbers; see `Plan.key`."""
        weights = [self.any_model(i).weights_hash for i in range(len(self.plan.models))]
        return self.plan.key(weights, [self.images(i).ids for i in range(len(self.plan.dataset))])

    def evaluator(self, model: BenchModel, presets: tuple[Preset, ...], batch: int) -> Evaluator:
        """Return the evaluator of perturbation tests of a model, made once for each number of images in a pass."""
        key = (id(model), tuple(preset.name for preset in presets), batch)
        if key not in self._evaluators:
            self._evaluators.clear()  # after a change of the batch size, the former one is not needed again
            precision = torch.bfloat16 if self.plan.precision == "bfloat16" else None
            self._evaluators[key] = Evaluator(
                model.loaded, presets, batch=batch, precision=precision, seed=self.plan.seed,
                preprocess=model.preprocess, compiled=self.plan.compile,
            )  # fmt: skip
        return self._evaluators[key]

    def same_classes(self, model: int, dataset: int) -> bool:
        """Whether a data set has as many classes as a model, or one of the two numbers is unknown."""
        expected, given = self.images(dataset).dataset.classes, self.any_model(model).classes
        return expected is None or given is None or len(expected) == given

    def method_groups(self, model: int) -> list[tuple[str, ...]]:
        """Return the methods that apply to a model, in groups that are computed together."""
        return group_methods([spec for spec in self.plan.specs() if spec not in self.any_model(model).not_applicable])

    def _load(self, spec: ModelSpec) -> BenchModel:
        if spec.weights == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.plan.seed)
                loaded = load(spec.name, pretrained=False)
        else:
            loaded = load(spec.name, spec.weights)
        loaded = replace(loaded, scores=spec.scores)
        self._convert(loaded, spec)
        weights_hash, loaded = hash_weights(loaded.module), self._to_device(loaded, spec)
        preprocess = loaded.preprocess
        if not isinstance(preprocess, Preprocess):
            raise ModelError(f"the preprocessing of {spec.name} is unknown")
        if self.prompts and reads_texts(loaded.module):
            # What is found depends on the text, so that every call of a method finds it.
            unread = ModelStructure(type(loaded.module).__name__, "", "plain", Layout(), 0, ())
            return BenchModel(loaded=loaded, preprocess=preprocess, structure=unread, weights_hash=weights_hash)
        if hasattr(loaded.module, "encode_text"):
            raise ModelError(f"{spec.name} compares images with texts and has no classes: it cannot be scored")
        if self.plan.view == "squash":  # as evaluation code does it, whatever the model was trained with
            preprocess = replace(preprocess, squash=True, resample="bilinear")
        structure = read_structure(loaded.module, ModelInputs((_noise_image(preprocess),)).onto(loaded.module))
        return BenchModel(
            loaded=loaded, preprocess=preprocess, structure=structure, weights_hash=weights_hash,
            not_applicable=self._not_applicable(structure, loaded.module),
        )  # fmt: skip

    def _load_text_model(self, spec: ModelSpec) -> BenchTextModel:
        name = spec.name if spec.weights in (None, "random") else f"hf:{spec.weights}"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.seed)
            loaded = load(name, pretrained=spec.weights != "random")
        loaded = replace(loaded, scores=spec.scores)
        self._convert(loaded, spec)
        settings = TokenizerSettings(load_tokenizer(name), reduction="max", all_windows=False)
        tokenizer = str(settings.tokenizer.backend_tokenizer.to_str())
        digest = hashlib.sha256(f"{hash_weights(loaded.module)}\0{tokenizer}".encode()).hexdigest()
        loaded = self._to_device(loaded, spec)
        (example,) = encode_texts([EXAMPLE_TEXT], settings, loaded.module)
        inputs = ModelInputs((), pad_windows(example.windows, 0)).onto(loaded.module)
        structure = read_structure(loaded.module, inputs)
        return BenchTextModel(
            loaded=loaded, settings=settings, structure=structure, weights_hash=digest,
            not_applicable=self._not_applicable(structure, loaded.module),
        )  # fmt: skip

    def _load_world_model(self, spec: ModelSpec) -> BenchWorldModel:
        loaded = load(spec.name, spec.weights)
        self._convert(loaded, spec)
        digest, loaded = hash_weights(loaded.module), self._to_device(loaded, spec)
        # What is found depends on the target, so that every call of a method finds it.
        structure = ModelStructure(type(loaded.module).__name__, "vitrail", "plain", Layout(), 0, ())
        return BenchWorldModel(loaded=loaded, structure=structure, weights_hash=digest)

    @staticmethod
    def _convert(loaded: LoadedModel, spec: ModelSpec) -> None:
        """Convert a model that was loaded for the run to the precision the plan asks for."""
        if spec.dtype is not None:
            loaded.module.to(getattr(torch, spec.dtype))

    def _to_device(self, loaded: LoadedModel, spec: ModelSpec) -> LoadedModel:
        try:
            return replace(loaded, module=unwrap(loaded.module).to(self.device), name=spec.name)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {self.device!r} cannot be used: {str(error).splitlines()[0]}") from error

    def _not_applicable(self, structure: ModelStructure, module: nn.Module) -> dict[str, str]:
        """Return the methods that do not apply to a model, with the reason."""
        not_applicable = {}
        for method_spec in self.plan.specs():
            try:
                _, method, options = find(method_spec)
                method.check(structure, options, model=module)
            except VitrailError as error:
                not_applicable[method_spec] = str(error)
        return not_applicable


def _noise_image(preprocess: Preprocess) -> Tensor:
    shape = (1, len(preprocess.mean), *preprocess.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@lru_cache(maxsize=2)
def open_context(plan: str, device: str = "cpu") -> BenchContext:
    """Open a plan given as JSON. The result is cached, so that a process loads each model once."""
    return BenchContext(Plan.model_validate_json(plan), device)


def open_images(spec: DatasetSpec) -> BenchImages:
    """Open a data set and select the samples a plan asks for.

    Raises:
        DataError: The data set cannot be opened, or does not contain a requested id.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # plans use selections on purpose
        try:
            dataset = open_dataset(spec.name, spec.root, **spec.options)
        except TypeError as error:
            raise DataError(f"{spec.name} does not take these options ({error})") from error
    return BenchImages(spec, dataset, _select_indices(spec, dataset.ids))


def _select_indices(spec: DatasetSpec, ids: Sequence[str]) -> tuple[int, ...]:
    if spec.ids is not None:
        wanted = spec.ids
        if isinstance(wanted, str):
            if not Path(wanted).is_file():
                raise DataError(f"{wanted} does not exist: ids must be a list, or a file with one id per line")
            wanted = tuple(Path(wanted).read_text(encoding="utf-8").split())
        index_of = {name: i for i, name in enumerate(ids)}
        unknown = [name for name in wanted if name not in index_of]
        if unknown:
            raise DataError(f"{len(unknown)} of {len(wanted)} ids are not in {spec.name}, for example {unknown[0]!r}")
        selected = sorted({index_of[name] for name in wanted})
    else:
        selected = list(range(len(ids)))
    if spec.limit is None or spec.limit >= len(selected):
        return tuple(selected)
    if spec.draw is not None:
        return tuple(sorted(sorted(selected, key=lambda i: _draw_order(spec.draw, ids[i]))[: spec.limit]))
    # Evenly spread: a set sorted by class would otherwise be cut to its first classes.
    return tuple(selected[i * len(selected) // spec.limit] for i in range(spec.limit))


def _draw_order(seed: int | None, name: str) -> bytes:
    """Random number of an image in a draw: a hash, which is the same on every machine and with every library."""
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()


def hash_weights(module: nn.Module) -> str:
    """Return the SHA-256 of a model's weights: names, types, shapes and bytes, in order of name.

    Example:
        >>> hash_weights(nn.Linear(2, 2)) == hash_weights(nn.Linear(2, 2))
        False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
