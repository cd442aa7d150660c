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
    """Keep the recommendation for a model, which may be none, by the hash of its weights; on disk if possible."""
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
    """The method that `vitrail.compare` recommended for a model.

    Raises:
        OptionError: The model was not compared, or its last comparison recommended no method.
    """
    key = WeightsHash(model).hexdigest()
    if key is None:
        raise OptionError(
            'method="auto" finds the result of vitrail.compare by the hash of the weights, and the weights of this '
            "model have none, as with quantised layers: name a method"
        )
    entry = _remembered.get(key) or _read(recommendations_file()).get(key)
    if not isinstance(entry, dict) or "method" not in entry:
        raise OptionError(
            'method="auto" uses the result of vitrail.compare, and a model with these weights was not compared yet: '
            "run vitrail.compare(model, images) or `vitrail compare` once, or name a method"
        )
    if entry["method"] is None:
        raise OptionError(
            f'method="auto" uses the result of vitrail.compare, which recommended no method for this model on '
            f"{entry.get('images')} input{'' if entry.get('images') == 1 else 's'}: compare on more of them, or name "
            "a method"
        )
    return str(entry["method"])


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
