"""Plan files: finding and parsing them, with the settings of this machine and the lines of problems."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan, PlanError, PlanProblem, as_list, parse_models
from vitrail.bench.toml_lines import TomlLines
from vitrail.data.addresses import full_address
from vitrail.models.catalogue import full_name


def plans() -> dict[str, Path]:
    """Return the plans of the package: file by name.

    Example:
        >>> "smoke" in plans()
        True
    """
    folder = files("vitrail.bench").joinpath("plans")
    return {Path(str(file)).stem: Path(str(file)) for file in sorted(folder.iterdir(), key=str)}


def find_plan(source: str | Path) -> Path:
    """Return the file of a plan given by path or by name; former names of plans still work.

    Example:
        >>> find_plan("003_table2").name
        'gradtoken_table2.toml'
    """
    from vitrail.bench.papers import current_name

    path, name = Path(source), current_name(str(source))
    if name in plans():
        return plans()[name]
    if not path.is_file():
        raise PlanError(f"{source} is neither a file nor a plan of the package; the plans are {', '.join(plans())}")
    return path


@dataclass(frozen=True)
class PlanOverrides:
    """Settings that differ between machines and are given in addition to a plan.

    Attributes:
        data: Folders of data sets, by the data set's label or name in the plan.
        weights: Weights files, by the model's label, short name or full name.
        limit: Maximum number of images of each data set.
        imports: Modules to import in addition to the plan's.
        home: A folder with one subfolder per data set, named by label or name. Used for data sets without a folder.
    """

    data: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    imports: tuple[str, ...] = ()
    home: str | None = field(default_factory=lambda: os.environ.get("VITRAIL_DATA"))

    def apply_to(self, raw: dict[str, Any]) -> list[PlanProblem]:
        """Change a plan's raw content in place; return a problem for each name the plan does not have."""
        raw["models"] = parse_models(raw["models"]) if "models" in raw else []
        if self.imports:
            raw["imports"] = list(dict.fromkeys([*as_list(raw.get("imports", [])), *self.imports]))
        datasets = [table for table in as_list(raw.get("dataset", [])) if isinstance(table, dict)]
        models = [table for table in raw["models"] if isinstance(table, dict)]
        used_data = {name for table in datasets if (name := self._apply_to_dataset(table)) is not None}
        used_weights = set()
        for table in models:
            for name, given in self.weights.items():
                if full_name(name) == table.get("name") or name == table.get("label"):
                    used_weights.add(name)
                    table["weights"] = given if given == "random" else str(Path(given).expanduser().resolve())
        if not raw["models"]:
            del raw["models"]
        problems = []
        for option, unused, tables in (
            ("--data", set(self.data) - used_data, datasets),
            ("--weights", set(self.weights) - used_weights, models),
        ):
            known = ", ".join(str(table.get("label", table.get("name"))) for table in tables)
            problems += [
                PlanProblem(path=(), text=f"{option} {name}=…: the plan has no such name, only {known}")
                for name in sorted(unused)
            ]
        return problems

    def _apply_to_dataset(self, table: dict[str, Any]) -> str | None:
        """Set the root and limit of a data set; return the name in ``data`` that was used."""
        names = [str(table[key]) for key in ("label", "name") if key in table]
        used = next((name for name in names if name in self.data), None)
        in_home = [Path(self.home, name) for name in names if self.home and Path(self.home, name).exists()]
        if used is not None:
            table["root"] = full_address(self.data[used])
        elif "root" not in table and in_home and table.get("name") != "scenes":
            table["root"] = str(in_home[0].resolve())
        if self.limit is not None:
            table["limit"] = min(self.limit, table.get("limit") or self.limit)
        return used


def parse_plan(
    text: str, folder: Path, overrides: PlanOverrides | None = None
) -> tuple[Plan | None, dict[str, Any], list[PlanProblem]]:
    """Parse a plan and check its form; relative paths in it refer to ``folder``.

    Returns:
        The plan, or None if it is not well formed; its raw content; the problems.

    Raises:
        PlanError: The text is not TOML.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"the plan is not valid TOML: {error}") from error
    _make_paths_absolute(raw, folder)
    problems = [] if overrides is None else overrides.apply_to(raw)
    try:
        return Plan.model_validate(raw), raw, problems
    except ValidationError as error:
        for one in error.errors():
            # Names of the union members that pydantic tried do not help the reader.
            path = tuple(p for p in one["loc"] if not (isinstance(p, str) and ("[" in p or p in ("str", "tuple"))))
            problems.append(PlanProblem(path=path, text=_describe(one["type"], one["msg"], path, one["input"])))
        return None, raw, list({(p.path, p.text): p for p in problems}.values())


def plan_error(problems: Sequence[PlanProblem], text: str, source: str | Path) -> PlanError:
    """Return one error that lists all problems, each with its line."""
    lines = TomlLines(text)
    placed = sorted(((lines.of(*problem.path) or 0, problem) for problem in problems), key=lambda pair: pair[0])
    rows = [f"  line {line}: {problem.text}" if line else f"  {problem.text}" for line, problem in placed]
    count = f"{len(rows)} problems" if len(rows) > 1 else "1 problem"
    return PlanError("\n".join([f"{source} cannot be run, {count}:", *rows]))


def _describe(kind: str, message: str, path: tuple[str | int, ...], given: Any) -> str:
    """Turn an error of pydantic into a sentence."""
    where = ".".join(map(str, path))
    if kind == "extra_forbidden":
        owners: dict[str, type[BaseModel]] = {"models": ModelSpec, "dataset": DatasetSpec}
        owner = owners.get(str(path[0]), Plan) if len(path) > 1 else Plan
        return f"unknown key {where!r}: choose one of {', '.join(owner.model_fields)}"
    if kind == "missing":
        return f"{where} is missing: add {where} = …"
    message = message.removeprefix("Value error, ")
    return f"{where} = {given!r}: {message[0].lower()}{message[1:]}"


def _make_paths_absolute(raw: dict[str, Any], folder: Path) -> None:
    """Make the paths of a plan absolute, because workers may run in another folder."""
    tables = [t for key in ("dataset", "models") for t in as_list(raw.get(key, [])) if isinstance(t, dict)]
    for table in tables:
        for key in ("root", "weights", "ids"):
            value = table.get(key)
            if isinstance(value, str) and value != "random":
                table[key] = full_address(value, folder)
