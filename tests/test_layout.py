"""Layout of the package and of its tests: import order, one name per class, plain names, tests in the same folders."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from vitrail import fast

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent / "src" / "vitrail"


#: File names that occur in several folders, each with the reason.
REPEATED_FILES = {
    "__init__.py": "packages",
    "rationale.py": "scores against human rationales, and their report",
    "run.py": "a benchmark run: running it (bench) and reading it (report)",
    "cost.py": "cost: of a method (methods) and of a plan (bench)",
    "attention.py": "attention layers: how they are recognised (capture) and their relevance rules (lrp)",
    "audit.py": "a command and the module that it runs",
    "leaderboard.py": "a command and the module that it runs",
    "curves.py": "perturbation curves: their computation (scores) and their drawing (report)",
    "demo.py": "a command and the module that it runs",
    "compare.py": "a command and the module that it runs",
    "progress.py": "progress of a call (pipeline) and of a benchmark run (bench)",
    "targets.py": "the public module of targets, and their implementation (inputs)",
    "errors.py": "exceptions of the library, and HTTP errors of the web API",
    "explain.py": "a command and the module that it runs",
    "figure.py": "a command and the module that it runs",
    "gradtoken.py": "a method and the figures of its paper",
    "ray.py": "Ray Data, and the engine of the benchmark that uses Ray",
    "registry.py": "the registry of methods and the registry of figures",
    "vtranm.py": "a method and the figures of its paper",
}

#: Folders of tests that belong to no package.
OTHER_TESTS = {
    "battery": "one set of checks over many models or methods",
    "replicas": "slow implementations of the methods, written from their formulas",
    "repository": "checks of committed text, results and scripts",
    "zoo": "models with the expected result of each",
}

#: Test files that are named after no module of their package, each with the reason.
OTHER_TEST_FILES = {
    "bench/report/test_report.py": "the report of a run as a whole",
    "bench/report/test_report_plans.py": "plans of the package up to their report",
    "bench/test_failures.py": "failures in any part of a run",
    "bench/test_sources.py": "explaining and scoring images of any source",
    "bench/test_interruption.py": "interrupted and resumed runs",
    "capture/test_refusals.py": "error messages of all modules",
    "cli/test_failures.py": "errors of all commands",
    "cli/test_weights.py": "one option of several commands",
    "fast/test_recorded_texts.py": "recordings of text models",
    "inputs/test_library_models.py": "models of libraries with several inputs or outputs",
    "lrp/test_half_precision.py": "all rules in half precision",
    "lrp/test_written_layers.py": "one layer written in several ways",
    "methods/test_confident_models.py": "methods that remove parts of the input, where a class is almost certain",
    "methods/test_perturbation.py": "all perturbation methods",
    "models/test_embedded.py": "the weights in the package",
    "pipeline/test_gradient_modes.py": "all entry points where gradients are switched off",
    "scores/test_localisation.py": "segmentation, pointing and selectivity",
    "scores/test_scores.py": "complexity, agreement and what all scores share",
    "text/test_texts.py": "explaining texts as a whole",
    "web/test_browser.py": "the page in a browser",
    "web/test_target_browser.py": "prompts, boxes, regions and frames in Chromium",
    "web/test_page_downloads.py": "downloads of the page in a browser",
    "web/test_page_tools.py": "tools of the page in a browser",
    "web/test_connection.py": "the page in a browser",
    "web/test_page.py": "the page in a browser",
    "web/test_page_api.py": "the requests of the page",
}

#: Words that do not say what a thing is, as names of files, classes and functions.
UNCLEAR = {
    "away", "body", "chore", "doors", "dull", "hands", "let_in", "look", "looks", "luggage", "made", "organ", "part",
    "settle", "stage", "still", "take", "told", "tower", "trial", "wholes", "wins",
}  # fmt: skip


@dataclass(frozen=True)
class ModuleNames:
    """What a module imports and defines, anywhere in its text; its syntax tree is not kept.

    Attributes:
        imports: Statements that import.
        definitions: Kind and name of classes and functions, methods and private ones included.
    """

    imports: list[ast.Import | ast.ImportFrom]
    definitions: list[tuple[str, str]]


@cache
def modules() -> dict[str, ModuleNames]:
    """All modules by name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("vitrail", *path.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = read_names(ast.parse(path.read_text(encoding="utf-8")))
    return found


def read_names(tree: ast.Module) -> ModuleNames:
    """Imports and definitions, which are statements: expressions are not searched."""
    kinds = {ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
    found, waiting = ModuleNames([], []), list[ast.AST]([tree])
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.definitions.append((kinds[type(node)], node.name))
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, field, None)
            waiting += inside if isinstance(inside, list) else []  # the body of a lambda is an expression
    return found


def test_names_are_found_in_nested_statements():
    text = "try:\n  import a\nexcept E:\n  from b import c\nelse:\n  class D:\n    def e(self):\n      import f"
    found = read_names(ast.parse(text))
    assert sorted(alias.name for node in found.imports for alias in node.names) == ["a", "c", "f"]
    assert sorted(found.definitions) == [("class", "D"), ("function", "e")]


@cache
def imports() -> dict[str, set[str]]:
    """Modules that each module imports, anywhere in its text: in functions and under TYPE_CHECKING as well."""
    graph: dict[str, set[str]] = {}
    for module, found in modules().items():
        graph[module] = set()
        for node in found.imports:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                assert node.level == 0, f"{module} has a relative import"
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules() else str(node.module) for name in full]
            graph[module] |= {name for name in names if name.partition(".")[0] == "vitrail"}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components with more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in sorted(graph[node]):
            if following not in index:
                visit(following)
            if following in stack:
                low[node] = min(low[node], low[following])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def package(module: str) -> str:
    return ".".join(module.split(".")[1:2])


