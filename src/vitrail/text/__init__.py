"""Texts: tokenizer settings, relevance of words, long texts in windows, and how word scores are rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.text.result import WordRelevance
from vitrail.text.tokens import TokenizerSettings, load_tokenizer

if TYPE_CHECKING:
    from vitrail.text.prediction import predict_texts
    from vitrail.text.rendering import html, terminal

__all__ = [
    "BERT_VARIANTS",
    "TokenizerSettings",
    "WordRelevance",
    "html",
    "load_tokenizer",
    "predict_texts",
    "terminal",
]

BERT_VARIANTS = {
    "gradcam": "gradcam:bert",
    "bi_attn": "bi_attn:bert",
    "transformer_attribution": "transformer_attribution:bert",
}
"""Methods whose released code treats BERT differently from images, each with the variant that reproduces it."""

_LAZY = {"html": "rendering", "predict_texts": "prediction", "terminal": "rendering"}


def __getattr__(name: str) -> Any:
    """Import names that depend on other packages when they are first used."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"vitrail.text.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
