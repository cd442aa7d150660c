"""Read the targets of a saved explanation."""

from __future__ import annotations

import json
from pathlib import Path

from vitrail.errors import TargetError
from vitrail.targets.named_target import NamedTarget, from_dict


def saved_targets(folder: str | Path) -> list[list[NamedTarget]]:
    """The targets of a saved explanation, one row for each image, as `vitrail.explain` takes them.

    Args:
        folder: Folder that `Explanation.save` wrote.

    Raises:
        TargetError: The explanation was not made with named targets.
    """
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    rows = manifest.get("named_targets")
    if rows is None:
        raise TargetError(f"{folder} explains classes or a function: its manifest lists the classes under 'targets'")
    return [[from_dict(one["asked"]) for one in row] for row in rows]