def definitions() -> list[tuple[str, str, str]]:
    """(module, kind, name) of all classes and functions, methods and private ones included."""
    return [(module, kind, name) for module, found in modules().items() for kind, name in found.definitions]


def repeated(places: dict[str, list[str]], allowed: tuple[str, ...]) -> dict[str, list[str]]:
    """Names with several places, except the allowed ones."""
    return {name: found for name, found in places.items() if len(found) > 1 and name not in allowed}


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imported_modules_exist():
    missing = {(module, name) for module, names in imports().items() for name in names if name not in modules()}
    assert not missing


def test_no_import_cycles():
    assert not cycles(imports())


#: Order of the packages: nothing imports what comes later. Explanations check and draw themselves, so checks and
#: drawing come before the pipeline.
ORDER = (
    "errors fast", "models capture", "data inputs lrp", "methods targets", "viz testing", "text", "scores", "trust",
    "pipeline", "tools bench web ray", "cli",
)  # fmt: skip


def levels() -> dict[str, int]:
    """Level of each package or loose module: one more than the highest level it imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, names in imports().items():
        own = package(module)
        if own not in ("", "__main__"):
            graph[own] |= {package(name) for name in names} - {own, ""}

    @cache
    def level(name: str) -> int:
        return 1 + max((level(other) for other in graph[name]), default=0)

    return {name: level(name) for name in list(graph)}


def test_packages_import_in_one_direction():
    place = {name: i for i, names in enumerate(ORDER) for name in names.split()}
    upward = {
        (module, name)
        for module, names in imports().items()
        for name in names
        if package(module) not in ("", "__main__") and package(name) != package(module)
        if package(name) == "" or place[package(name)] >= place[package(module)]
    }
    assert not upward


def test_package_has_at_most_11_levels_and_20_names():
    assert max(levels().values()) <= 11
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert len(names - {"__init__", "__main__"}) <= 20


def test_speed_code_is_used_through_its_package_alone():
    imported = {name for module, names in imports().items() if package(module) == "fast" for name in names}
    assert {package(name) for name in imported} <= {"fast", "errors"}


def test_command_line_is_imported_by_no_other_package():
    importers = {
        module
        for module, names in imports().items()
        if package(module) not in ("cli", "__main__") and any(package(name) == "cli" for name in names)
    }
    assert not importers


def test_class_names_are_unique():
    found = defaultdict(list)
    for module, kind, name in definitions():
        if kind == "class":
            found[name].append(module)
    assert not repeated(found, ())


def test_file_names_repeat_only_for_a_reason():
    found = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        found[path.name].append(str(path.relative_to(ROOT)))
    assert not repeated(found, tuple(REPEATED_FILES))


@pytest.mark.parametrize("kind", ["file", "class", "function"])
def test_names_say_what_things_are(kind):
    names = definitions() + [(module, "file", module.rpartition(".")[2]) for module in modules()]
    unclear = [
        (module, name) for module, its_kind, name in names if its_kind == kind and name.lower().strip("_") in UNCLEAR
    ]
    assert not unclear


def test_files_have_at_most_500_lines():
    paths = [*ROOT.rglob("*.py"), *TESTS.rglob("*.py")]
    lines = {
        path.relative_to(TESTS.parent).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in paths
    }
    assert not {name: count for name, count in lines.items() if count > 500}


def source_names(folder: str) -> set[str]:
    """Names of the modules and packages in a folder of the package, without leading underscores."""
    paths = (ROOT / folder).iterdir()
    return {p.stem.lstrip("_") for p in paths if p.suffix == ".py" or (p / "__init__.py").is_file()}


def package_tests() -> list[Path]:
    """Test files in the folders of packages, relative to the folder of tests."""
    paths = [path.relative_to(TESTS) for path in sorted(TESTS.rglob("test_*.py"))]
    return [path for path in paths if len(path.parts) > 1 and path.parts[0] not in OTHER_TESTS]


def test_tests_are_in_the_folder_of_the_package_they_test():
    folders = {path.parent for path in package_tests()}
    assert not {folder.as_posix() for folder in folders if not (ROOT / folder / "__init__.py").is_file()}
    assert {path.name for path in TESTS.glob("test_*.py")} == {"test_layout.py"}


def test_test_files_are_named_after_the_module_they_test():
    other = {
        path.as_posix()
        for path in package_tests()
        if path.stem.removeprefix("test_") not in source_names(path.parent.as_posix())
    }
    assert other == set(OTHER_TEST_FILES), "rename the file, or list it in OTHER_TEST_FILES with the reason"


def test_every_package_has_tests():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    assert not {name for name in packages if not list((TESTS / name).glob("test_*.py"))}


def test_fast_paths_are_used_through_one_module():
    """Other packages import ``vitrail.fast`` and nothing inside it."""
    offered = {f"vitrail.fast.{name}" for name in fast.__all__}  # a function may have its module's name
    inside = {
        module: {name for name in used if name.startswith("vitrail.fast.")} - offered
        for module, used in imports().items()
        if not module.startswith("vitrail.fast")
    }
    assert not {module: names for module, names in inside.items() if names}
