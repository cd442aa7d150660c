"""Plans: one TOML file that names the models, images, methods and protocols of a benchmark."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vitrail.errors import VitrailError
from vitrail.models.catalogue import full_name

TargetKind = Literal["predicted", "label"]
#: Controls added to every plan: a method must beat these.
CONTROLS = ("random", "centre", "edges")
#: Data sets of texts. A plan has either images or texts.
TEXT_DATASETS = ("movies",)
#: Data sets of pairs whose targets are functions of the model's output; a plan has only these or none.
WORLD_DATASETS = ("worlds",)
#: Libraries whose versions decide the numbers.
LIBRARIES = ("vitrail", "torch", "timm", "numpy")


class PlanError(VitrailError, ValueError):
    """A plan cannot be run; the message lists every problem with its line and its fix."""


class PlanProblem(BaseModel):
    """One problem of a plan.

    Attributes:
        path: Keys that lead to the problem, such as ``("dataset", 0, "root")``.
        text: What is wrong and how to fix it.
        unavailable: Whether the only problem is that files or weights are not on this machine. A dry run can do without
            them.
    """

    model_config = ConfigDict(frozen=True)
    path: tuple[str | int, ...]
    text: str
    unavailable: bool = False


class ModelSpec(BaseModel):
    """A model, as `vitrail.load` takes it.

    Attributes:
        name: ``timm:NAME``, an embedded model, and so on. Short names of the papers' models are replaced by full names,
            so that both mean the same model in tables.
        weights: A file, or "random" for weights drawn from the plan's seed; for a text model, its folder, with the
            tokenizer. Default: the library's own weights.
        label: Name in tables. Default: the name. Two models of the same name need labels.
        dtype: Precision the weights are converted to, in which maps are computed as well. Default: as they are.
        scores: What turns the class scores into probabilities: "softmax", "sigmoid" for several labels an image, or
            "identity" for a regression, which only protocols without probabilities can score. Default: what the model
            states.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    weights: str | None = None
    label: str = ""
    dtype: Literal["bfloat16", "float16"] | None = None
    scores: Literal["softmax", "sigmoid", "identity"] | None = None

    @property
    def title(self) -> str:
        """Name in tables."""
        return self.label or self.name


class DatasetSpec(BaseModel):
    """A data set, as `vitrail.data.open_dataset` takes it.

    Attributes:
        name: Name of the data set.
        root: Folder of its files.
        options: Further options of the data set.
        limit: Maximum number of images, spread evenly over the set.
        draw: Seed with which ``limit`` images are drawn at random instead. A larger limit adds images to the same draw.
        ids: Ids of the images: a list, or a text file with one id per line.
        label: Name in tables. Default: the name. Two data sets of the same name need labels.
        protocols: Protocols to run on it. Default: all of the plan's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    root: str | None = None
    options: dict[str, Any] = {}
    limit: int | None = Field(default=None, ge=1)
    draw: int | None = Field(default=None, ge=0)
    ids: tuple[str, ...] | str | None = None
    label: str = ""
    protocols: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """Name in tables."""
        return self.label or self.name


def as_list(given: Any) -> Any:
    """A value of a plan as a list; one that is not a list is its only element."""
    return given if isinstance(given, list | tuple) else [given]


def parse_models(given: Any) -> Any:
    """Accept a model given by name only, a single model without a list, and short names of the papers' models."""
    tables = [{"name": one} if isinstance(one, str) else one for one in as_list(given)]
    return [
        one | {"name": full_name(one["name"])} if isinstance(one, dict) and isinstance(one.get("name"), str) else one
        for one in tables
    ]


def _parse_targets(given: Any) -> Any:
    return ["predicted", "label"] if given == "both" else as_list(given)


def _parse_paper(given: Any) -> Any:
    from vitrail.bench.papers import current_name, paper_tables

    name = current_name(given) if isinstance(given, str) else given
    if name is not None and name not in paper_tables():
        raise ValueError(f"choose one of {', '.join(paper_tables())}, or leave it out")
    return name


