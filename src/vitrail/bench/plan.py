"""A benchmark as one file: which models, pictures, methods and protocols, checked before anything runs."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vitrail.bench.lines import Lines
from vitrail.errors import VitrailError
from vitrail.models.catalogue import full_name

Target = Literal["predicted", "label"]
#: What is added to every plan: what does not beat these fails.
CONTROLS = ("random", "centre", "edges")
#: Families of methods that look at many pictures for one map; each such method is a group of its own.
SAMPLING = ("path", "input", "perturbation")
#: Libraries whose versions decide the numbers.
LIBRARIES = ("vitrail", "torch", "timm", "numpy")


class PlanError(VitrailError, ValueError):
    """A plan cannot be run; the message lists every problem with its line and the fix."""


class PlanProblem(BaseModel):
    """Something wrong with a plan: where, what, and how to mend it."""

    model_config = ConfigDict(frozen=True)
    path: tuple[str | int, ...]
    text: str
    line: int | None = None
    absent: bool = False
    """Whether it is only that files or weights are not on this machine, which a dry run can do without."""


class ModelSpec(BaseModel):
    """A model as `vitrail.load` takes it.

    Attributes:
        name: ``timm:NAME``, an embedded model, and so on; a model of the papers by its short name stands for its full
            one, so that both are one model in tables.
        weights: A file, or "random" for weights drawn from the plan's seed; without it the library's own.
        label: What to call it in tables; its name unless told. Two of one name need labels.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    weights: str | None = None
    label: str = ""

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.label or self.name


class DatasetSpec(BaseModel):
    """Pictures, as `vitrail.data.open_dataset` takes them.

    Attributes:
        name: The data set.
        root: Where its files are.
        options: What else it takes.
        limit: So many pictures, spread evenly over the set.
        ids: Or these, as a list, or as a text file with one id a line.
        label: What to call it in tables; its name unless told. Two of one name need labels.
        protocols: Which of the plan's protocols are run on it; all unless told.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    root: str | None = None
    options: dict[str, Any] = {}
    limit: int | None = Field(default=None, ge=1)
    ids: tuple[str, ...] | str | None = None
    label: str = ""
    protocols: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.label or self.name


def _networks(given: Any) -> Any:
    """A model may be written as its name alone, one model without a list, and the papers' models by short names."""
    many = given if isinstance(given, list | tuple) else [given]
    tables = [{"name": one} if isinstance(one, str) else one for one in many]
    return [
        one | {"name": full_name(one["name"])} if isinstance(one, dict) and isinstance(one.get("name"), str) else one
        for one in tables
    ]


def _paper(given: Any) -> Any:
    from vitrail.papers import tables

    if given is not None and given not in tables():
        raise ValueError(f"take one of {', '.join(tables())}, or leave it out")
    return given


