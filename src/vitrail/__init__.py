"""Vitrail: relevance maps for transformers, by published methods and with their evaluation protocols.

>>> import torch, vitrail
>>> from vitrail.testing import tiny_vit
>>> e = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), method="transformer_mm", target=2)
>>> e.maps.shape
torch.Size([1, 1, 32, 32])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure import forget
from vitrail.fast import unchanged
from vitrail.inputs.targets import similarity
from vitrail.methods.plugins import load_plugins
from vitrail.methods.registry import METHODS, Method
from vitrail.models import LoadedModel, load
from vitrail.models.class_group import ClassGroup
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.pipeline.generation import explain_generation
from vitrail.pipeline.generation_explanation import GenerationExplanation
from vitrail.pipeline.token_activation import token_activation
from vitrail.targets import contrast
from vitrail.tools.compare import MethodComparison, compare
from vitrail.tools.moved_modules import keep_documented_paths

if TYPE_CHECKING:
    from vitrail.bench.map_store import MapStore
    from vitrail.web.running_page import RunningPage

__version__ = "0.2.0"

keep_documented_paths()

__all__ = [
    "ClassGroup",
    "Explanation",
    "Explanations",
    "GenerationExplanation",
    "Layout",
    "LoadedModel",
    "Method",
    "MethodComparison",
    "ModelStructure",
    "Preprocess",
    "compare",
    "contrast",
    "explain",
    "explain_generation",
    "forget",
    "load",
    "methods",
    "open_maps",
    "serve",
    "similarity",
    "token_activation",
    "unchanged",
]  # fmt: skip


def serve(
    *models: nn.Module | LoadedModel | str,
    preprocess: Preprocess | None = None,
    classes: Sequence[str] | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    port: int = 0,
    open_page: bool = True,
) -> RunningPage:
    """Serve the web page for your models, in a thread of this program, such as a notebook.

    Args:
        models: A module, a loaded model or a name that `load` takes; several to compare them.
        preprocess: How images become inputs of the model; by default what its library states.
        classes: Class names; by default those that are known of the model.
        tokenizer: The fast tokenizer of a text model: a classifier or a language model.
        processor: The processor of a vision-language model, which takes ``images`` and ``text``.
        port: The port; any free one by default.
        open_page: Open the page in a browser.

    Returns:
        The running page, with its ``url``; stop it with ``close()``.

    Raises:
        ModelError: The preprocessing is unknown, or the page does not support the model.

    Example:
        >>> with serve("scenes", open_page=False) as page:
        ...     page.url[:17]
        'http://127.0.0.1:'
    """
    from vitrail.web.running_page import serve_models

    return serve_models(
        models, preprocess=preprocess, classes=classes, tokenizer=tokenizer, processor=processor, port=port,
        open_page=open_page,
    )  # fmt: skip


def methods() -> dict[str, Method]:
    """All registered methods by name, with their family, requirements and citation; those of other packages too.

    Example:
        >>> {'gradtoken', 'vit_cx', 'vtranm'} <= set(methods())
        True
    """
    load_plugins("vitrail.methods")
    return dict(METHODS)


def open_maps(path: str | Path) -> MapStore:
    """Open the maps of a data set: what `vitrail explain FOLDER` wrote, or a finished run that kept its maps.

    Args:
        path: The ``--out`` folder of `vitrail explain`, or the folder of a run whose plan has ``keep_maps = true``.

    Returns:
        The maps, which are read from disk one by one: `vitrail.bench.map_store.MapStore`.

    Raises:
        DataError: There is no index of maps, or it is damaged.
    """
    from vitrail.bench.map_store import open_maps as open_store

    return open_store(path)