class Plan(BaseModel):
    """A benchmark.

    Attributes:
        name: Name of the plan.
        models: The models.
        dataset: The data sets, one or several.
        methods: Method specs, as on the command line. "@single" means every method that needs a single pass.
        controls: Whether to add the controls random, centre and edges.
        targets: Class to explain: "predicted", "label" or both.
        protocols: Names of perturbation presets and of `vitrail.bench.protocols.PROTOCOLS`.
        precision: Precision of the forward passes of perturbation tests. Maps are computed in the model's precision.
        matmul: Precision of float32 matrix products on a GPU. "tf32" is several times as fast and rounds the factors to
            ten bits. Most maps do not change, some LRP maps do; see ``benchmarks/README.md``.
        view: "model" preprocesses images as the model expects. "squash" resizes to the model's input size by bilinear
            interpolation without cropping, as the papers' evaluations do.
        batch: Maximum number of images in one forward pass.
        explain_batch: The same while maps are computed, which takes more memory. Default: ``batch``.
        compile: Run the forward passes of perturbation tests through ``torch.compile``: faster on a GPU from some
            thousand images on, after a minute of compiling. Outputs differ in the last bits.
        chunk: Number of images in one chunk of work.
        threads: Torch threads of each CPU worker. Part of the plan because sums may depend on it in the last bits.
        seed: Seed of all random numbers.
        keep_maps: Whether to save the maps, as patch grids in half precision.
        imports: Modules that register further methods and scores; imported in every process of the run.
        paper: Table of a paper that the plan reproduces, such as ``vtranm_table2``. The report then shows the published
            numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(parse_models), Field(min_length=1)]
    dataset: Annotated[tuple[DatasetSpec, ...], BeforeValidator(as_list), Field(min_length=1)]
    methods: Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]
    controls: bool = True
    targets: Annotated[tuple[TargetKind, ...], BeforeValidator(_parse_targets), Field(min_length=1)] = ("predicted",)
    protocols: Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)]
    precision: Literal["float32", "bfloat16"] = "float32"
    matmul: Literal["float32", "tf32"] = "float32"
    view: Literal["model", "squash"] = "model"
    batch: int = Field(default=64, ge=1)
    explain_batch: int | None = Field(default=None, ge=1)
    compile: bool = False
    chunk: int = Field(default=64, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    keep_maps: bool = False
    imports: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ()
    paper: Annotated[str | None, BeforeValidator(_parse_paper)] = None

    def specs(self) -> tuple[str, ...]:
        """Return all methods to run: "@single" expanded, controls added, without duplicates.

        Example:
            >>> plan = Plan(name="a", models="scenes", dataset={"name": "scenes"}, methods="tam", protocols="pointing")
            >>> plan.specs()
            ('tam', 'random', 'centre', 'edges')
        """
        from vitrail.bench.method_groups import single_pass_methods

        single = single_pass_methods() if "@single" in self.methods else ()
        given = [s for spec in self.methods for s in (single if spec == "@single" else (spec.replace(" ", ""),))]
        return tuple(dict.fromkeys([*given, *(CONTROLS if self.controls else ())]))

    @property
    def reads_texts(self) -> bool:
        """Whether its data sets are texts."""
        return any(data.name in TEXT_DATASETS for data in self.dataset)

    @property
    def reads_worlds(self) -> bool:
        """Whether its data sets are pairs of the worlds."""
        return any(data.name in WORLD_DATASETS for data in self.dataset)

    def protocols_of(self, data: DatasetSpec) -> tuple[str, ...]:
        """Return the protocols to run on one of the data sets."""
        return self.protocols if data.protocols is None else data.protocols

    def key(self, weights: Sequence[str], ids: Sequence[Sequence[str]]) -> str:
        """Hash everything that decides the numbers: the plan's content, weights, images and library versions.

        Paths of files do not count, so that another machine computes the same key; the weights' hash has their
        precision. A plan that was renamed keeps the
        key of its former name, so that its runs can be resumed. The source of the modules that define methods and
        scores of other packages counts.

        Args:
            weights: SHA-256 of the weights of each model.
            ids: Image ids of each data set.

        Returns:
            Sixteen hexadecimal digits.
        """
        from vitrail.bench.papers import former_name

        content = self.model_dump(mode="json", exclude={"paper": True, "models": {"__all__": {"weights", "dtype"}}})
        content["name"] = former_name(self.name)
        for model in content["models"]:
            if model["scores"] is None:
                del model["scores"]  # as before the key existed
        for data, names in zip(content["dataset"], ids, strict=True):
            del data["root"], data["draw"]  # the ids list the drawn images
            data["ids"] = hashlib.sha256("\0".join(names).encode()).hexdigest()
        content["methods"] = self.specs()
        for name in ("imports", "compile", "explain_batch"):  # as before the key existed
            if not content[name]:
                del content[name]
        sources = self._foreign_sources()
        if sources:
            content["sources"] = sources
        everything = {"plan": content, "weights": list(weights), "versions": library_versions()}
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]

    def _foreign_sources(self) -> dict[str, str]:
        """SHA-256 of the module of each method and score that is not the package's."""
        from vitrail.methods import find
        from vitrail.scores.registry import find_score

        scores = [find_score(name) for name in self.protocols]
        functions = {spec: find(spec)[1].compute for spec in self.specs()}
        functions |= {score.name: score.compute for score in scores if score is not None}
        hashes = {}
        for name, function in functions.items():
            if function.__module__.partition(".")[0] != "vitrail":
                file = getattr(sys.modules.get(function.__module__), "__file__", None)
                content = Path(file).read_bytes() if file and Path(file).is_file() else b""
                hashes[name] = hashlib.sha256(content).hexdigest()
        return hashes


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide the numbers; "absent" for one that is not installed."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return versions
