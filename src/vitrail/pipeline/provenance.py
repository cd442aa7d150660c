"""Where an explanation comes from: names of the inputs, preprocessing, weights, and versions of the libraries."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from vitrail.models.checkpoint import WeightsHash


@dataclass(frozen=True, eq=False)
class Provenance:
    """Where an explanation comes from, for the manifest.

    Attributes:
        inputs: Name of each input: the file name of a path, otherwise its type and index.
        preprocess: The preprocessing; ``applied`` is False if the inputs were tensors, which are used unchanged.
        weights: Hash of the model's weights, computed at first use.
    """

    inputs: tuple[str, ...]
    preprocess: Mapping[str, Any]
    weights: WeightsHash


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that affect the numbers."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("vitrail", "timm", "transformers", "torchvision", "open_clip_torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
