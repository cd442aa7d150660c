"""Recommended methods by model: written by `vitrail.compare`, read by ``explain(method="auto")``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import OptionError
from vitrail.models.checkpoint import WeightsHash

AUTO = "auto"
_remembered: dict[str, dict[str, Any]] = {}


def recommendations_file() -> Path:
    """The file that recommendations are kept in, in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitrail" / "recommendations.json"


def remember(model: nn.Module, entry: dict[str, Any]) -> None:
    """Keep the recommendation for a model by the hash of its weights, also on disk if that is possible."""
    key = WeightsHash(model).hexdigest()
    if key is None:
        return
    _remembered[key] = entry
    path = recommendations_file()
    try:
        kept = _read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(kept | _remembered, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        return  # a cache folder that cannot be written is no reason to lose a finished comparison


def recommended(model: nn.Module) -> str:
    """The method that `vitrail.compare` recommended for a model."""
    key = WeightsHash(model).hexdigest()
    entry = None if key is None else _remembered.get(key) or _read(recommendations_file()).get(key)
    if entry is None or not isinstance(entry.get("method"), str):
        raise OptionError(
            'method="auto" uses the result of vitrail.compare, and this model was not compared yet: run '
            "vitrail.compare(model, images) once, or name a method"
        )
    return str(entry["method"])


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
