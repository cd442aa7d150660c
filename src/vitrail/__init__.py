"""Vitrail: relevance maps for transformers, by published methods and with their evaluation protocols.

>>> import torch, vitrail
>>> from vitrail.testing import tiny_vit
>>> e = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), method="transformer_mm", target=2)
>>> e.maps.shape
torch.Size([1, 1, 32, 32])
"""

from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.fast import unchanged
from vitrail.inputs.targets import contrast, similarity
from vitrail.methods.plugins import load_plugins
from vitrail.methods.registry import METHODS, Method
from vitrail.models import LoadedModel, load
from vitrail.models.class_group import ClassGroup
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.tools.compare import MethodComparison, compare
from vitrail.tools.moved_modules import keep_documented_paths

__version__ = "0.1.0"

keep_documented_paths()

__all__ = [
    "ClassGroup",
    "Explanation",
    "Explanations",
    "Layout",
    "LoadedModel",
    "Method",
    "MethodComparison",
    "ModelStructure",
    "Preprocess",
    "compare",
    "contrast",
    "explain",
    "load",
    "methods",
    "similarity",
    "unchanged",
]  # fmt: skip


def methods() -> dict[str, Method]:
    """All registered methods by name, with their family, requirements and citation; those of other packages too.

    Example:
        >>> {'gradtoken', 'vit_cx', 'vtranm'} <= set(methods())
        True
    """
    load_plugins("vitrail.methods")
    return dict(METHODS)