def _several(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


def _targets(given: Any) -> Any:
    return ["predicted", "label"] if given == "both" else _several(given)


class Plan(BaseModel):
    """One benchmark.

    Attributes:
        name: What to call it.
        models: The models.
        dataset: The pictures, one set or several.
        methods: As users type them; "@single" stands for every method that needs no more than one pass.
        controls: Whether random, centre and edges are added.
        targets: Whose class the maps explain: "predicted", "label" or both.
        protocols: Perturbation presets by name, and names of `vitrail.bench.protocols.PROTOCOLS`.
        precision: Of the forwards of perturbation tests; maps are always made in the model's own.
        matmul: How a GPU multiplies matrices in single precision: "tf32" is several times as fast and rounds the
            factors to ten bits, which most maps do not feel and some of relevance do; see the page on benchmarks.
        view: "model" prepares pictures as the model wants it, "squash" resizes straight to its size by bilinear
            interpolation, so that nothing is cut off, as the papers' evaluations do.
        batch: Most pictures in one forward pass.
        chunk: Pictures in one piece of work.
        threads: Of torch in each worker on a CPU. Part of the plan, as sums may depend on it in the last bits.
        seed: Of everything that is drawn.
        keep_maps: Whether maps are written beside the scores, as grids in half precision.
        paper: The table of a paper that it repeats, as ``000_table2``; the report sets the published numbers beside.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(_networks), Field(min_length=1)]
    dataset: Annotated[tuple[DatasetSpec, ...], BeforeValidator(_several), Field(min_length=1)]
    methods: Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    controls: bool = True
    targets: Annotated[tuple[Target, ...], BeforeValidator(_targets), Field(min_length=1)] = ("predicted",)
    protocols: Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1)]
    precision: Literal["float32", "bfloat16"] = "float32"
    matmul: Literal["float32", "tf32"] = "float32"
    view: Literal["model", "squash"] = "model"
    batch: int = Field(default=64, ge=1)
    chunk: int = Field(default=64, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    keep_maps: bool = False
    paper: Annotated[str | None, BeforeValidator(_paper)] = None

    def specs(self) -> tuple[str, ...]:
        """All methods as they are run: "@single" written out, controls added, each once.

        Example:
            >>> plan = Plan(name="a", models="scenes", dataset={"name": "scenes"}, methods="tam", protocols="pointing")
            >>> plan.specs()
            ('tam', 'random', 'centre', 'edges')
        """
        from vitrail.methods import METHODS

        single = [name for name, method in METHODS.items() if method.family not in (*SAMPLING, "control")]
        asked = [s for spec in self.methods for s in (single if spec == "@single" else [spec.replace(" ", "")])]
        return tuple(dict.fromkeys([*asked, *(CONTROLS if self.controls else ())]))

    def protocols_of(self, data: DatasetSpec) -> tuple[str, ...]:
        """What is run on one of the data sets."""
        return self.protocols if data.protocols is None else data.protocols

    def key(self, weights: Sequence[str], ids: Sequence[Sequence[str]]) -> str:
        """A name for all that decides the numbers: the plan's content, weights, pictures and versions.

        Where files lie does not count, so that another machine comes to the same key.

        Args:
            weights: For each model the SHA-256 of its weights.
            ids: For each data set the ids of its pictures.

        Returns:
            Sixteen hexadecimal digits.
        """
        content = self.model_dump(mode="json", exclude={"paper": True, "models": {"__all__": {"weights"}}})
        for data, names in zip(content["dataset"], ids, strict=True):
            del data["root"]
            data["ids"] = hashlib.sha256("\0".join(names).encode()).hexdigest()
        everything = {"plan": content | {"methods": self.specs()}, "weights": list(weights), "versions": libraries()}
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]


def libraries() -> dict[str, str]:
    """Versions of the libraries that decide the numbers; "absent" where one is not installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def plans() -> dict[str, Path]:
    """The plans that come with the package, by name.

    Example:
        >>> "smoke" in plans()
        True
    """
    folder = files("vitrail.bench").joinpath("plans")
    return {Path(str(file)).stem: Path(str(file)) for file in sorted(folder.iterdir(), key=str)}


def find_plan(source: str | Path) -> Path:
    """The file of a plan given by path or by name."""
    if str(source) in plans():
        return plans()[str(source)]
    path = Path(source)
    if not path.is_file():
        raise PlanError(f"{source} is neither a file nor a plan of the package: those are {', '.join(plans())}")
    return path


@dataclass(frozen=True)
class PlanOverrides:
    """What is said beside a plan: things that differ from machine to machine.

    Attributes:
        data: Folders of data sets, by a data set's label or name in the plan.
        weights: Files of weights, by a model's label, short or full name.
        limit: Most pictures of each data set.
        home: A folder that holds a folder for each data set, by label or name; looked into where nothing else is said.
    """

    data: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    home: str | None = field(default_factory=lambda: os.environ.get("VITRAIL_DATA"))

    def into(self, raw: dict[str, Any]) -> list[PlanProblem]:
        """Put it into a plan's content; names that nothing in the plan has are problems."""
        unused = {("--data", name) for name in self.data} | {("--weights", name) for name in self.weights}
        tables = [one for one in _several(raw.get("dataset", [])) if isinstance(one, dict)]
        for table in tables:
            names = [str(table[key]) for key in ("label", "name") if key in table]
            said = next((name for name in names if name in self.data), None)
            there = [Path(self.home, name) for name in names if self.home and Path(self.home, name).exists()]
            if said is not None:
                unused.discard(("--data", said))
                table["root"] = str(Path(self.data[said]).expanduser().resolve())
            elif "root" not in table and there and table.get("name") != "scenes":
                table["root"] = str(there[0].resolve())
            if self.limit is not None:
                table["limit"] = min(self.limit, table.get("limit") or self.limit)
        raw["models"] = _networks(raw["models"]) if "models" in raw else []
        for one in raw["models"]:
            for name in self.weights if isinstance(one, dict) else ():
                if full_name(name) == one.get("name") or name == one.get("label"):
                    unused.discard(("--weights", name))
                    given = self.weights[name]
                    one["weights"] = given if given == "random" else str(Path(given).expanduser().resolve())
        if not raw["models"]:
            del raw["models"]
        there_are = {"--data": [str(t.get("label", t.get("name"))) for t in tables],
                     "--weights": [str(m.get("label", m.get("name"))) for m in raw.get("models", []) if
                                   isinstance(m, dict)]}  # fmt: skip
        return [
            PlanProblem(
                path=(), text=f"{option} {name}=…: the plan has no such name, only {', '.join(there_are[option])}"
            )
            for option, name in sorted(unused)
        ]


def parse(
    text: str, folder: Path, given: PlanOverrides | None = None
) -> tuple[Plan | None, dict[str, Any], list[PlanProblem]]:
    """A plan from TOML, as far as its form goes: the plan if it is well formed, the raw content, the problems.

    Args:
        text: The file's content.
        folder: What relative paths in it are relative to.
        given: What is said beside it.

    Raises:
        PlanError: It is not TOML at all.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"the plan is not TOML: {error}") from error
    _resolve(raw, folder)
    problems = [] if given is None else given.into(raw)
    try:
        return Plan.model_validate(raw), raw, problems
    except ValidationError as error:
        for one in error.errors():
            # Which member of a union was tried says nothing to a reader.
            path = tuple(p for p in one["loc"] if not (isinstance(p, str) and ("[" in p or p in ("str", "tuple"))))
            problems.append(PlanProblem(path=path, text=_plain(one["type"], one["msg"], path, one["input"])))
        return None, raw, list({(p.path, p.text): p for p in problems}.values())


def listed(problems: Sequence[PlanProblem], text: str, source: str | Path) -> PlanError:
    """All problems as one error, each with its line."""
    lines = Lines(text)
    placed = [(p.line or lines.of(*p.path), p) for p in problems]
    placed.sort(key=lambda pair: pair[0] or 0)
    rows = [f"  line {line}: {p.text}" if line else f"  {p.text}" for line, p in placed]
    count = f"{len(rows)} problems" if len(rows) > 1 else "a problem"
    return PlanError("\n".join([f"{source} cannot be run, {count}:", *rows]))


def _plain(kind: str, message: str, path: tuple[str | int, ...], given: Any) -> str:
    where = ".".join(map(str, path))
    if kind == "extra_forbidden":
        owners: dict[str, type[BaseModel]] = {"models": ModelSpec, "dataset": DatasetSpec}
        owner = owners.get(str(path[0]), Plan) if len(path) > 1 else Plan
        known = ", ".join(owner.model_fields)
        return f"there is no key {where!r}: take one of {known}"
    if kind == "missing":
        return f"{where} is missing: write {where} = …"
    message = message.removeprefix("Value error, ")
    return f"{where} = {given!r}: {message[0].lower()}{message[1:]}"


def _resolve(raw: dict[str, Any], folder: Path) -> None:
    """Make paths absolute: workers may run in another folder."""
    tables = [t for key in ("dataset", "models") for t in _several(raw.get(key, [])) if isinstance(t, dict)]
    for table in tables:
        for key in ("root", "weights", "ids"):
            value = table.get(key)
            if isinstance(value, str) and value != "random":
                table[key] = str((folder / Path(value).expanduser()).resolve())
