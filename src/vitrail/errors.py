"""Errors and warnings of Vitrail. Each message says what was given, what was expected, and how to fix it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class VitrailError(Exception):
    """Base class of all errors that Vitrail raises deliberately; the command line prints them as one line.

    Attributes:
        exit_status: Of the command line: 2 if the command could not be run, 1 if its work could not be finished.
    """

    exit_status = 2


class InputError(VitrailError, ValueError):
    """The image, tensor or text cannot be used."""


class FigureSizeError(InputError):
    """A figure of all these maps would be too large."""


class TargetError(VitrailError, ValueError):
    """The target class does not exist, or the target cannot be computed from the model's output."""


class ModelError(VitrailError, ValueError):
    """The model is unknown or cannot be explained: no attention, weights that are not finite, unknown token layout."""


class StructureDiffersError(ModelError):
    """The pass of a call differs from what was known of the model from an earlier pass."""


class WeightsError(VitrailError, ValueError):
    """A weights file is unsafe, unreadable, or does not fit the model."""


class NotApplicableError(VitrailError, TypeError):
    """The method is not defined for this kind of model."""


class OptionError(VitrailError, ValueError):
    """Unknown method, or an option that the method does not take."""


class DataError(VitrailError, ValueError):
    """A data set is missing, incomplete, damaged, or has an unexpected layout."""


class UnreachableError(DataError):
    """A store of files does not answer; the same request may succeed later."""


class OutputError(VitrailError, OSError):
    """Results could not be written."""


class MissingExtraError(VitrailError, ImportError):
    """An optional library is needed and not installed."""


class MapWarning(UserWarning):
    """A relevance map is constant or not finite, so it carries no information about the image."""


class DataWarning(UserWarning):
    """A data set is usable but has fewer or more samples than the published one."""


class GuessWarning(UserWarning):
    """A property of the model was guessed; pass a `vitrail.Layout` or ``preprocess`` to set it."""


class PluginWarning(UserWarning):
    """A method or score of another package could not be loaded."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional library, or raise an error that names the extra to install.

    Args:
        module: Name of the module.
        extra: Extra of this package that installs it.
        purpose: What it is needed for, as the end of "… is needed to".

    Raises:
        MissingExtraError: The library is not installed.

    Example:
        >>> require("math", "timm", "count").sqrt(4.0)
        2.0
        >>> require("no_such_library", "plot", "draw figures")
        Traceback (most recent call last):
        ...
        vitrail.errors.MissingExtraError: no_such_library is needed to draw figures: pip install "vitrail[plot]"
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] not in (module.partition(".")[0], "torchvision"):
            raise
        raise MissingExtraError(f'{module} is needed to {purpose}: pip install "vitrail[{extra}]"') from error


@contextmanager
def writing(path: Path | str, advice: str) -> Iterator[None]:
    """Turn errors of the file system within a ``with`` block into an `OutputError` with an advice."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path} ({error}): {advice}") from error


def error_line(error: BaseException) -> str:
    """Return an error as one line for a table."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    return line if isinstance(error, VitrailError) and line else f"{type(error).__name__}: {line}".removesuffix(": ")
