"""Methods and scores of other packages: modules imported by name, and entry points of installed packages.

A package declares its methods and scores in ``pyproject.toml``; the name of an entry is that of the method or score,
and its value is the module that registers it::

    [project.entry-points."vitrail.methods"]
    last_two = "my_package.last_two"
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitrail.errors import OptionError, PluginWarning

#: Groups of entry points, and what an entry is called in messages.
GROUPS = {"vitrail.methods": "method", "vitrail.scores": "score"}

#: What was registered, by group; each registry declares its table.
TABLES: dict[str, MutableMapping[str, Any]] = {}
_attempted: set[tuple[str, str, str]] = set()


def import_modules(names: Iterable[str]) -> None:
    """Import modules that register methods or scores.

    A module that is not found is searched in the current folder, which is then appended to ``sys.path``.

    Example:
        >>> import_modules(["no_such_module"])
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: no_such_module cannot be imported (No module named 'no_such_module'): install it,
        or add its folder to PYTHONPATH
    """
    for name in names:
        try:
            _find_in_current_folder(name)
            importlib.import_module(name)
        except Exception as error:
            kind = "" if isinstance(error, ImportError | OptionError) else f"{type(error).__name__}: "
            reason = f"{kind}{error}"
            raise OptionError(
                f"{name} cannot be imported ({reason}): install it, or add its folder to PYTHONPATH"
            ) from error


def _find_in_current_folder(name: str) -> None:
    """Append the current folder to ``sys.path`` if only it has the module: a console script does not search it."""
    top = name.partition(".")[0]
    here = Path.cwd()
    if find_spec(top) is None and ((here / f"{top}.py").is_file() or (here / top / "__init__.py").is_file()):
        sys.path.append(str(here))
        importlib.invalidate_caches()


def load_plugins(group: str | None = None, name: str | None = None) -> None:
    """Load entry points of installed packages, each once; one that fails raises a warning and registers nothing.

    Args:
        group: "vitrail.methods" or "vitrail.scores"; both by default.
        name: Only the entry of this name; all by default.
    """
    for one in GROUPS if group is None else (group,):
        for entry in _entries(one, tuple(sys.path)):
            key = (one, entry.name, entry.value)
            if key not in _attempted and name in (None, entry.name):
                _attempted.add(key)
                _load(entry, one)


@lru_cache(maxsize=4)
def _entries(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Entry points of a group; ``path`` is the search path, so that a changed path is searched again."""
    del path
    return tuple(entry_points(group=group))


def _load(entry: EntryPoint, group: str) -> None:
    before = {name: dict(table) for name, table in TABLES.items()}
    try:
        entry.load()
        if entry.name not in TABLES.get(group, {}):
            raise OptionError(f"it registers no {GROUPS[group]} of this name")
    except Exception as error:  # noqa: BLE001 - whatever another package does must not break this one
        for name, content in before.items():
            TABLES[name].clear()
            TABLES[name].update(content)
        origin = entry.dist.name if entry.dist is not None else "an unknown package"
        warnings.warn(
            f"the {GROUPS[group]} {entry.name!r} of {origin} ({entry.value}) was not loaded: "
            f"{type(error).__name__}: {error}",
            PluginWarning,
            stacklevel=4,
        )


def refuse_name_clash(kind: str, name: str, existing: Any, new: Any) -> None:
    """Refuse to register a name twice, unless the same module does so, as when a notebook's cell is run again.

    Args:
        kind: What is registered, for the message.
        name: Its name.
        existing: The function that is registered under this name, or None.
        new: The function to register.
    """
    owner = getattr(existing, "__module__", None)
    if existing is not None and owner != getattr(new, "__module__", None):
        raise OptionError(
            f"there is a {kind} {name!r} of {owner} already, so {getattr(new, '__module__', new)} cannot register one: "
            "choose another name"
        )
