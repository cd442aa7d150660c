"""What can go wrong, each with one sentence that says what and how to mend it."""

from __future__ import annotations

import importlib
from types import ModuleType


class VitrailError(Exception):
    """Base of every error Vitrail raises on purpose; the command line prints it as one line."""


class InputError(VitrailError, ValueError):
    """The image, tensor or text cannot be used as given."""


class TargetError(VitrailError, ValueError):
    """The class or target asked for does not exist, or cannot be read from the model's output."""


class ModelError(VitrailError, ValueError):
    """The model cannot be looked into: no attention, broken weights, unknown layout."""


class WeightsError(VitrailError, ValueError):
    """A weights file is unsafe, unreadable, or does not fit the model."""


class NotApplicableError(VitrailError, TypeError):
    """The method is not defined for this kind of model."""


class OptionError(VitrailError, ValueError):
    """Unknown method, or an option the method does not take."""


class DataError(VitrailError, ValueError):
    """A data set is missing, not complete, damaged, or not laid out as expected."""


class OutputError(VitrailError, OSError):
    """Results could not be written."""


class MissingExtraError(VitrailError, ImportError):
    """An optional library is needed and not installed."""


class MapWarning(UserWarning):
    """A relevance map is constant or not finite: it says nothing about the image."""


class DataWarning(UserWarning):
    """A data set can be used but holds fewer or more samples than the published one."""


class GuessWarning(UserWarning):
    """Something about the model was guessed; give a layout to be sure."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional library, or say which extra brings it.

    Args:
        module: Name to import.
        extra: The extra of this package that installs it.
        purpose: What it is needed for, as the end of "… is needed to".

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
