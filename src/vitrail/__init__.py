"""Vitrail: relevance maps for transformers, by published methods and with their evaluation protocols.

>>> import torch, vitrail
>>> from vitrail.testing import tiny_vit
>>> e = vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), method="transformer_mm", target=2)
>>> e.maps.shape
torch.Size([1, 1, 32, 32])
"""

from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.class_group import ClassGroup
from vitrail.compare import MethodComparison, compare
from vitrail.explain import explain
from vitrail.explanation import Explanation, Explanations
from vitrail.methods.registry import METHODS, Method
from vitrail.models import LoadedModel, load
from vitrail.models.preprocess import Preprocess
from vitrail.plugins import load_plugins
from vitrail.targets import contrast, similarity

__version__ = "0.1.0"

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
]  # fmt: skip


def methods() -> dict[str, Method]:
    """All registered methods by name, with their family, requirements and citation; those of other packages too.

    Example:
        >>> {'gradtoken', 'vit_cx', 'vtranm'} <= set(methods())
        True
    """
    load_plugins("vitrail.methods")
    return dict(METHODS)
