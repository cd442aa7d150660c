"""What all commands share: modules given with --import, methods of other packages, one line after Ctrl-C."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from vitrail.cli.common import ImportOption, WarningPrinter
from vitrail.errors import PluginWarning
from vitrail.methods.plugins import import_modules, load_plugins


class InterruptedCommandError(Exception):
    """Ctrl-C was pressed. Typer would end the program without a word on a KeyboardInterrupt."""


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command; it receives the modules if it has a parameter ``imports``.

    The command takes ``--import`` and loads methods and scores of other packages before it runs. A KeyboardInterrupt
    becomes `InterruptedCommandError`, which `main` reports.
    """
    signature = inspect.signature(function, eval_str=True)
    takes_imports = "imports" in signature.parameters

    @wraps(function)
    def run(*args: Any, imports: list[str] | None = None, **options: Any) -> None:
        try:
            import_modules(imports or [])
            _load_plugins()
            function(*args, **options, **({"imports": imports} if takes_imports else {}))
        except KeyboardInterrupt as error:
            raise InterruptedCommandError from error

    if not takes_imports:
        extra = inspect.Parameter("imports", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ImportOption)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), extra]
        )
        run.__annotations__ = {**inspect.get_annotations(function, eval_str=True), "imports": ImportOption}
    return run


def _load_plugins() -> None:
    """Load methods and scores of other packages; print a line for each that fails."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        load_plugins()
    show = WarningPrinter()
    for warning in caught:
        if issubclass(warning.category, PluginWarning):
            show(warning.message)
